//! What the programs ask for: any work request that the oracle can tell the outcome of, right ones and wrong ones.

use arrayvec::ArrayVec;
use sprat_proto::rdma::mr::WindowKind;
use sprat_proto::rdma::{
    Access, Completed, Data, PostError, QpState, RecvRequest, Remote, SendFlags, SendOp, SendRequest, Sge,
    Stag, Status,
};
use sprat_proto::wire::rdmap::Cause;

use super::memory::{Free, Use, put};
use super::world::{
    Body, COMMON_WORDS, Message, OWN, PUBLIC, Receive, SHARED_RECV, SIZES, TagChange, TagKind, TagState,
    WORD_COUNT, WORDS, Work, World, Wrong,
};

type List = ArrayVec<Sge, 8>;

/// A work request that is being made up.
struct Draft {
    op: SendOp,
    data: Data,
    flags: SendFlags,
    work: Work,
    messages: Vec<Message>,
}

impl Draft {
    fn new(id: u64, op: SendOp, completed: Completed) -> Self {
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

    fn message(&mut self, body: Body, wrong: Option<Cause>, claim: Option<u64>) {
        let wrong = wrong.map(|cause| Wrong { cause, certain: true });
        self.messages.push(Message { id: self.work.id, body, wrong, claim });
    }
}

/// The order of what a side does to its peer.
fn order(link: usize, side: usize) -> u64 {
    (2 * link + side) as u64
}

/// The order of a claim that has none: claims have different ones.
fn alone(key: u64) -> u64 {
    key << 32
}

impl World {
    /// How long something is.
    fn length(&mut self) -> usize {
        match self.below(8) {
            0 => 0,
            1 => 1 + self.below(8),
            2..5 => self.below(200),
            5 | 6 => self.below(3000),
            _ => self.below(12_000),
        }
    }

    /// Claims octets of the machine's own to send: the list, and what is sent.
    fn sources(&mut self, node: usize, len: usize, own: &mut Vec<u64>) -> Option<(List, Vec<u8>)> {
        let (mut list, mut bytes) = (List::new(), Vec::new());
        let pieces = if len == 0 { self.below(2) } else { 1 + self.below(7) };
        for piece in 0..pieces {
            let left = len - bytes.len();
            let here = if piece + 1 == pieces { left } else { self.below(left + 1) };
            if here == 0 && self.half() {
                // No octets need no tag.
                list.push(Sge { stag: Stag(self.rng.u32()), addr: self.rng.u64(), len: 0 });
                continue;
            }
            let area = if self.rng.chance(200_000) { PUBLIC } else { OWN };
            let key = self.number();
            let it = &mut self.nodes[node];
            let place = it.areas[area].place(&mut self.rng, 0..SIZES[area], here, alone(key), false);
            let Some((range, _)) = place else { return None };
            let sole = it.areas[area].free(&range, alone(key), true) == Free::Yes;
            if sole && self.rng.chance(500_000) {
                self.rng.fill(&mut it.ram.arrays[area][range.clone()]);
                it.areas[area].settled[range.clone()].copy_from_slice(&it.ram.arrays[area][range.clone()]);
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

    /// Octets of the machine's own that an answer goes to.
    fn sink(&mut self, node: usize, bytes: Option<Vec<u8>>, len: usize, own: &mut Vec<u64>) -> Option<List> {
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

    /// A tag of the peer's that may be used like this.
    fn peers_tag(
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
                let there = tag.node == node && tag.area == area && tag.state == TagState::Live && tag.len > 0;
                let ours = tag.only.is_none_or(|end| end == (link, 1 - side)) && tag.pd == pd;
                there && ours && right(tag.access)
            })
            .collect();
        if fits.is_empty() {
            return None;
        }
        Some(fits[self.below(fits.len())])
    }

    /// Posts something; or not, if this is not the time, or there is no room.
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
        let draft = if wrong { self.any_wrong(link, side, number) } else { self.any(link, side, number) };
        match draft {
            Some(draft) => self.submit(link, side, draft),
            None => self.forget(link, side, before),
        }
    }

    /// Takes back the claims of a draft that came to nothing.
    fn forget(&mut self, link: usize, side: usize, before: u64) {
        for at in [side, 1 - side] {
            let node = self.links[link].sides[at].node;
            for area in &mut self.nodes[node].areas {
                area.claims.retain(|claim| claim.key <= before);
            }
        }
    }

    /// A queue pair at its end takes what is posted, and flushes it.
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
        self.hear(at);
    }

