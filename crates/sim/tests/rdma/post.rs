//! Work requests of the simulated RDMA programs, correct and faulty ones: every request whose
//! outcome the oracle can predict.

use arrayvec::ArrayVec;
use sprat_proto::rdma::mr::WindowKind;
use sprat_proto::rdma::{
    Access, Completed, Data, QpState, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge,
    Stag,
};
use sprat_proto::wire::rdmap::Cause;

use super::memory::{Free, Use};
use super::posted::{
    Body, Message, OWN, PUBLIC, Receive, SHARED_RECV, SIZES, TagChange, TagKind, TagState, Work,
    Wrong,
};
use super::world::World;

/// The most messages of a side that precede their receives, and the most bytes of such a message.
const MOST_LATE: usize = 5;
const LATE_LEN: usize = 300;

pub(crate) type List = ArrayVec<Sge, 8>;

/// A draft of a work request, with the outcome that the oracle expects.
pub(crate) struct Draft {
    pub(crate) op: SendOp,
    pub(crate) data: Data,
    pub(crate) flags: SendFlags,
    pub(crate) work: Work,
    pub(crate) messages: Vec<Message>,
}

impl Draft {
    pub(crate) fn new(id: u64, op: SendOp, completed: Completed) -> Self {
        let work = Work {
            id,
            completed,
            signaled: false,
            len: 0,
            own: Vec::new(),
            source: None,
            word: None,
            common: false,
            fails: None,
            refused: None,
            change: None,
            uses: None,
        };
        let (data, flags) = (Data::Gather(List::new()), SendFlags::default());
        Self { op, data, flags, work, messages: Vec::new() }
    }

    pub(crate) fn message(&mut self, body: Body, wrong: Option<Cause>, claim: Option<u64>) {
        let wrong = wrong.map(|cause| Wrong { cause, certain: true });
        let uses = if matches!(body, Body::Ask) { self.work.uses } else { None };
        self.messages.push(Message { id: self.work.id, body, wrong, claim, uses });
    }
}

/// Returns the number of the order in which a side accesses its peer's memory.
pub(crate) fn order(link: usize, side: usize) -> u64 {
    (2 * link + side) as u64
}

/// Returns a unique order, for a claim on memory that is ordered with no other.
fn alone(key: u64) -> u64 {
    key << 32
}

impl World {
    /// Draws the length of a message, in bytes.
    pub(crate) fn length(&mut self) -> usize {
        match self.below(8) {
            0 => 0,
            1 => 1 + self.below(8),
            2..5 => self.below(200),
            5 | 6 => self.below(3000),
            _ => self.below(12_000),
        }
    }

    /// Claims local bytes to send. Returns their scatter/gather list and the bytes.
    pub(crate) fn sources(
        &mut self,
        node: usize,
        len: usize,
        own: &mut Vec<u64>,
    ) -> Option<(List, Vec<u8>)> {
        let (mut list, mut bytes) = (List::new(), Vec::new());
        let pieces = if len == 0 { self.below(2) } else { 1 + self.below(7) };
        for piece in 0..pieces {
            let left = len - bytes.len();
            let here = if piece + 1 == pieces { left } else { self.below(left + 1) };
            if here == 0 && self.half() {
                // An empty message needs no valid tag.
                list.push(Sge { stag: Stag(self.rng.u32()), addr: self.rng.u64(), len: 0 });
                continue;
            }
            let area = if self.rng.chance(200_000) { PUBLIC } else { OWN };
            let key = self.number();
            let it = &mut self.nodes[node];
            let place =
                it.areas[area].place(&mut self.rng, 0..SIZES[area], here, alone(key), false);
            let (range, _) = place?;
            let sole = it.areas[area].free(&range, alone(key), true) == Free::Yes;
            if sole && self.rng.chance(500_000) {
                self.rng.fill(&mut it.ram.arrays[area][range.clone()]);
                it.areas[area].settled[range.clone()]
                    .copy_from_slice(&it.ram.arrays[area][range.clone()]);
            }
            bytes.extend_from_slice(&it.areas[area].settled[range.clone()]);
            let (stag, base) = match area {
                OWN => it.own[self.rng.below(2) as usize],
                _ => self.tags.iter().find(|t| t.node == node).map(|t| (t.stag, t.base))?,
            };
            list.push(Sge { stag, addr: base + range.start as u64, len: here as u32 });
            it.areas[area].claim(key, alone(key), range, Use::Source, None);
            own.push(key);
        }
        (bytes.len() == len).then_some((list, bytes))
    }

