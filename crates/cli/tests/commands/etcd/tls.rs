//! Coordinators with an etcd that has TLS and wants certificates of its clients.

use std::fs;
use std::path::Path;
use std::process::Command;

use sprat_bench::process::wait_until;
use tempfile::TempDir;

use super::{Etcd, Stack};
use crate::cluster::{PATIENCE, errors, run, text, unique};

/// Certificates and their keys in a folder, made by OpenSSL.
struct Certificates<'a>(&'a Path);

impl Certificates<'_> {
    fn openssl(&self, args: &[&str]) {
        let output = Command::new("openssl").current_dir(self.0).args(args).output();
        let output = output.expect("scripts/tools --etcd installs openssl");
        assert!(output.status.success(), "{args:?}: {}", errors(&output));
    }

    /// Makes a key and what `args` add to it.
    fn request(&self, name: &str, args: &[&str]) {
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout"];
        let (file, subject) = (format!("{name}.key"), format!("/CN={name}"));
        self.openssl(&[&["req"], &key[..], &[&file, "-subj", &subject], args].concat());
    }

    /// Makes an authority that signs itself.
    fn authority(&self, name: &str) {
        self.request(name, &["-x509", "-days", "2", "-out", &format!("{name}.pem")]);
    }

    /// Makes a certificate that the authority `ca` signs. `days` below 0 have passed.
    fn signed(&self, name: &str, of: &str, days: &str) {
        let [request, extensions, out] = ["csr", "ext", "pem"].map(|end| format!("{name}.{end}"));
        self.request(name, &["-new", "-out", &request]);
        let uses = format!("subjectAltName={of}\nextendedKeyUsage=serverAuth,clientAuth\n");
        fs::write(self.0.join(&extensions), uses).expect("the folder is ours");
        let by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"];
        let args = ["-in", &request, "-days", days, "-extfile", &extensions, "-out", &out];
        self.openssl(&[&["x509", "-req"], &by[..], &args].concat());
    }

    /// Gives etcd this certificate. It reads the files at each handshake.
    fn give(&self, name: &str) {
        for end in ["key", "pem"] {
            let new = self.0.join("new");
            fs::copy(self.0.join(format!("{name}.{end}")), &new).expect("it was made");
            fs::rename(new, self.0.join(format!("etcd.{end}"))).expect("the folder is ours");
        }
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path in UTF-8").to_owned()
    }

    /// Returns keys of `--state` for these files.
    fn keys(&self, ca: &str, identity: Option<(&str, &str)>) -> String {
        let identity = identity.map_or_else(String::new, |(cert, key)| {
            format!(",cert={},key={}", self.path(cert), self.path(key))
        });
        format!(",ca={}{identity}", self.path(ca))
    }
}

/// The words about a certificate that etcd does not accept. The reason between them is etcd's alert
/// if it arrives before the end of the connection.
const CLIENT: [&str; 2] = ["does not answer", "cert=FILE,key=FILE"];

/// Starts a coordinator that must not start, and checks that it says these words.
fn fails(etcd: &Etcd, keys: &str, said: &[&str]) {
    let locator = format!("tcp:host=127.0.0.1,port={}", unique(1).1);
    let output = run(&["coordinator", "-C", &locator, "--state", &(etcd.state() + keys)]);
    let errors = errors(&output);
    assert!(!output.status.success(), "{keys}: {}", text(&output));
    assert!(said.iter().all(|words| errors.contains(words)), "{keys}: {errors}");
}

/// A wrong certificate on either side is named, at the start and later. With right ones a
/// coordinator leads.
#[test]
fn certificates_of_etcd_and_of_coordinators_must_be_right() {
    let folder: TempDir = tempfile::tempdir().expect("a temporary folder");
    let place = folder.path().to_owned();
    let made = Certificates(&place);
    made.authority("ca");
    made.authority("other");
    made.signed("right", "IP:127.0.0.1", "2");
    made.signed("expired", "IP:127.0.0.1", "-1");
    made.signed("elsewhere", "DNS:elsewhere.example", "2");
    made.give("right");
    let path = |name: &str| made.path(name);
    let (ca, cert, key) = (path("ca.pem"), path("etcd.pem"), path("etcd.key"));
    let options = ["--client-cert-auth", "--trusted-ca-file", &ca, "--cert-file", &cert];
    let options = [&options[..], &["--key-file", &key]].concat();
    let etcd = Etcd::start_in(folder, "https", 1, &options);
    let right = made.keys("ca.pem", Some(("right.pem", "right.key")));

    let cases = [
        (made.keys("other.pem", None), ["UnknownIssuer", "ca=FILE"]),
        (made.keys("ca.pem", None), CLIENT),
        (String::new(), ["does not answer", "needs ca=FILE"]),
        (made.keys("ca.pem", Some(("other.pem", "other.key"))), CLIENT),
        (made.keys("ca.pem", Some(("expired.pem", "expired.key"))), CLIENT),
        (made.keys("ca.key", None), ["ca.key", "it has no CERTIFICATE"]),
        (made.keys("none.pem", None), ["none.pem", "mend its hosts or files"]),
    ];
    let etcd_at = &etcd;
    std::thread::scope(|scope| {
        for (keys, said) in &cases {
            scope.spawn(move || fails(etcd_at, keys, said));
        }
    });
    let mut stack = Stack::over(etcd, 2, &right);

    // The coordinators run on when etcd comes back with a wrong certificate.
    for (name, why) in [("expired", "Expired"), ("elsewhere", "elsewhere.example")] {
        made.give(name);
        stack.etcd.members.clear();
        stack.etcd.run();
        let mut said = String::new();
        let clear = wait_until(PATIENCE, || {
            said = stack.refused("meanwhile");
            said.contains(why)
        });
        assert!(clear, "{said}");
    }
    fails(&stack.etcd, &right, &["elsewhere.example", "mend etcd's certificate"]);
    made.give("right");
    stack.creates("second");
    stack.lives();
    assert!(stack.tables().contains("first"));
}
