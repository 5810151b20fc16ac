use proptest::prelude::*;
use sprat_proto::device::Mac;

use super::*;

fn one(text: &str) -> Locator {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn refused(text: &str) -> String {
    let locator = match text.parse::<Locator>() {
        Ok(locator) => locator,
        Err(e) => return e.to_string(),
    };
    locator.kind().expect_err(text).to_string()
}

#[test]
fn the_three_protocols() {
    assert_eq!(one("fast+shm:name=kv").kind(), Ok(Kind::Shm { name: "kv".into() }));
    let at = |host: &str, port| HostPort { host: host.into(), port };
    assert_eq!(
        one("fast+udp:host=127.0.0.1,port=7000").kind(),
        Ok(Kind::Udp { at: at("127.0.0.1", 7000), crc: true })
    );
    assert_eq!(one("tcp: host = localhost , port = 0").kind(), Ok(Kind::Tcp(at("localhost", 0))));
    assert_eq!(one("tcp:port=1,host=[::1]").kind(), Ok(Kind::Tcp(at("::1", 1))));
    assert_eq!(one("tcp:port=1,host=::1").kind(), Ok(Kind::Tcp(at("::1", 1))));
    let fast = one("fast+udp:host=h,port=1");
    assert_eq!(
        (fast.protocol(), fast.transport(), fast.driver()),
        ("fast+udp", "fast", Some("udp"))
    );
    assert_eq!((one("tcp:").transport(), one("tcp:").driver()), ("tcp", None));
}

#[test]
fn escapes_quotes_spaces_and_duplicates() {
    let l = one(r#"x: a=\"b\,c\;d\\e\f , b="q,;\"\\\n " ,a2= two words ,b2="", c=\ s\  , d=1,d=2"#);
    assert_eq!(l.option("a"), Some(r#""b,c;d\e\f"#));
    assert_eq!(l.option("b"), Some(r#"q,;"\\n "#));
    assert_eq!(l.option("a2"), Some("two words"));
    assert_eq!(l.option("b2"), Some(""));
    assert_eq!(l.option("c"), Some(" s "));
    assert_eq!(l.option("d"), Some("2"));
    assert_eq!(l.option("e"), None);
    assert_eq!(one(&l.to_string()), l);
}

#[test]
fn lists() {
    let all = Locator::list("tcp:host=a,port=1 ; fast+shm:name=b;x:").expect("a list");
    let texts: Vec<_> = all.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["tcp:host=a,port=1", "fast+shm:name=b", "x:"]);
    assert_eq!(
        refused("tcp:;tcp:"),
        "bad locator \"tcp:;tcp:\": expected one locator, not a list at byte 0"
    );
}

#[test]
fn what_is_wrong_is_named() {
    for (text, message) in [
        ("", "bad locator \"\": expected a protocol (letters, digits, _ and +) at byte 0"),
        ("tcp", "bad locator \"tcp\": expected ':' at byte 3"),
        ("tcp:host", "bad locator \"tcp:host\": expected '=' at byte 8"),
        (
            "tcp:host=a,",
            "bad locator \"tcp:host=a,\": expected a key (letters, digits and _) at byte 11",
        ),
        ("tcp:host=\"a", "bad locator \"tcp:host=\\\"a\": expected '\"' at byte 11"),
        (
            "tcp:host=\"a\"b",
            "bad locator \"tcp:host=\\\"a\\\"b\": expected ',', ';' or the end at byte 12",
        ),
        (
            "x:a=b;",
            "bad locator \"x:a=b;\": expected a protocol (letters, digits, _ and +) at byte 6",
        ),
        ("tcp:port=1", "tcp needs host=…"),
        ("tcp:host=a", "tcp needs port=…"),
        ("tcp:host=a,port=65536", "port=\"65536\": a number up to 65535"),
        ("tcp:host=a,port=+1", "port=\"+1\": a number up to 65535"),
        ("tcp:host=a,port=", "port=\"\": a number up to 65535"),
        ("tcp:host=a,port=1,mac=2", "tcp has no key \"mac\"; its keys are host, port"),
        ("fast+shm:name=a,port=2", "fast+shm has no key \"port\"; its keys are name"),
        ("fast+shm:", "fast+shm needs name=…"),
        ("rdma:host=a,port=1,crc=no", "crc=\"no\": on or off"),
        ("rdma:host=a,port=1,mtu=2", "rdma has no key \"mtu\"; its keys are host, port, crc"),
        ("tcp:host=a,port=1,crc=off", "tcp has no key \"crc\"; its keys are host, port"),
    ] {
        assert_eq!(refused(text), message);
    }
    assert!(refused("fast+udp:host=,port=1").starts_with("host=\"\": a host's name"));
    assert!(refused("fast+shm:name=../x").starts_with("name=\"../x\": 1 to 64 letters"));
    assert!(refused("fast+shm:name=.x").starts_with("name="));
    assert_eq!(Locator::list(&"x".repeat(MAX_LEN + 1)), Err(LocatorError::TooLong(MAX_LEN + 1)));
}

#[test]
fn planned_protocols_are_told_from_unknown_ones() {
    for planned in ["utcp+shm", "rdma+shm", "utcp+tcp"] {
        assert_eq!(
            Locator::new(planned, &[]).and_then(|l| l.kind()),
            Err(LocatorError::NotBuilt(planned.into()))
        );
    }
    for unknown in ["fast", "fast+carrier", "http", "+", "udp"] {
        let e = Locator::new(unknown, &[]).and_then(|l| l.kind()).expect_err(unknown);
        assert_eq!(e, LocatorError::UnknownProtocol(unknown.into()));
        assert!(e.to_string().contains("fast+shm:name=N"), "{e}");
    }
}

#[test]
fn each_worker_has_its_own() {
    let worker = |text: &str, i| one(text).worker(i).map(|l| l.to_string());
    assert_eq!(worker("fast+shm:name=a", 0).as_deref(), Ok("fast+shm:name=a"));
    assert_eq!(worker("fast+shm:name=a", 2).as_deref(), Ok("fast+shm:name=a.2"));
    assert_eq!(worker("tcp:host=a,port=10", 3).as_deref(), Ok("tcp:host=a,port=13"));
    assert_eq!(worker("tcp:host=a,port=0", 3).as_deref(), Ok("tcp:host=a,port=0"));
    assert_eq!(
        worker("rdma:host=a,port=10,crc=off", 3).as_deref(),
        Ok("rdma:host=a,port=13,crc=off")
    );
    assert!(worker("tcp:host=a,port=65535", 1).is_err());
}

#[test]
fn a_crc_unless_told_otherwise() {
    let crc = |text: &str| match one(text).kind() {
        Ok(Kind::Rdma { at, crc } | Kind::Udp { at, crc }) => (at.port, crc),
        Ok(Kind::Device(port)) => (port.at.port, port.crc),
        other => panic!("{other:?}"),
    };
    for protocol in ["rdma:", "fast+udp:", "fast+memif:socket=/s,", "fast+shmnet:name=s,"] {
        assert_eq!(crc(&format!("{protocol}host=a,port=1")), (1, true));
        assert_eq!(crc(&format!("{protocol}host=a,port=1,crc=on")), (1, true));
        assert_eq!(crc(&format!("{protocol}host=a,port=1,crc=off")), (1, false));
        assert_eq!(refused(&format!("{protocol}host=a,port=1,crc=0")), "crc=\"0\": on or off");
    }
    // Expect: what goes over a wire by our own IP stack has one.
    for protocol in [
        "fast+packet:dev=a",
        "fast+xdp:dev=a",
        "fast+tap:dev=a",
        "fast+dpdk:dev=a",
        "fast+bond:dev=a,with=b",
    ] {
        assert!(
            refused(&format!("{protocol},host=a,port=1,crc=off")).contains("has no key \"crc\"")
        );
    }
}

#[test]
fn ports_of_our_own_stack_on_devices() {
    let device = |text: &str| match one(text).kind() {
        Ok(Kind::Device(port)) => port,
        other => panic!("{other:?}"),
    };
    let plain = device("fast+packet:dev=eth0,host=10.0.0.1,port=7");
    assert_eq!((plain.driver, plain.dev.as_str(), plain.at.port), ("packet", "eth0", 7));
    assert_eq!((plain.mac, plain.prefix, plain.gateway), (None, 0, None));
    let full =
        device("fast+xdp:dev=e,host=[fd00::1],port=0,mac=2:0:0:0:0:FF,prefix=64,gateway=fd00::2");
    assert_eq!((full.driver, full.mac, full.prefix), ("xdp", Some(Mac([2, 0, 0, 0, 0, 255])), 64));
    assert_eq!((full.at.host.as_str(), full.gateway), ("fd00::1", "fd00::2".parse().ok()));
    let memif = device("fast+memif:socket=/run/s,host=10.0.0.1,port=7");
    assert_eq!((memif.driver, memif.dev.as_str()), ("memif", "/run/s"));
    for (text, message) in [
        ("fast+packet:host=h,port=1", "fast+packet needs dev=…"),
        ("fast+memif:host=h,port=1", "fast+memif needs socket=…"),
        ("fast+xdp:dev=,host=h,port=1", "dev=\"\": a name"),
        (
            "fast+xdp:dev=e,host=h,port=1,prefix=129",
            "prefix=\"129\": the number of bits that neighbours share, up to 32 or 128",
        ),
        (
            "fast+xdp:dev=e,queue=+1,host=h,port=1",
            "queue=\"+1\": the number of one of the interface's queues, counted from 0",
        ),
        (
            "fast+xdp:dev=e,queue=4096,host=h,port=1",
            "queue=\"4096\": the number of one of the interface's queues, counted from 0",
        ),
        ("fast+xdp:dev=e,host=h,port=1,gateway=g", "gateway=\"g\": an IPv4 or IPv6 address"),
    ] {
        assert_eq!(refused(text), message);
    }
    for mac in [
        "",
        "1:2:3:4:5",
        "2:0:0:0:0:0:0",
        "1:0:0:0:0:0",
        "0:0:0:0:0:0",
        "2:0:0:0:0:100",
        "2:0:0:0:0:+1",
    ] {
        assert!(
            refused(&format!("fast+packet:dev=e,host=h,port=1,mac=\"{mac}\"")).starts_with("mac="),
            "{mac}"
        );
    }
    let worker = |text: &str| one(text).worker(2).map(|l| l.to_string());
    assert_eq!(
        worker("fast+xdp:dev=e,host=h,port=1").as_deref(),
        Ok("fast+xdp:dev=e,host=h,port=3")
    );
    assert_eq!(device("fast+xdp:dev=e,queue=7,host=h,port=1").queue, Some(7));
    assert_eq!(
        worker("fast+xdp:dev=e,queue=1,host=h,port=0").as_deref(),
        Ok("fast+xdp:dev=e,queue=3,host=h,port=0")
    );
    assert_eq!(
        worker("fast+memif:socket=s,host=h,port=1").as_deref(),
        Ok("fast+memif:socket=s.2,host=h,port=1")
    );
}

#[test]
fn devices_that_are_made_or_shared_and_two_as_one() {
    let device = |text: &str| match one(text).kind() {
        Ok(Kind::Device(port)) => port,
        other => panic!("{other:?}"),
    };
    let tap = device("fast+tap:dev=t,bridge=br0,host=10.0.0.1,port=7");
    assert_eq!((tap.driver, tap.dev.as_str(), tap.bridge.as_deref()), ("tap", "t", Some("br0")));
    let shm = device("fast+shmnet:name=lab,host=10.0.0.1,port=7");
    assert_eq!((shm.driver, shm.dev.as_str()), ("shm", "lab"));
    let dpdk =
        device("fast+dpdk:dev=\"net_af_packet0,iface=e\",eal=\"-l 0 --no-huge\",host=h,port=7");
    assert_eq!((dpdk.driver, dpdk.dev.as_str()), ("dpdk", "net_af_packet0,iface=e"));
    assert_eq!(dpdk.eal, ["-l", "0", "--no-huge"]);
    let bond = device("fast+bond:dev=a,with=b,host=h,port=7");
    assert_eq!((bond.driver, bond.dev.as_str(), bond.with.as_deref()), ("packet", "a", Some("b")));
    assert_eq!(device("fast+bond:dev=a,with=b,of=xdp,host=h,port=7").driver, "xdp");
    for (text, message) in [
        ("fast+bond:dev=a,host=h,port=1", "fast+bond needs with=…"),
        (
            "fast+bond:dev=a,with=a,host=h,port=1",
            "with=\"a\": the second device, another one than dev",
        ),
        (
            "fast+bond:dev=a,with=b,of=tap,host=h,port=1",
            "of=\"tap\": what both devices are: packet (the default), xdp, memif or dpdk",
        ),
        (
            "fast+tap:dev=a,with=b,host=h,port=1",
            "fast+tap has no key \"with\"; \
             its keys are dev, bridge, host, port, mac, prefix, gateway, pcap",
        ),
        (
            "fast+shmnet:name=../x,host=h,port=1",
            "name=\"../x\": 1 to 64 letters, digits, dots, underscores and hyphens, \
             without a dot at the start",
        ),
    ] {
        assert_eq!(refused(text), message);
    }
    let worker = |text: &str| one(text).worker(2).map(|l| l.to_string());
    for (first, third) in [
        ("fast+shmnet:name=n,host=h,port=1", "fast+shmnet:name=n.2,host=h,port=1"),
        ("fast+tap:dev=t,host=h,port=1", "fast+tap:dev=t.2,host=h,port=1"),
        ("fast+bond:dev=a,with=b,host=h,port=1", "fast+bond:dev=a,with=b,host=h,port=3"),
        (
            "fast+bond:dev=a,with=b,of=memif,host=h,port=1",
            "fast+bond:dev=a.2,with=b.2,of=memif,host=h,port=1",
        ),
    ] {
        assert_eq!(worker(first).as_deref(), Ok(third));
    }
}

#[test]
fn loopback_unless_told_otherwise() {
    let at = |host: &str| HostPort { host: host.into(), port: 9 };
    assert_eq!(
        at("127.0.0.1").allowed(false).expect("loopback"),
        ["127.0.0.1:9".parse().expect("an address")]
    );
    assert_eq!(
        at("::1").allowed(false).expect("loopback"),
        ["[::1]:9".parse().expect("an address")]
    );
    assert_eq!(at("::ffff:127.0.0.1").allowed(false).expect("loopback").len(), 1);
    assert!(!at("localhost").allowed(false).expect("loopback").is_empty());
    for elsewhere in ["192.0.2.1", "0.0.0.0", "::", "2001:db8::1"] {
        let e = at(elsewhere).allowed(false).expect_err(elsewhere);
        assert_eq!(e.kind(), io::ErrorKind::PermissionDenied);
        assert!(e.to_string().contains("--insecure-network"), "{e}");
        assert_eq!(at(elsewhere).allowed(true).expect(elsewhere).len(), 1);
    }
}

proptest! {
    #[test]
    fn round_trip(
        protocol in "[a-z+_0-9]{1,8}",
        options in proptest::collection::vec(("[a-z_0-9]{1,6}", any::<String>()), 0..5),
    ) {
        let pairs: Vec<_> = options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let locator = Locator::new(&protocol, &pairs).expect("valid parts");
        let text = locator.to_string();
        prop_assume!(text.len() <= MAX_LEN);
        prop_assert_eq!(text.parse::<Locator>().expect(&text), locator);
    }

    #[test]
    fn no_text_panics(text in any::<String>(), tail in r#"[a-z+:=,;"\\ ]{0,40}"#) {
        let both = [format!("{text}{tail}"), format!("tcp:{tail}{text}")];
        for text in [text, tail].into_iter().chain(both) {
            if let Ok(all) = Locator::list(&text) {
                for l in all {
                    let _ = l.kind();
                    prop_assert_eq!(l.to_string().parse::<Locator>(), Ok(l));
                }
            }
        }
    }
}
