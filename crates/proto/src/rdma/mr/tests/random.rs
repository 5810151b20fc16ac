//! Tests of steering tags by random operations against plain lists.

use super::*;

/// The oracle's knowledge of a tag that was ever made, and the memory behind each of its 64 bytes.
#[derive(Clone)]
struct Known {
    stag: Stag,
    made: Made,
    pd: Pd,
    gone: bool,
    /// The memory behind each of the tag's 64 addresses, if the tag is valid.
    bytes: Option<[Option<u64>; 64]>,
    access: Access,
    qp: Option<Qp>,
    parent: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Region,
    Fast,
    Shared,
    Own,
}

struct Oracle {
    regions: Regions,
    rng: Rng,
    pds: [Pd; 2],
    known: Vec<Known>,
    /// The number of checks that the engine granted.
    granted: u32,
}

impl Oracle {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::seeded(seed);
        let mut regions = Regions::new(rng.fork(), 1 << 16, 1 << 20);
        let pds = [(); 2].map(|()| regions.alloc_pd().expect("there is room"));
        Self { regions, rng, pds, known: Vec::new(), granted: 0 }
    }

    fn access(&mut self) -> Access {
        let bits = self.rng.below(32);
        let bit = |n: u64| bits >> n & 1 == 1;
        Access { bind: bit(4), ..rights(bit(0) || bit(1) || bit(3), bit(1), bit(2), bit(3)) }
    }

    fn stream(&mut self) -> TagUser {
        stream(self.pds[self.rng.below(2) as usize], self.rng.below(3) as u32)
    }

    /// A random part of the 64 addresses: its first address and its length.
    fn range(&mut self) -> (u64, u64) {
        let from = self.rng.below(64);
        (from, 1 + self.rng.below(64 - from))
    }

    /// A random user of the tag `at` and a range to check it with: mostly in the tag's own domain
    /// and range, sometimes anywhere.
    fn about(&mut self, at: usize) -> (TagUser, u64, u64) {
        let (mut by, (mut addr, mut len)) = (self.stream(), self.range());
        let Known { pd, qp, bytes, .. } = self.known[at];
        if self.rng.chance(800_000) {
            by = stream(pd, qp.filter(|_| self.rng.chance(700_000)).unwrap_or(by.qp).0);
        }
        if let Some(bytes) = bytes.filter(|_| self.rng.chance(700_000)) {
            let base = bytes.iter().position(Option::is_some).unwrap_or(0) as u64;
            let inside = bytes.iter().flatten().count() as u64;
            let skip = self.rng.below(inside);
            (addr, len) = (base + skip, 1 + self.rng.below(inside - skip));
        }
        (by, addr, len)
    }

    fn make(&mut self) {
        let pd = self.stream().pd;
        let access = self.access();
        let (base, len) = self.range();
        let (made, stag) = match self.rng.below(4) {
            0 => (Made::Region, self.regions.register(pd, 0, base, len, access)),
            1 => (Made::Fast, self.regions.alloc_fast(pd)),
            2 => (Made::Shared, self.regions.alloc_window(pd, WindowKind::Domain)),
            _ => (Made::Own, self.regions.alloc_window(pd, WindowKind::OneQp)),
        };
        let bytes = (made == Made::Region).then(|| bytes(base, len, 0));
        let stag = stag.expect("it is sound");
        self.known.push(Known {
            stag,
            made,
            pd,
            gone: false,
            bytes,
            access,
            qp: None,
            parent: None,
        });
    }

    fn windows_on(&self, at: usize) -> bool {
        self.known.iter().any(|k| k.parent == Some(at) && k.bytes.is_some())
    }

    fn end(&mut self, at: usize) {
        let Known { stag, made, gone, .. } = self.known[at];
        let busy = self.windows_on(at);
        // All tags except regions are found under any key.
        let any_key = Stag(stag.0 & !0xff | self.rng.below(256) as u32);
        let ended = match made {
            Made::Region => self.regions.deregister(stag),
            Made::Fast => self.regions.deregister(any_key),
            Made::Shared | Made::Own => self.regions.dealloc_window(any_key),
        };
        assert_eq!(ended.is_ok(), !gone && !busy);
        if ended.is_ok() {
            self.known[at].gone = true;
            self.known[at].bytes = None;
        }
    }

    fn invalidate(&mut self, at: usize) {
        let (by, ..) = self.about(at);
        let Known { stag, made, pd, gone, bytes, access, qp, .. } = self.known[at];
        let busy = self.windows_on(at);
        let ours = !gone && pd == by.pd && !busy && matches!(made, Made::Fast | Made::Own);
        let ok = if self.rng.chance(500_000) {
            let remote = access.remote_write || access.remote_read || access.remote_atomic;
            let done = self.regions.remote_invalidate(by, stag);
            assert_eq!(done.is_ok(), ours && bytes.is_some() && qp == Some(by.qp) && remote);
            done.is_ok()
        } else {
            let done = self.regions.invalidate(by, stag);
            assert_eq!(done.is_ok(), ours && (bytes.is_none() || qp == Some(by.qp)));
            done.is_ok()
        };
        if ok {
            self.known[at].bytes = None;
        }
    }

    fn fast_register(&mut self, at: usize) {
        let ((by, ..), access, (base, len)) = (self.about(at), self.access(), self.range());
        let offset = self.rng.below(1_000);
        let stag = Stag(self.known[at].stag.0 & !0xff | self.rng.below(256) as u32);
        let part = Extent { region: 0, offset, base, len };
        let done = self.regions.fast_register(by, stag, part, access);
        let known = &mut self.known[at];
        let free =
            known.made == Made::Fast && !known.gone && known.bytes.is_none() && known.pd == by.pd;
        assert_eq!(done.is_ok(), free);
        if free {
            *known = Known {
                stag,
                bytes: Some(bytes(base, len, offset)),
                access,
                qp: Some(by.qp),
                ..known.clone()
            };
        }
    }

    fn bind(&mut self, at: usize, to: usize) {
        let ((by, addr, len), access) = (self.about(to), self.access());
        let len = if self.rng.chance(200_000) { 0 } else { len };
        let stag = Stag(self.known[at].stag.0 & !0xff | self.rng.below(256) as u32);
        let (window, region) = (self.known[at].clone(), self.known[to].clone());
        let own = window.made == Made::Own;
        let window_ok =
            !window.gone && window.pd == by.pd && matches!(window.made, Made::Own | Made::Shared);
        let state_ok = !own || window.bytes.is_none() || (len == 0 && window.qp == Some(by.qp));
        let part =
            region.bytes.map(|o| core::array::from_fn(|i| o[i].filter(|_| within(i, addr, len))));
        let whole = part.is_some_and(|p: [_; 64]| p.iter().flatten().count() as u64 == len);
        let writes = access.remote_write || access.remote_atomic;
        let region_ok = region.pd == by.pd
            && matches!(region.made, Made::Region | Made::Fast)
            && (region.access.bind && whole && (region.access.local_write || !writes));
        let done = self.regions.bind(by, stag, region.stag, addr, len, access);
        assert_eq!(done.is_ok(), window_ok && state_ok && (len == 0 || region_ok));
        if done.is_ok() {
            let bytes = part.filter(|_| len > 0);
            let (qp, parent) = (own.then_some(by.qp), Some(to));
            self.known[at] = Known { stag, bytes, access, qp, parent, ..window };
        }
    }

    fn release(&mut self) {
        let qp = self.stream().qp;
        self.regions.release_qp(qp);
        let gone = |k: &Known| k.qp == Some(qp);
        for at in 0..self.known.len() {
            let parent = self.known[at].parent.filter(|&p| gone(&self.known[p]));
            if gone(&self.known[at]) || parent.is_some() {
                self.known[at].bytes = None;
            }
        }
    }

    /// Checks a random range of a tag and compares the engine's answer with the lists.
    fn ask(&mut self, at: usize) {
        let (by, addr, len) = self.about(at);
        let Known { stag, made, pd, bytes, access, qp, .. } = self.known[at];
        let wanted = bytes.map(|o| o[addr as usize..(addr + len) as usize].to_vec());
        let inside = wanted.filter(|w| w.iter().all(Option::is_some)).map(|w| w[0]);
        let found = |ok: bool| {
            inside.flatten().filter(|_| ok).map(|offset| Span {
                region: 0,
                offset,
                len: len as u32,
            })
        };
        let here = pd == by.pd && qp.is_none_or(|qp| qp == by.qp);
        for (right, has) in [(Right::Write, access.remote_write), (Right::Read, access.remote_read)]
        {
            let answer = self.regions.remote(by, stag, addr, len as u32, right).ok();
            assert_eq!(answer, found(here && has));
            self.granted += u32::from(answer.is_some());
        }
        let window = matches!(made, Made::Shared | Made::Own);
        let sge = Sge { stag, addr, len: len as u32 };
        for write in [false, true] {
            let ok = pd == by.pd && !window && (access.local_write || !write);
            assert_eq!(self.regions.local(by.pd, sge, write).ok(), found(ok));
        }
    }
}

fn within(at: usize, addr: u64, len: u64) -> bool {
    (at as u64) >= addr && (at as u64) < addr + len
}

fn bytes(base: u64, len: u64, offset: u64) -> [Option<u64>; 64] {
    core::array::from_fn(|i| within(i, base, len).then(|| offset + i as u64 - base))
}

#[test]
fn random_operations_match_plain_lists() {
    let mut granted = 0;
    for seed in 0..100 {
        let mut oracle = Oracle::new(seed);
        oracle.make();
        for _ in 0..400 {
            let count = oracle.known.len() as u64;
            let (at, to) = (oracle.rng.below(count) as usize, oracle.rng.below(count) as usize);
            match oracle.rng.below(20) {
                0..=1 => oracle.make(),
                2 => oracle.end(at),
                3..=4 => oracle.invalidate(at),
                5..=7 => oracle.fast_register(at),
                8..=11 => oracle.bind(at, to),
                12 if oracle.rng.chance(200_000) => oracle.release(),
                _ => oracle.ask(at),
            }
        }
        granted += oracle.granted;
    }
    assert!(granted > 1_000, "{granted}");
}
