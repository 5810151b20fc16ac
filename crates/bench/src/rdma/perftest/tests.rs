//! Runs a client that follows perftest's source against our server, and compares bytes with those
//! of a real client.

use std::net::Ipv4Addr;
use std::thread;

use sprat::verbs::{Completed, ConnectOptions, Options, Stag};

use super::*;

#[test]
fn a_record_is_laid_out_as_perftest_lays_it_out() {
    // A message of ib_read_bw over siw: the bytes at 12 are a packet number, those at 32 a GID
    // without an address.
    let theirs = "00000000 00000080 00000002 00bebf3a 38f7c800 00000000 00007f44902b7000 \
                  5254007700010000 0000000000000000 00000000 00000000";
    let theirs: Vec<u8> = octets(theirs);
    let memory = Remote { stag: Stag(0x38f7_c800), addr: 0x7f44_902b_7000 };
    let ours = record(128, 2, memory, Ipv4Addr::new(10, 77, 0, 1).into());
    assert_eq!(
        (&ours[..12], &ours[16..32], &ours[48..]),
        (&theirs[..12], &theirs[16..32], &theirs[48..])
    );
    assert_eq!(ours[32..48], octets("00000000000000000000ffff 0a4d0001"));
}

fn octets(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let value = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(value).collect()
}

#[test]
fn the_figures_are_those_of_the_last_result() {
    let mut figures = Vec::new();
    for n in 0..12_u64 {
        keep(&mut figures, &n.to_be_bytes());
        keep(&mut figures, &[1; RECORD]);
    }
    assert_eq!(figures, [10, 11]);
}

/// The client's end of one connection to the server.
struct End {
    queue: CompletionQueue,
    pair: QueuePair,
    memory: MemoryRegion,
}

impl End {
    fn call(device: &Device, at: SocketAddr, depth: u16) -> Self {
        let domain = device.protection_domain().unwrap();
        let queue = device.completion_queue(16).unwrap();
        let pair = domain.queue_pair(&PairOptions::new(&queue)).unwrap();
        let memory = domain.register(1 << 16, Access::LOCAL).unwrap();
        receive(&pair, &memory).unwrap();
        let options = ConnectOptions { ird: depth, ord: depth, ..ConnectOptions::default() };
        pair.connect(at, options, PATIENCE).unwrap();
        Self { queue, pair, memory }
    }

    /// Posts a request, waits for the completion of `until`, and returns the memory's content.
    fn run(&self, op: SendOp, octets: &[u8], until: Completed) -> Vec<u8> {
        self.memory.write(0, octets).unwrap();
        let request = SendRequest::new(0, op, self.memory.sge(0..octets.len()));
        self.pair.post_send(request).unwrap();
        let completion = loop {
            let completion = self.queue.wait(PATIENCE).unwrap();
            completion.result().unwrap();
            if completion.completed == until {
                break completion;
            }
        };
        let mut came = vec![0; completion.len as usize];
        self.memory.read(0, &mut came).unwrap();
        if until == Completed::Recv {
            receive(&self.pair, &self.memory).unwrap();
        }
        came
    }

    /// Sends `octets` and returns the bytes of the answer.
    fn exchange(&self, octets: &[u8]) -> Vec<u8> {
        self.run(SendOp::Send, octets, Completed::Recv)
    }

    fn leave(self) {
        self.pair.disconnect().unwrap();
        assert!(self.pair.disconnected(PATIENCE));
    }
}

/// Runs `client` with a device and the address of a server. Returns the result of that server.
fn served(client: impl FnOnce(&Device, SocketAddr)) -> Result<Served, Fail> {
    let device = Device::open(Options::default()).unwrap();
    let listener = device.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let at = listener.local_addr();
    let server = thread::spawn(move || serve(&device, &listener, 1 << 16));
    client(&Device::open(Options::default()).unwrap(), at);
    server.join().unwrap()
}