    /// Claims local bytes as the sink of a response. Returns their scatter/gather list.
    pub(crate) fn sink(
        &mut self,
        node: usize,
        bytes: Option<Vec<u8>>,
        len: usize,
        own: &mut Vec<u64>,
    ) -> Option<List> {
        let key = self.number();
        let it = &mut self.nodes[node];
        let place = it.areas[OWN].place(&mut self.rng, 0..SIZES[OWN], len, alone(key), true);
        let (range, _) = place?;
        let (stag, base) = it.own[0];
        let sge = Sge { stag, addr: base + range.start as u64, len: len as u32 };
        it.areas[OWN].claim(key, alone(key), range, bytes.map_or(Use::Open, Use::Sink), None);
        own.push(key);
        Some(List::from_iter([sge]))
    }

    /// Returns a tag of the peer for `area` with access rights for which `right` returns true.
    pub(crate) fn peers_tag(
        &mut self,
        link: usize,
        side: usize,
        area: usize,
        right: impl Fn(Access) -> bool,
    ) -> Option<usize> {
        let node = self.links[link].sides[1 - side].node;
        let pd = self.nodes[node].pds[0];
        let fits: Vec<usize> = (0..self.tags.len())
            .filter(|&t| {
                let tag = &self.tags[t];
                let there = tag.node == node
                    && tag.area == area
                    && tag.state == TagState::Live
                    && tag.len > 0;
                let ours = tag.only.is_none_or(|end| end == (link, 1 - side)) && tag.pd == pd;
                there && ours && right(tag.access)
            })
            .collect();
        if fits.is_empty() {
            return None;
        }
        Some(fits[self.below(fits.len())])
    }

    /// Posts a random work request, unless the side has no room or must not post now.
    pub(crate) fn post(&mut self, link: usize, side: usize) {
        let it = &self.links[link].sides[side];
        let other = &self.links[link].sides[1 - side];
        let node = &self.nodes[it.node];
        if node.dead {
            return;
        }
        if it.over {
            return self.post_too_late(link, side);
        }
        let open = matches!(node.rnic.state(it.qp), Some(QpState::Starting | QpState::Ready));
        if !open || it.doomed || it.works.len() >= 40 || other.over || self.calm {
            return;
        }
        let wrong = self.rng.chance(self.plan.wrong_ppm);
        let number = self.number();
        let before = self.last;
        let draft =
            if wrong { self.any_wrong(link, side, number) } else { self.any(link, side, number) };
        match draft {
            Some(draft) => self.submit(link, side, draft),
            None => self.forget(link, side, before),
        }
    }

    /// Removes the claims of a work request's draft that was not posted.
    fn forget(&mut self, link: usize, side: usize, before: u64) {
        for at in [side, 1 - side] {
            let node = self.links[link].sides[at].node;
            for area in &mut self.nodes[node].areas {
                area.claims.retain(|claim| claim.key <= before);
            }
        }
    }

    /// Posts a Send to a queue pair in the error state, which flushes it.
    fn post_too_late(&mut self, link: usize, side: usize) {
        let it = &self.links[link].sides[side];
        let (at, qp) = (it.node, it.qp);
        if self.nodes[at].rnic.state(qp) != Some(QpState::Error) || self.calm {
            return;
        }
        let id = self.number();
        let draft = Draft::new(id, SendOp::Send, Completed::Send);
        let request = SendRequest { id, op: draft.op, data: draft.data, flags: draft.flags };
        self.nodes[at].rnic.post_send(qp, request).unwrap();
        let mut work = draft.work;
        work.signaled = true;
        self.links[link].sides[side].works.push_back(work);
        self.take_results(at);
    }

    fn submit(&mut self, link: usize, side: usize, mut draft: Draft) {
        let acknowledges = self.links[link].acknowledges(&self.nodes);
        let it = &mut self.links[link].sides[side];
        let (at, qp, id) = (it.node, it.qp, draft.work.id);
        draft.flags.signaled |= draft.work.change.is_some() || self.rng.chance(500_000);
        draft.flags.fence |= self.rng.chance(50_000);
        draft.work.signaled = draft.flags.signaled || it.signal_all;
        let write = draft.messages.iter().find(|m| matches!(m.body, Body::Write { .. }));
        if let Some(wrong) = write.and_then(|m| m.wrong) {
            // A peer that acknowledges Writes reports the refused one.
            draft.work.refused =
                Some(Wrong { certain: draft.work.signaled && acknowledges, ..wrong });
        }
        let local = draft.work.fails.is_some();
        it.doomed |= local || draft.messages.iter().any(|m| m.wrong.is_some());
        for message in &draft.messages {
            it.last_write = match message.body {
                Body::Write { len } => len,
                Body::Send { .. } => 0,
                Body::Ask => it.last_write,
            };
        }
        if local {
            draft.messages.clear();
        }
        it.works.push_back(draft.work);
        it.messages.extend(draft.messages);
        let request = SendRequest { id, op: draft.op, data: draft.data, flags: draft.flags };
        self.nodes[at].rnic.post_send(qp, request).unwrap();
        self.take_results(at);
    }

