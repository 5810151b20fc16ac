//! The steps of a simulated RDMA world: streams deliver, lose and damage bytes; time passes;
//! streams and machines end.
//!
//! ```text
//!  output ─► outbox ─ sent ─► wire ─ any number of bytes at any time ─► inbox ─► input
//! ```

use sprat_proto::rdma::{Memory as _, Part, Record, Span, StreamEnd};
use sprat_proto::time::{MS, SECOND};

use super::world::{Seen, World};

/// The most streams of a simulated RDMA world during its life.
const MOST_LINKS: usize = 16;

impl World {
    /// Lets the engine of a machine emit some of its output. Returns true if it had any.
    pub(crate) fn output(&mut self, at: usize, most: usize) -> bool {
        let (now, pick) = (self.now, self.rng.u64());
        let node = &mut self.nodes[at];
        while let Some(conn) = node.rnic.ready() {
            node.ready.push(conn);
        }
        if node.ready.is_empty() || node.dead {
            return false;
        }
        let place = (pick % node.ready.len() as u64) as usize;
        let conn = node.ready[place];
        let (mut record, mut more) = (Record::default(), true);
        for _ in 0..most {
            more = node.rnic.output(now, conn, &mut record, &mut node.ram);
            if !more {
                break;
            }
        }
        if !more {
            node.ready.swap_remove(place);
        }
        let mut bytes = Vec::new();
        for part in &record.parts {
            match part {
                Part::Bytes(range) => bytes.extend_from_slice(&record.bytes[range.clone()]),
                Part::Memory(span) => bytes.extend_from_slice(&node.ram.copy(*span)),
            }
        }
        assert_eq!(bytes.len(), record.len());
        if let Some((link, side)) = self.find(at, conn) {
            self.links[link].sides[side].outbox.extend(bytes);
        } else {
            assert!(bytes.is_empty(), "a closed stream has something to send");
        }
        self.take_results(at);
        true
    }

    /// Lets the stream accept some of the bytes that an end emitted. Returns true if there were
    /// any.
    pub(crate) fn send(&mut self, link: usize, side: usize, most: usize) -> bool {
        let it = &mut self.links[link].sides[side];
        let (Some(conn), None) = (it.conn, it.closed) else { return false };
        let len = most.min(it.outbox.len());
        if len == 0 || self.nodes[it.node].dead {
            return false;
        }
        it.wire.extend(it.outbox.drain(..len));
        let at = it.node;
        self.nodes[at].rnic.sent(conn, len);
        self.take_results(at);
        true
    }

    /// Delivers bytes in flight to one end of a stream. Returns true if there were any.
    pub(crate) fn deliver(&mut self, link: usize, side: usize, most: usize) -> bool {
        let [a, b] = &mut self.links[link].sides;
        let (it, other) = if side == 0 { (a, b) } else { (b, a) };
        let len = most.min(other.wire.len());
        if len == 0 {
            return false;
        }
        let node = &mut self.nodes[it.node];
        let (Some(conn), None, false) = (it.conn, it.closed, node.dead) else {
            other.wire.drain(..len);
            return true;
        };
        let at = it.node;
        let direct = if self.rng.chance(500_000) && it.inbox.is_empty() {
            node.rnic.direct_span(conn)
        } else {
            None
        };
        if let Some(span) = direct {
            let len = len.min(span.len as usize);
            let bytes: Vec<u8> = other.wire.drain(..len).collect();
            let span = Span { len: len as u32, ..span };
            node.ram.write(span, &bytes).unwrap();
            node.rnic.placed_directly(self.now, conn, len as u32, &mut node.ram);
        } else {
            it.inbox.extend(other.wire.drain(..len));
            let used = node.rnic.input(self.now, conn, &it.inbox, &mut node.ram);
            it.inbox.drain(..used);
            assert!(it.inbox.len() <= 72 << 10, "{} bytes are kept", it.inbox.len());
        }
        self.seen.bytes += len as u64;
        self.take_results(at);
        true
    }

