//! Tests of the baselines of packet devices, and of the kernel's baseline over the same wire.

use sprat::internals::device::{Options, memif, open};
use sprat_bench::baseline::{self, Kernel, Limits, Open, Waiting};
use sprat_proto::time::SECOND;
use sprat_sys::netns::{DEV, Wire};

const FEW: Limits = Limits { count: 50, time_ns: 20 * SECOND };

fn both(ends: impl Fn() -> [Open<'static>; 2]) {
    for payload in [8, 136, 1472] {
        assert_eq!(baseline::device(ends(), payload, FEW).unwrap().len(), FEW.count);
    }
    let flow = baseline::device_stream(ends(), FEW).unwrap();
    assert!(flow.bytes >= 50 * 1472 && flow.bytes_per_s() > 0.0, "{flow:?}");
}

pub(crate) fn on_wire(driver: &'static str) {
    let wire = std::sync::Arc::new(Wire::new(1500).unwrap());
    both(|| {
        [0, 1].map(|i| -> Open<'static> {
            let wire = std::sync::Arc::clone(&wire);
            Box::new(move || {
                let _inside = wire.end(i).enter()?;
                Ok(open(driver, &Options { dev: DEV.into(), ..Options::default() })?)
            })
        })
    });
}

pub(crate) fn on_memif() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("memif");
    both(|| {
        [memif::Role::Server, memif::Role::Client].map(|role| -> Open<'static> {
            let memif = memif::Options::new(role, &socket);
            Box::new(move || {
                Ok(open("memif", &Options { memif: Some(memif), ..Options::default() })?)
            })
        })
    });
}

pub(crate) fn kernel() {
    let wire = Wire::new(1500).unwrap();
    let kernel = Kernel::over(&wire);
    for waiting in [Waiting::Polling, Waiting::Blocking] {
        assert_eq!(kernel.udp(100, waiting, FEW).unwrap().len(), FEW.count);
        assert_eq!(kernel.tcp_exchange(32, 100_000, waiting, FEW).unwrap().len(), FEW.count);
    }
    assert!(
        kernel.udp_stream(1472, FEW).unwrap().bytes > 0
            && kernel.tcp_stream(64_000, FEW).unwrap().bytes > 0
    );
}