/// Runs the start-up of perftest's client until the server sends the record of its memory.
fn start(device: &Device, at: SocketAddr) -> (End, End, Remote) {
    let control = End::call(device, at, 0);
    let version = b"6.20\0\0\0\0\0\0\0\0\0\0\0\0";
    assert_eq!(control.exchange(version), OUR_VERSION);
    assert_eq!(control.exchange(&4096_u32.to_be_bytes()), [0, 0, 16, 0]);
    assert_eq!(control.exchange(b"3\0"), b"3\0");
    let before = control.exchange(&[0; RECORD]);
    assert_eq!((before.len(), &before[4..12]), (RECORD, &[0; 8][..]), "no data connection yet");
    let data = End::call(device, at, 16);
    let record = control.exchange(&[0; RECORD]);
    assert_eq!(record[4..8], [0, 0, 0, 16], "reads are served as deep as was asked for");
    let word = |at: usize| u32::from_be_bytes(record[at..at + 4].try_into().unwrap());
    (control, data, Remote { stag: Stag(word(16)), addr: u64::from(word(28)) })
}

#[test]
fn sends_come_back_as_they_are() {
    let served = served(|device, at| {
        let (control, data, _) = start(device, at);
        for octets in [&b"twelve octets"[..], &[7; 65_536], &[]] {
            assert!(data.exchange(octets) == octets);
            assert_eq!(control.exchange(&[0; RECORD]).len(), RECORD, "before the next size");
        }
        data.leave();
        control.leave();
    });
    let served = served.unwrap();
    assert_eq!((served.sends, served.figures.len()), (3, 0));
}

#[test]
fn writes_are_there_and_reads_get_them_and_the_figures_are_told() {
    let served = served(|device, at| {
        let (control, data, memory) = start(device, at);
        data.run(SendOp::Write(memory), b"what is written", Completed::Write);
        assert_eq!(data.run(SendOp::Read(memory), &[0; 15], Completed::Read), b"what is written");
        control.exchange(&[0; RECORD]);
        for figure in [65_536, 5000, 2.5_f64.to_bits(), 1.25_f64.to_bits(), 0] {
            assert_eq!(control.exchange(&figure.to_be_bytes()), figure.to_be_bytes());
        }
        control.exchange(&[0; RECORD]);
        data.leave();
        control.leave();
    });
    let text = served.unwrap().to_string();
    assert!(
        text.ends_with("; its figures: 5000 messages of 65536 octets, 1.25 MB/s, 2.50 at best"),
        "{text}"
    );
}

#[test]
fn a_test_that_breaks_a_rule_is_an_error() {
    let beside = served(|device, at| {
        let (control, data, memory) = start(device, at);
        let end = Remote { addr: memory.addr + (1 << 16) - 1, ..memory };
        let write = SendRequest::new(0, SendOp::Write(end), data.memory.sge(0..2));
        data.pair.post_send(write).unwrap();
        assert!(data.pair.disconnected(PATIENCE));
        assert!(control.pair.disconnected(PATIENCE));
    });
    let error = beside.unwrap_err().to_string();
    assert!(
        error.contains("we ended the connection: 1/1/01 ("),
        "by a Terminate, in words: {error}"
    );
}

/// Serves a client after two connections that are no clients: one that only probes the port, and
/// one that speaks HTTP. Such connections once ended the server.
#[test]
fn who_is_no_client_is_passed_over() {
    let served = served(|device, at| {
        accept::connect_others(at);
        End::call(device, at, 0).leave();
        let long = End::call(device, at, 0);
        let send = SendRequest::new(0, SendOp::Send, long.memory.sge(0..RECORD + 1));
        long.pair.post_send(send).unwrap();
        assert!(long.pair.disconnected(PATIENCE), "its message is too long");
        let control = End::call(device, at, 0);
        // This connection ends before the data connection.
        accept::connect_others(at);
        control.exchange(&[0; RECORD]);
        let data = End::call(device, at, 16);
        assert_eq!(data.exchange(b"a message"), b"a message");
        data.leave();
        control.leave();
    });
    assert_eq!(served.unwrap().sends, 1);
}