    /// Delivers the end of the stream to one side once all earlier bytes were delivered. Returns
    /// true if it did.
    pub(crate) fn tell(&mut self, link: usize, side: usize) -> bool {
        let [a, b] = &mut self.links[link].sides;
        let (it, other) = if side == 0 { (a, b) } else { (b, a) };
        let Some(reset) = other.closed else { return false };
        let (Some(conn), None, false) = (it.conn, it.closed, it.told) else { return false };
        if !reset && !other.wire.is_empty() || self.nodes[it.node].dead {
            return false;
        }
        it.told = true;
        let at = it.node;
        self.nodes[at].rnic.ended(
            self.now,
            conn,
            if reset { StreamEnd::Reset } else { StreamEnd::Finished },
        );
        self.take_results(at);
        true
    }

    /// Breaks a stream: the bytes in flight are lost from a random one on, and one end or both
    /// detect it.
    pub(crate) fn cut(&mut self, link: usize) {
        let reset = self.half();
        self.links[link].cut = true;
        for side in 0..2 {
            let keep = self.below(self.links[link].sides[side].wire.len() + 1);
            let it = &mut self.links[link].sides[side];
            it.wire.truncate(keep);
            let (Some(conn), None, false) = (it.conn, it.closed, self.nodes[it.node].dead) else {
                continue;
            };
            if it.told {
                continue;
            }
            it.told = true;
            let end = if reset { StreamEnd::Reset } else { StreamEnd::Finished };
            let at = it.node;
            self.nodes[at].rnic.ended(self.now, conn, end);
            self.take_results(at);
        }
    }

    /// Closes half of a stream early: one end sees the end of the stream while its peer still
    /// sends.
    pub(crate) fn half_cut(&mut self, link: usize, side: usize) {
        let keep = self.below(self.links[link].sides[1 - side].wire.len() + 1);
        self.links[link].cut = true;
        let reset = self.half();
        let other = &mut self.links[link].sides[1 - side];
        other.wire.truncate(keep);
        let it = &mut self.links[link].sides[side];
        let (Some(conn), None, false) = (it.conn, it.closed, it.told) else { return };
        if self.nodes[it.node].dead {
            return;
        }
        it.told = true;
        let at = it.node;
        self.nodes[at].rnic.ended(
            self.now,
            conn,
            if reset { StreamEnd::Reset } else { StreamEnd::Finished },
        );
        self.take_results(at);
    }

    /// Kills a simulated machine. Its kernel may still close its streams in order.
    pub(crate) fn die(&mut self, at: usize) {
        self.nodes[at].dead = true;
        for link in 0..self.links.len() {
            for side in 0..2 {
                if self.links[link].sides[side].node != at {
                    continue;
                }
                self.links[link].cut = true;
                let (reset, keep) =
                    (self.half(), self.below(self.links[link].sides[side].wire.len() + 1));
                let it = &mut self.links[link].sides[side];
                it.wire.truncate(keep);
                it.over = true;
                it.closed.get_or_insert(reset);
                for work in std::mem::take(&mut it.works) {
                    self.abandon(self.links[link].sides[1 - side].node, &work);
                }
            }
        }
    }

    /// Flips a bit of the bytes in flight on a stream.
    pub(crate) fn damage(&mut self, link: usize) {
        let it = &self.links[link];
        let safe = it.crc && it.sides.iter().all(|s| s.established);
        let side = self.below(2);
        let len = self.links[link].sides[side].wire.len();
        if !safe || len == 0 {
            return;
        }
        let (at, bit) = (self.below(len), self.below(8));
        self.links[link].damaged = true;
        self.links[link].sides[side].wire[at] ^= 1 << bit;
    }