    fn any(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        match self.below(20) {
            0..5 => self.send_or_invalidate(link, side, id, None),
            5 => self.immediate(link, side, id),
            6..10 => self.write(link, side, id, false),
            10 | 11 => self.write(link, side, id, true),
            12..15 => self.read(link, side, id),
            15 | 16 => self.atomic(link, side, id),
            17 => self.count(link, side, id),
            _ => self.own_tag(link, side, id),
        }
    }

    /// Returns the most bytes that a message to the peer may have, by the receive that it will
    /// consume; none if the peer has no receive for it.
    pub(crate) fn room(&mut self, link: usize, side: usize) -> Option<usize> {
        let late = self.late_room(link, side);
        let other = &mut self.links[link].sides[1 - side];
        if !other.shares {
            return other.rooms.front().copied().or(late);
        }
        (self.nodes[other.node].credit > 0).then_some(SHARED_RECV)
    }

    fn take_room(&mut self, link: usize, side: usize) {
        let other = &mut self.links[link].sides[1 - side];
        if other.shares {
            self.nodes[other.node].credit -= 1;
        } else if other.rooms.pop_front().is_none() {
            other.late += 1;
        }
    }

    /// Returns the most bytes of a message whose receive the peer posts later; none if the peer
    /// does not let messages wait without limit.
    fn late_room(&mut self, link: usize, side: usize) -> Option<usize> {
        let endless = self.links[link].rnr_timeout_ns(1 - side).is_none();
        let other = &self.links[link].sides[1 - side];
        let may = endless && !other.over && !other.closed_to_receives && other.late < MOST_LATE;
        (may && self.rng.chance(300_000)).then_some(LATE_LEN)
    }

    /// Posts the receives for messages that precede them.
    pub(crate) fn post_late_receives(&mut self, link: usize) {
        for side in 0..2 {
            for _ in 0..1000 {
                if self.links[link].sides[side].late > 0 {
                    self.post_receive(link, side);
                }
            }
        }
    }

    /// Drafts a Send, with or without Invalidate, of `too_long` bytes or of a length that fits.
    pub(crate) fn send_or_invalidate(
        &mut self,
        link: usize,
        side: usize,
        id: u64,
        too_long: Option<usize>,
    ) -> Option<Draft> {
        let room = self.room(link, side)?;
        let len = too_long.unwrap_or_else(|| self.length().min(room));
        let node = self.links[link].sides[side].node;
        let mut draft = Draft::new(id, SendOp::Send, Completed::Send);
        let bytes = if len <= 256 && self.rng.chance(300_000) {
            let mut bytes = vec![0; len];
            self.rng.fill(&mut bytes);
            draft.data = Data::Inline(bytes.clone());
            bytes
        } else {
            let (list, bytes) = self.sources(node, len, &mut draft.work.own)?;
            draft.data = Data::Gather(list);
            bytes
        };
        let mut tag = None;
        if self.rng.chance(250_000) && too_long.is_none() {
            let mine = |t: &super::posted::Tag| {
                let kind = matches!(t.kind, TagKind::Fast | TagKind::Window(WindowKind::OneQp));
                let a = t.access;
                let useful = a.remote_write || a.remote_read || a.remote_atomic;
                kind && useful && t.only == Some((link, 1 - side)) && t.state == TagState::Live
            };
            let found = self.tags.iter().position(mine);
            if let Some(t) = found {
                let asks = self.links[link].sides[side].works.iter().any(|w| w.uses == Some(t));
                draft.flags.fence |= asks;
                draft.op = SendOp::SendInvalidate(self.tags[t].stag);
                self.tags[t].state = TagState::Changing;
                tag = Some((t, self.tags[t].stag));
            }
        }
        draft.flags.solicited = self.half();
        self.take_room(link, side);
        let solicited = draft.flags.solicited;
        let written = self.links[link].sides[side].last_write;
        let wrong = (len > room).then_some(Cause::UNTAGGED_TOO_LONG);
        draft.message(Body::Send { bytes, immediate: None, tag, solicited, written }, wrong, None);
        Some(draft)
    }

