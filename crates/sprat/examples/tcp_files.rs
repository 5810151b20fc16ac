//! A file server for HTTP/1.0 on TCP of our own, with a thread for each connection. curl and
//! browsers fetch from it.
//!
//! `cargo run --example tcp_files -- utcp+packet:dev=eth0,host=192.0.2.7,port=80 FOLDER`, as root
//! or with CAP_NET_RAW, and then `curl http://192.0.2.7/FILE` on another host. Without arguments
//! the example serves one file to itself over memory that both ends share.

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::thread::spawn;

use sprat::locator::Locator;
use sprat::tcp::{Listener, Options, Stack, Stream};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [locator, folder] => {
            let port = locator.parse::<Locator>()?.option("port").unwrap_or("80").parse()?;
            let stack = Stack::open(locator, &Options::default())?;
            let listener = stack.listen(port, 128)?;
            println!("serving at {}", listener.local_addr());
            serve(&listener, folder.into(), usize::MAX)?;
            Ok(())
        }
        _ => demonstrate(),
    }
}

/// Accepts this number of connections, and answers each in a thread of its own.
fn serve(listener: &Listener, folder: PathBuf, connections: usize) -> io::Result<()> {
    for _ in 0..connections {
        let (stream, peer) = listener.accept()?;
        let folder = folder.clone();
        spawn(move || {
            if let Err(error) = answer(&stream, &folder) {
                println!("{peer}: {error}");
            }
        });
    }
    Ok(())
}

/// Answers one request. The drop of the stream ends the connection in order.
fn answer(mut stream: &Stream, folder: &Path) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let name = request.split_whitespace().nth(1).unwrap_or("/").trim_start_matches('/');
    let stays = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let file = if stays { fs::File::open(folder.join(name)) } else { Err(io::Error::other(name)) };
    match file {
        Ok(mut file) => {
            let len = file.metadata()?.len();
            write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {len}\r\n\r\n")?;
            io::copy(&mut file, &mut stream)?;
        }
        Err(_) => write!(stream, "HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n")?,
    }
    Ok(())
}

fn demonstrate() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("sprat-example-{}", std::process::id()));
    fs::create_dir(&folder)?;
    fs::write(folder.join("fish"), "Sprattus sprattus")?;
    let name = format!("example-tcp-{}", std::process::id());
    let at = |host| format!("utcp+shmnet:name={name},host={host},port=80");

    let server = Stack::open(&at("192.0.2.1"), &Options::default())?;
    let listener = server.listen(80, 8)?;
    let served = folder.clone();
    let serving = spawn(move || serve(&listener, served, 1));

    let own: Locator = at("192.0.2.2").parse()?;
    let client = Stack::towards(&at("192.0.2.1"), &Options::default().local([own]))?;
    let mut stream = client.connect("192.0.2.1:80")?;
    stream.write_all(b"GET /fish HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    println!("{}", answer.lines().last().unwrap_or_default());
    let rtt = stream.info().map_or(0, |info| info.rtt_ns);
    println!("a round trip took {} µs", rtt / 1000);
    serving.join().map_err(|_| "the server panicked")??;
    fs::remove_dir_all(folder)?;
    Ok(())
}