    fn submit(&mut self, link: usize, side: usize, mut draft: Draft) {
        let it = &mut self.links[link].sides[side];
        let (at, qp, id) = (it.node, it.qp, draft.work.id);
        draft.flags.signaled |= draft.work.change.is_some() || self.rng.chance(500_000);
        draft.flags.fence |= self.rng.chance(50_000);
        draft.work.signaled = draft.flags.signaled || it.signal_all;
        if std::env::var("TRACE").is_ok() { eprintln!("{:?} link {link} side {side} posts {:?} {:?} {:?}", self.now, draft.op, draft.flags, draft.work); }
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
        self.hear(at);
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

    /// Takes a receive of the peer's for a message: how many octets it may have.
    fn room(&mut self, link: usize, side: usize) -> Option<usize> {
        let other = &mut self.links[link].sides[1 - side];
        if !other.shares {
            return other.rooms.front().copied();
        }
        (self.nodes[other.node].credit > 0).then_some(SHARED_RECV)
    }

    fn take_room(&mut self, link: usize, side: usize) {
        let other = &mut self.links[link].sides[1 - side];
        if other.shares {
            self.nodes[other.node].credit -= 1;
        } else {
            other.rooms.pop_front();
        }
    }

    /// A Send of so many octets, if it fits.
    fn send_or_invalidate(&mut self, link: usize, side: usize, id: u64, too_long: Option<usize>) -> Option<Draft> {
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
            let mine = |t: &super::world::Tag| {
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

    fn add_immediate(&mut self, link: usize, side: usize, draft: &mut Draft, value: u64, len: Option<u32>) {
        self.take_room(link, side);
        draft.flags.solicited = self.half();
        let solicited = draft.flags.solicited;
        let written = len.unwrap_or(self.links[link].sides[side].last_write);
        let immediate = Some(value);
        let body = Body::Send { bytes: Vec::new(), immediate, tag: None, solicited, written };
        draft.message(body, None, None);
    }

    /// Source of a Write.
    fn write_data(&mut self, link: usize, side: usize, draft: &mut Draft, len: usize) -> Option<Vec<u8>> {
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
            // No octets need no tag.
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

    fn may_ask(&self, link: usize, side: usize) -> bool {
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

    /// A fast registration of the side's own as a sink, which is invalid afterwards.
    fn fast_sink(&mut self, link: usize, side: usize, bytes: &[u8], own: &mut Vec<u64>) -> Option<(List, usize)> {
        let fits = |t: &super::world::Tag| {
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

    /// Requests that use the tag are under way.
    pub(crate) fn is_busy(&self, t: usize) -> bool {
        let node = self.tags[t].node;
        let claimed = self.nodes[node].areas.iter().any(|a| a.claims.iter().any(|c| c.tag == Some(t)));
        let used = |w: &Work| w.uses == Some(t);
        claimed || self.links.iter().flat_map(|l| &l.sides).any(|s| s.works.iter().any(used))
    }

    /// An atomic on a word of the side's own at the peer.
    fn atomic(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        let slot = COMMON_WORDS + 2 * link + side;
        if !self.may_ask(link, side) || slot >= WORD_COUNT {
            return None;
        }
        let t = self.peers_tag(link, side, WORDS, |a| a.remote_atomic)?;
        let (peer, node) = (self.tags[t].node, self.links[link].sides[side].node);
        let to = Remote { stag: self.tags[t].stag, addr: self.tags[t].base + 8 * slot as u64 };
        let (settled, chain) = &self.nodes[peer].words[slot];
        let old = *chain.back().unwrap_or(settled);
        let (a, b, c) = (self.rng.u64(), self.rng.u64(), self.rng.u64());
        let (op, new, completed) = if self.half() {
            let mask = [0, b, u64::MAX, 1 << 63, 0x8000_0000][self.below(5)];
            (SendOp::FetchAdd { to, add: a, mask }, masked_sum(old, a, mask), Completed::FetchAdd)
        } else {
            let compare = if self.half() { old ^ (c & b) } else { c };
            let (compare_mask, swap_mask) = if self.half() { (u64::MAX, u64::MAX) } else { (!b, c) };
            let equal = (compare ^ old) & compare_mask == 0;
            let new = if equal { (old & !swap_mask) | (a & swap_mask) } else { old };
            let op = SendOp::CompareSwap { to, compare, compare_mask, swap: a, swap_mask };
            (op, new, Completed::CompareSwap)
        };
        let mut draft = Draft::new(id, op, completed);
        let mut word = vec![0; 8];
        put(&mut word, old);
        draft.data = Data::Gather(self.sink(node, Some(word), 8, &mut draft.work.own)?);
        self.nodes[peer].words[slot].1.push_back(new);
        (draft.work.len, draft.work.word, draft.work.uses) = (8, Some(slot), Some(t));
        draft.message(Body::Ask, None, None);
        Some(draft)
    }

    /// Adds 1 to a word that all count in.
    fn count(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        if !self.may_ask(link, side) {
            return None;
        }
        let t = self.peers_tag(link, side, WORDS, |a| a.remote_atomic)?;
        let (slot, node) = (self.below(COMMON_WORDS), self.links[link].sides[side].node);
        let to = Remote { stag: self.tags[t].stag, addr: self.tags[t].base + 8 * slot as u64 };
        let mut draft = Draft::new(id, SendOp::FetchAdd { to, add: 1, mask: 0 }, Completed::FetchAdd);
        draft.data = Data::Gather(self.sink(node, None, 8, &mut draft.work.own)?);
        draft.work.len = 8;
        (draft.work.word, draft.work.common, draft.work.uses) = (Some(slot), true, Some(t));
        draft.message(Body::Ask, None, None);
        Some(draft)
    }

    /// Binds, registers, or takes back.
    fn own_tag(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        let node = self.links[link].sides[side].node;
        let fits: Vec<usize> = (0..self.tags.len())
            .filter(|&t| {
                let tag = &self.tags[t];
                let ours = tag.only == Some((link, side))
                    || tag.node == node && tag.kind == TagKind::Window(WindowKind::Domain);
                ours && matches!(tag.state, TagState::Free | TagState::Live)
            })
            .collect();
        if fits.is_empty() {
            return None;
        }
        let t = fits[self.below(fits.len())];
        if self.tags[t].state == TagState::Live {
            return self.take_back(t, id);
        }
        let region = self.tags.iter().position(|t| t.node == node)?;
        let (base, stag) = (self.tags[region].base, self.tags[region].stag);
        let offset = self.below(SIZES[PUBLIC] - 100);
        let len = 1 + self.below(SIZES[PUBLIC] - offset);
        let access = Access {
            local_write: true,
            remote_write: self.half(),
            remote_read: self.half(),
            remote_atomic: false,
            bind: false,
        };
        let start = self.rng.u64() >> 8;
        let tag = &mut self.tags[t];
        tag.stag = Stag(tag.stag.0 & !0xff | (tag.stag.0.wrapping_add(1) & 0xff));
        (tag.offset, tag.len, tag.access, tag.state) = (offset, len, access, TagState::Changing);
        let (op, completed) = if tag.kind == TagKind::Fast {
            tag.base = start;
            let (offset, len) = (offset as u64, len as u64);
            let op =
                SendOp::FastRegister { stag: tag.stag, region: PUBLIC as u32, offset, base: start, len, access };
            (op, Completed::FastRegister)
        } else {
            tag.base = base + offset as u64;
            let (window, addr, len) = (tag.stag, tag.base, len as u64);
            (SendOp::Bind { window, region: stag, addr, len, access }, Completed::Bind)
        };
        let mut draft = Draft::new(id, op, completed);
        draft.work.change = Some(TagChange::Live(t));
        Some(draft)
    }

    /// Makes a tag invalid that nobody uses just now.
    fn take_back(&mut self, t: usize, id: u64) -> Option<Draft> {
        if self.is_busy(t) {
            return None;
        }
        self.tags[t].state = TagState::Changing;
        let (stag, kind) = (self.tags[t].stag, self.tags[t].kind);
        let mut draft = if kind == TagKind::Window(WindowKind::Domain) {
            let region = Stag(0);
            let access = self.tags[t].access;
            let op = SendOp::Bind { window: stag, region, addr: 0, len: 0, access };
            Draft::new(id, op, Completed::Bind)
        } else {
            Draft::new(id, SendOp::Invalidate(stag), Completed::Invalidate)
        };
        draft.work.change = Some(TagChange::Free(t));
        Some(draft)
    }

    /// Something that must fail, at home or at the peer.
    fn any_wrong(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        match self.below(12) {
            0..3 => self.wrong_write(link, side, id),
            3..6 => self.wrong_ask(link, side, id),
            6 => {
                let room = self.room(link, side)?;
                let len = room + 1 + self.below(3000);
                self.send_or_invalidate(link, side, id, Some(len))
            }
            7 => {
                let mut draft = self.send_or_invalidate(link, side, id, None)?;
                let SendOp::Send = draft.op else { return Some(draft) };
                let peer = self.links[link].sides[1 - side].node;
                let region = self.tags.iter().position(|t| t.node == peer)?;
                let stag = if self.half() { self.tags[region].stag } else { Stag(self.rng.u32() & 0xff) };
                draft.op = SendOp::SendInvalidate(stag);
                draft.messages[0].wrong = Some(Wrong { cause: Cause::CANNOT_INVALIDATE, certain: true });
                Some(draft)
            }
            8 => self.unexpected(link, side, id),
            _ => self.wrong_at_home(link, side, id),
        }
    }

    /// A Send for which no receive is posted, and will not be.
    fn unexpected(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        let other = &mut self.links[link].sides[1 - side];
        if other.shares || !other.rooms.is_empty() {
            return None;
        }
        other.closed_to_receives = true;
        let mut draft = Draft::new(id, SendOp::Send, Completed::Send);
        let body = Body::Send { bytes: Vec::new(), immediate: None, tag: None, solicited: false, written: 0 };
        draft.message(body, Some(Cause::UNTAGGED_NO_BUFFER), None);
        Some(draft)
    }

    /// A region of the peer, and an address and length that are wrong in some way: as DDP and as RDMAP call it.
    fn wrong_place(&mut self, link: usize, side: usize, write: bool) -> Option<(Remote, usize, usize, usize, [Cause; 2])> {
        let peer = self.links[link].sides[1 - side].node;
        let region = self.tags.iter().position(|t| t.node == peer)?;
        let other = self.tags.iter().position(|t| t.node == peer && t.pd == self.nodes[peer].pds[1])?;
        let len = 1 + self.below(100);
        let weak = self.tags.iter().position(|t| {
            let live = t.node == peer && t.area == PUBLIC && t.state == TagState::Live && t.only.is_none();
            live && t.kind == TagKind::Region && !(if write { t.access.remote_write } else { t.access.remote_read })
        });
        let (tag, at) = (&self.tags[region], self.rng.below(1000));
        let (stag, addr) = (tag.stag, tag.base.wrapping_add(at));
        Some(match self.below(5) {
            0 => {
                let stag = Stag(self.rng.u32() & 0xff);
                (Remote { stag, addr }, len, 0, 0, [Cause::TAGGED_STAG, Cause::INVALID_STAG])
            }
            1 => {
                let stag = self.tags[other].stag;
                (Remote { stag, addr }, len, 0, 0, [Cause::TAGGED_NOT_ASSOCIATED, Cause::NOT_ASSOCIATED])
            }
            2 => {
                let addr = u64::MAX - self.rng.below(len as u64);
                (Remote { stag, addr }, len, 0, 0, [Cause::TAGGED_WRAP, Cause::TO_WRAP])
            }
            3 => {
                let t = &self.tags[weak?];
                let addr = t.base.wrapping_add(at);
                (Remote { stag: t.stag, addr }, len, 0, 0, [Cause::TAGGED_STAG, Cause::ACCESS])
            }
            _ => {
                // The first part of it is right.
                let len = 1 + self.length();
                let inside = self.below(len).min(SIZES[PUBLIC]);
                let start = SIZES[PUBLIC] - inside;
                let tag = &self.tags[region];
                let addr = tag.base + start as u64;
                addr.checked_add(len as u64)?;
                (Remote { stag: tag.stag, addr }, len, start, inside, [Cause::TAGGED_BOUNDS, Cause::BOUNDS])
            }
        })
    }

    fn wrong_write(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        let (to, len, start, inside, causes) = self.wrong_place(link, side, true)?;
        let mut draft = Draft::new(id, SendOp::Write(to), Completed::Write);
        let bytes = self.write_data(link, side, &mut draft, len)?;
        let mut claim = None;
        if inside > 0 {
            let (peer, by) = (self.links[link].sides[1 - side].node, order(link, side));
            let key = self.number();
            let area = &mut self.nodes[peer].areas[PUBLIC];
            if area.free(&(start..start + inside), by, true) != Free::Yes {
                return None;
            }
            area.claim(key, by, start..start + inside, Use::Sink(bytes[..inside].to_vec()), None);
            claim = Some(key);
        }
        draft.message(Body::Write { len: len as u32 }, Some(causes[0]), claim);
        Some(draft)
    }

    fn wrong_ask(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        if !self.may_ask(link, side) {
            return None;
        }
        let node = self.links[link].sides[side].node;
        let (from, len, _, _, causes) = self.wrong_place(link, side, false)?;
        let (op, completed, len, cause) = if self.half() {
            (SendOp::Read(from), Completed::Read, len, causes[1])
        } else {
            let t = self.peers_tag(link, side, WORDS, |a| a.remote_atomic)?;
            let tag = &self.tags[t];
            let (stag, base) = (tag.stag, tag.base);
            let (to, cause) = match self.below(3) {
                0 => (Remote { stag, addr: base + 1 + self.rng.below(7) }, Cause::STREAM),
                1 => (Remote { stag, addr: base.wrapping_add(SIZES[WORDS] as u64) }, Cause::BOUNDS),
                _ => (Remote { stag: Stag(self.rng.u32() & 0xff), addr: base }, Cause::INVALID_STAG),
            };
            to.addr.checked_add(8)?;
            (SendOp::FetchAdd { to, add: 1, mask: 0 }, Completed::FetchAdd, 8, cause)
        };
        let mut draft = Draft::new(id, op, completed);
        draft.data = Data::Gather(self.untouched_sink(node, len, &mut draft.work.own)?);
        draft.work.refused = Some(Wrong { cause, certain: true });
        draft.message(Body::Ask, Some(cause), None);
        Some(draft)
    }

    /// A sink that nothing comes to.
    fn untouched_sink(&mut self, node: usize, len: usize, own: &mut Vec<u64>) -> Option<List> {
        let list = self.sink(node, Some(Vec::new()), len, own)?;
        let claim = self.nodes[node].areas[OWN].claims.last_mut()?;
        claim.what = Use::Source;
        Some(list)
    }

    /// What this machine itself must refuse.
    fn wrong_at_home(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        let it = &self.links[link].sides[side];
        let (node, established, ord) = (it.node, it.established, it.depths.1);
        let nowhere = Sge { stag: Stag(self.rng.u32() & 0xff), addr: 0, len: 1 + self.rng.below(5000) as u32 };
        let (op, completed, list, status) = match self.below(5) {
            0 => (SendOp::Send, Completed::Send, List::from_iter([nowhere]), Status::LocalProtection),
            1 => {
                let t = self.peers_tag(link, side, PUBLIC, |a| a.remote_write)?;
                let to = Remote { stag: self.tags[t].stag, addr: self.tags[t].base };
                let (stag, base) = self.nodes[node].own[0];
                let beyond = Sge { stag, addr: base.checked_add(SIZES[OWN] as u64 - 9)?, len: 10 };
                let good = Sge { stag, addr: base, len: 2000 };
                let list = if self.half() { List::from_iter([beyond]) } else { List::from_iter([good, beyond]) };
                (SendOp::Write(to), Completed::Write, list, Status::LocalProtection)
            }
            2 => {
                if !established {
                    return None;
                }
                let t = self.peers_tag(link, side, PUBLIC, |a| a.remote_read)?;
                let from = Remote { stag: self.tags[t].stag, addr: self.tags[t].base };
                // Not writable.
                let (stag, addr) = self.nodes[node].own[1];
                let status = if ord == 0 { Status::LocalOperation } else { Status::LocalProtection };
                let list = List::from_iter([Sge { stag, addr, len: 1 }]);
                (SendOp::Read(from), Completed::Read, list, status)
            }
            3 => {
                let op = SendOp::Invalidate(Stag(self.rng.u32() & 0xff));
                (op, Completed::Invalidate, List::new(), Status::Bind)
            }
            _ => {
                let region = self.tags.iter().find(|t| t.node == node)?;
                let (stag, base, access) = (region.stag, region.base, region.access);
                let window = self.tags.iter().find(|t| {
                    t.node == node && matches!(t.kind, TagKind::Window(_)) && t.state == TagState::Free
                });
                let window = window?.stag;
                let addr = base.checked_add(1)?;
                let op = SendOp::Bind { window, region: stag, addr, len: SIZES[PUBLIC] as u64, access };
                (op, Completed::Bind, List::new(), Status::Bind)
            }
        };
        let mut draft = Draft::new(id, op, completed);
        draft.data = Data::Gather(list);
        draft.work.fails = Some(status);
        Some(draft)
    }

    /// Posts a receive.
    pub(crate) fn post_receive(&mut self, link: usize, side: usize) {
        let it = &self.links[link].sides[side];
        let (at, shares, qp) = (it.node, it.shares, it.qp);
        let full = if shares { self.nodes[at].shared.len() >= 60 } else { it.receives.len() >= 40 };
        if self.nodes[at].dead || it.over || full || it.closed_to_receives || self.calm {
            return;
        }
        let (id, len) = (self.number(), if shares { SHARED_RECV } else { self.length() });
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
            it.rooms.push_back(receive.capacity());
            it.receives.push_back(receive);
            node.rnic.post_recv(qp, request).unwrap();
        }
        self.hear(at);
    }

    /// The program takes a region back while peers may be using it.
    pub(crate) fn revoke(&mut self) {
        let it = self.below(self.tags.len());
        let tag = &self.tags[it];
        let first = self.tags.iter().position(|t| t.node == tag.node) == Some(it);
        let plain = tag.kind == TagKind::Region && tag.area == PUBLIC && tag.state == TagState::Live;
        let node = &mut self.nodes[tag.node];
        if first || !plain || node.dead || tag.pd != node.pds[0] {
            return;
        }
        let area = &mut node.areas[PUBLIC];
        let mut keys = Vec::new();
        for claim in area.claims.iter().filter(|c| c.tag == Some(it) && matches!(c.what, Use::Sink(_))) {
            let range = &claim.range;
            let over = area.claims.iter().any(|c| {
                c.key != claim.key && c.range.start < range.end && range.start < c.range.end
            });
            if over {
                return;
            }
            keys.push(claim.key);
        }
        node.rnic.deregister(tag.stag).unwrap();
        assert_eq!(node.rnic.deregister(tag.stag), Err(PostError::Invalid));
        for &key in &keys {
            area.adopt(key, &[], &node.ram.arrays[PUBLIC]);
        }
        self.tags[it].state = TagState::Lost;
        for side in self.links.iter_mut().flat_map(|l| &mut l.sides) {
            for message in &mut side.messages {
                if message.claim.is_some_and(|key| keys.contains(&key)) {
                    message.claim = None;
                    message.wrong.get_or_insert(Wrong { cause: Cause::TAGGED_STAG, certain: false });
                }
            }
            for work in side.works.iter_mut().filter(|w| w.uses == Some(it)) {
                let wrong = Wrong { cause: Cause::INVALID_STAG, certain: false };
                work.refused.get_or_insert(wrong);
                let mut messages = side.messages.iter_mut();
                if let Some(message) = messages.find(|m| m.id == work.id && matches!(m.body, Body::Ask)) {
                    message.wrong.get_or_insert(wrong);
                }
            }
        }
    }

    /// The side that asked sends something, if it has not yet, so that the other may.
    pub(crate) fn open_up(&mut self, link: usize) {
        let it = &self.links[link].sides[0];
        if it.established && !it.over && !self.nodes[it.node].dead && !it.disconnected {
            let id = self.number();
            let mut draft = Draft::new(id, SendOp::Write(Remote::default()), Completed::Write);
            draft.message(Body::Write { len: 0 }, None, None);
            self.submit(link, 0, draft);
        }
    }

    /// Some requests right before the end.
    pub(crate) fn last_posts(&mut self, link: usize, side: usize) {
        let it = &self.links[link].sides[side];
        if it.over || !it.established || self.nodes[it.node].dead {
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
        self.calm = true;
    }
}

/// A sum of fields: a bit of the mask is the highest of its field, and its carry goes nowhere.
fn masked_sum(a: u64, b: u64, mask: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..64 {
        let here = (a >> bit & 1) + (b >> bit & 1) + carry;
        sum |= (here & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { here >> 1 };
    }
    sum
}