    fn immediate(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        self.room(link, side)?;
        let value = self.rng.u64();
        let mut draft = Draft::new(id, SendOp::Immediate(value), Completed::Send);
        self.add_immediate(link, side, &mut draft, value, None);
        Some(draft)
    }

    fn add_immediate(
        &mut self,
        link: usize,
        side: usize,
        draft: &mut Draft,
        value: u64,
        len: Option<u32>,
    ) {
        self.take_room(link, side);
        draft.flags.solicited = self.half();
        let solicited = draft.flags.solicited;
        let written = len.unwrap_or(self.links[link].sides[side].last_write);
        let immediate = Some(value);
        let body = Body::Send { bytes: Vec::new(), immediate, tag: None, solicited, written };
        draft.message(body, None, None);
    }

    /// Draws the bytes of a Write: gathered from claimed memory, or inline.
    pub(crate) fn write_data(
        &mut self,
        link: usize,
        side: usize,
        draft: &mut Draft,
        len: usize,
    ) -> Option<Vec<u8>> {
        let node = self.links[link].sides[side].node;
        if len <= 256 && self.rng.chance(300_000) {
            let mut bytes = vec![0; len];
            self.rng.fill(&mut bytes);
            draft.data = Data::Inline(bytes.clone());
            return Some(bytes);
        }
        let (list, bytes) = self.sources(node, len, &mut draft.work.own)?;
        draft.data = Data::Gather(list);
        Some(bytes)
    }

    fn write(&mut self, link: usize, side: usize, id: u64, immediate: bool) -> Option<Draft> {
        if immediate {
            self.room(link, side)?;
        }
        let value = self.rng.u64();
        let op = |to| if immediate { SendOp::WriteImmediate(to, value) } else { SendOp::Write(to) };
        let len = self.length();
        let mut draft = Draft::new(id, op(Remote::default()), Completed::Write);
        let bytes = self.write_data(link, side, &mut draft, len)?;
        let mut claim = None;
        if len == 0 {
            // An empty message needs no valid tag.
            draft.op = op(Remote { stag: Stag(self.rng.u32()), addr: self.rng.u64() });
        } else {
            let t = self.peers_tag(link, side, PUBLIC, |a| a.remote_write)?;
            let (tag, by) = (&self.tags[t], order(link, side));
            let within = tag.offset..tag.offset + tag.len;
            let area = &mut self.nodes[tag.node].areas[PUBLIC];
            let (range, free) = area.place(&mut self.rng, within, len, by, true)?;
            draft.flags.fence |= free == Free::Fenced;
            let to = Remote { stag: tag.stag, addr: tag.base + (range.start - tag.offset) as u64 };
            draft.op = op(to);
            self.last += 1;
            claim = Some(self.last);
            area.claim(self.last, by, range, Use::Sink(bytes), Some(t));
        }
        draft.message(Body::Write { len: len as u32 }, None, claim);
        if immediate {
            self.add_immediate(link, side, &mut draft, value, Some(len as u32));
        }
        Some(draft)
    }

    pub(crate) fn may_ask(&self, link: usize, side: usize) -> bool {
        let it = &self.links[link].sides[side];
        it.established && it.depths.1 > 0
    }

    fn read(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        if !self.may_ask(link, side) {
            return None;
        }
        let node = self.links[link].sides[side].node;
        let len = self.length();
        let mut draft = Draft::new(id, SendOp::Read(Remote::default()), Completed::Read);
        draft.work.len = len as u32;
        if len == 0 {
            let sge = Sge { stag: Stag(self.rng.u32()), addr: self.rng.u64(), len: 0 };
            let list = if self.half() { List::new() } else { List::from_iter([sge]) };
            draft.op = SendOp::Read(Remote { stag: Stag(self.rng.u32()), addr: self.rng.u64() });
            draft.data = Data::Gather(list);
            draft.message(Body::Ask, None, None);
            return Some(draft);
        }
        let t = self.peers_tag(link, side, PUBLIC, |a| a.remote_read)?;
        let (tag, by) = (&self.tags[t], order(link, side));
        let within = tag.offset..tag.offset + tag.len;
        let area = &mut self.nodes[tag.node].areas[PUBLIC];
        let (range, _) = area.place(&mut self.rng, within, len, by, false)?;
        let from = Remote { stag: tag.stag, addr: tag.base + (range.start - tag.offset) as u64 };
        let bytes = area.view(range.clone(), by);
        self.last += 1;
        area.claim(self.last, by, range, Use::Source, Some(t));
        draft.work.source = Some(self.last);
        draft.work.uses = Some(t);
        draft.op = SendOp::Read(from);
        if self.rng.chance(200_000)
            && let Some((list, sink)) = self.fast_sink(link, side, &bytes, &mut draft.work.own)
        {
            draft.op = SendOp::ReadInvalidate(from);
            draft.work.change = Some(TagChange::Free(sink));
            draft.data = Data::Gather(list);
        } else {
            draft.data = Data::Gather(self.sink(node, Some(bytes), len, &mut draft.work.own)?);
        }
        draft.message(Body::Ask, None, None);
        Some(draft)
    }