    /// Runs one random step of the simulated RDMA world.
    fn step(&mut self) {
        let link = self.below(self.links.len());
        let (side, dice) = (self.below(2), self.below(100));
        match dice {
            0..30 => self.post(link, side),
            30..45 => self.post_receive(link, side),
            45..60 => {
                let (at, most) = (self.below(self.nodes.len()), 1 + self.below(6));
                self.output(at, most);
            }
            60..72 => {
                let most = self.cut_len();
                self.send(link, side, most);
            }
            72..90 => {
                let most = self.cut_len();
                self.deliver(link, side, most);
                self.tell(link, side);
            }
            90..98 => {
                let at = self.below(self.nodes.len());
                self.poll(at);
            }
            _ => {
                let ns = self.rng.below(2 * MS);
                self.pass(ns);
            }
        }
        let plan = self.plan.clone();
        if self.rng.chance(plan.cut_ppm) {
            if self.half() { self.cut(link) } else { self.half_cut(link, side) }
        }
        if self.rng.chance(plan.death_ppm) {
            let at = self.below(self.nodes.len());
            if self.nodes.iter().filter(|n| !n.dead).count() > 1 {
                self.die(at);
            }
        }
        if self.rng.chance(plan.damage_ppm) {
            self.damage(link);
        }
        if self.rng.chance(plan.revoke_ppm) {
            self.revoke();
        }
        if self.rng.chance(3_000) {
            self.disconnect(link, side);
        }
        if self.rng.chance(3_000) && self.links.len() < MOST_LINKS {
            self.link();
        }
    }

    fn cut_len(&mut self) -> usize {
        match self.below(4) {
            0 => 1 + self.below(8),
            1 => 1 + self.below(600),
            2 => 1 + self.below(6000),
            _ => usize::MAX,
        }
    }

    pub(crate) fn pass(&mut self, ns: u64) {
        self.now = self.now.after(ns);
        for at in 0..self.nodes.len() {
            if !self.nodes[at].dead {
                self.nodes[at].rnic.tick(self.now);
                self.take_results(at);
            }
        }
    }

    pub(crate) fn disconnect(&mut self, link: usize, side: usize) {
        let it = &mut self.links[link].sides[side];
        if it.over || !it.established || self.nodes[it.node].dead {
            return;
        }
        let (at, qp) = (it.node, it.qp);
        it.disconnected = true;
        self.links[link].ending = true;
        self.nodes[at].rnic.disconnect(self.now, qp).unwrap();
        self.take_results(at);
    }

    /// Runs all streams of the world until no byte moves.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut moved = false;
            for at in 0..self.nodes.len() {
                let most = 1 + self.below(20);
                moved |= self.output(at, most);
            }
            for link in 0..self.links.len() {
                for side in 0..2 {
                    let most = if self.half() { usize::MAX } else { 1 + self.below(5000) };
                    moved |= self.send(link, side, most);
                    moved |= self.deliver(link, side, most);
                    moved |= self.tell(link, side);
                }
            }
            for at in 0..self.nodes.len() {
                self.poll(at);
            }
            if !moved {
                break;
            }
        }
    }

    /// Runs the whole simulated RDMA world to its end, and returns its results.
    pub(crate) fn run(mut self) -> Seen {
        for _ in 0..self.plan.steps {
            self.step();
        }
        for link in 0..self.links.len() {
            self.post_late_receives(link);
        }
        self.calm = true;
        // Some requests wait for the peer's first FPDU, or for a timer.
        self.settle();
        for link in 0..self.links.len() {
            self.open_up(link);
        }
        self.pass(2 * MS);
        self.settle();
        // The wait for a hello that was lost has timed out.
        self.pass(300 * MS);
        self.settle();
        self.at_rest();
        for link in 0..self.links.len() {
            let side = self.below(2);
            if self.half() {
                self.last_posts(link, side);
            }
            self.disconnect(link, side);
        }
        self.settle();
        // An acknowledgement may have waited to follow a message.
        self.pass(MS);
        self.settle();
        for _ in 0..4 {
            self.pass(2 * SECOND);
            self.settle();
        }
        self.at_end();
        self.seen
    }
}