    /// Drafts a Read into a local fast registration, which the Read invalidates.
    fn fast_sink(
        &mut self,
        link: usize,
        side: usize,
        bytes: &[u8],
        own: &mut Vec<u64>,
    ) -> Option<(List, usize)> {
        let fits = |t: &super::posted::Tag| {
            t.only == Some((link, side))
                && t.kind == TagKind::Fast
                && t.state == TagState::Live
                && t.access.local_write
                && t.len >= bytes.len()
        };
        let t = self.tags.iter().position(fits)?;
        if self.is_busy(t) {
            return None;
        }
        let key = self.number();
        let tag = &mut self.tags[t];
        let area = &mut self.nodes[tag.node].areas[PUBLIC];
        let within = tag.offset..tag.offset + tag.len;
        let (range, _) = area.place(&mut self.rng, within, bytes.len(), alone(key), true)?;
        let addr = tag.base + (range.start - tag.offset) as u64;
        area.claim(key, alone(key), range, Use::Sink(bytes.to_vec()), None);
        own.push(key);
        tag.state = TagState::Changing;
        Some((List::from_iter([Sge { stag: tag.stag, addr, len: bytes.len() as u32 }]), t))
    }

    /// Posts a receive on one side of a stream.
    pub(crate) fn post_receive(&mut self, link: usize, side: usize) {
        let it = &self.links[link].sides[side];
        let (at, shares, qp) = (it.node, it.shares, it.qp);
        let full = if shares { self.nodes[at].shared.len() >= 60 } else { it.receives.len() >= 40 };
        if self.nodes[at].dead || it.over || full || it.closed_to_receives || self.calm {
            return;
        }
        let late = self.links[link].sides[side].late > 0;
        let len = match (shares, late) {
            (true, _) => SHARED_RECV,
            (false, true) => LATE_LEN,
            (false, false) => self.length(),
        };
        let id = self.number();
        let (before, mut list, mut pieces, mut left) = (self.last, List::new(), Vec::new(), len);
        let most = 1 + self.below(if shares { 3 } else { 7 });
        for piece in 0..most {
            let here = if piece + 1 == most { left } else { self.below(left + 1) };
            let mut own = Vec::new();
            let Some(sink) = self.sink(at, None, here, &mut own) else {
                return self.forget(link, side, before);
            };
            list.push(sink[0]);
            pieces.push((own[0], here));
            left -= here;
        }
        let (request, receive) = (RecvRequest { id, list }, Receive { id, list: pieces });
        let node = &mut self.nodes[at];
        let it = &mut self.links[link].sides[side];
        if shares {
            node.rnic.post_srq_recv(node.srq, request).unwrap();
            node.shared.push_back(receive);
            node.credit += 1;
        } else {
            if late {
                it.late -= 1;
            } else {
                it.rooms.push_back(receive.capacity());
            }
            it.receives.push_back(receive);
            node.rnic.post_recv(qp, request).unwrap();
        }
        self.take_results(at);
    }

    /// Has the initiator send a first message, if it has not, so that the responder may send.
    pub(crate) fn open_up(&mut self, link: usize) {
        let it = &self.links[link].sides[0];
        // A damaged stream may have no room left, because it no longer moves.
        let room = it.works.len() < 30;
        if room && it.established && !it.over && !self.nodes[it.node].dead && !it.disconnected {
            let id = self.number();
            let mut draft = Draft::new(id, SendOp::Write(Remote::default()), Completed::Write);
            draft.message(Body::Write { len: 0 }, None, None);
            self.submit(link, 0, draft);
        }
    }

    /// Posts some requests on a side right before its connection ends.
    pub(crate) fn last_posts(&mut self, link: usize, side: usize) {
        let it = &self.links[link].sides[side];
        let room = it.works.len() < 30;
        if it.over || !it.established || self.nodes[it.node].dead || !room || it.disconnected {
            return;
        }
        self.calm = false;
        for _ in 0..5 {
            let (id, before) = (self.number(), self.last);
            match self.any(link, side, id) {
                Some(draft) => self.submit(link, side, draft),
                None => self.forget(link, side, before),
            }
        }
        self.post_late_receives(link);
        self.calm = true;
    }
}
