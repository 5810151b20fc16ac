//! The oracle of the simulated RDMA world: compares the events and completions of an engine with
//! the posted requests.

use sprat_proto::rdma::{Completed, Completion, Event, QpState, StartupError, Status};
use sprat_proto::wire::mpa::RtrKind;
use sprat_proto::wire::rdmap::Cause;

use super::memory::number;
use super::posted::{
    Body, COMMON_WORDS, Message, OWN, PUBLIC, Receive, TagChange, TagState, WORDS, Work,
};
use super::world::World;

impl World {
    /// Takes the events of a machine's engine. Events of completion queues come first, because
    /// handlers of the others poll the queues.
    pub(crate) fn take_results(&mut self, at: usize) {
        loop {
            let rnic = &mut self.nodes[at].rnic;
            let mut events: Vec<Event> = std::iter::from_fn(|| rnic.event()).collect();
            if events.is_empty() {
                return;
            }
            events.sort_by_key(|event| !matches!(event, Event::CqReady(_)));
            for event in events {
                self.event(at, event);
            }
        }
    }

    fn event(&mut self, at: usize, event: Event) {
        match event {
            Event::ConnectRequest { conn, private_data, ird, ord } => {
                let (link, side) = self.find(at, conn).expect("a stream that is there");
                assert_eq!(side, 1);
                let it = &mut self.links[link];
                assert_eq!(private_data, it.connect.private_data);
                let told = it.connect.revision == Some(2);
                assert_eq!(
                    (ird, ord),
                    (told.then_some(it.connect.ird), told.then_some(it.connect.ord))
                );
                it.crc = it.connect.crc == Some(true) || self.nodes[at].crc;
                let node = &mut self.nodes[at];
                if it.refuse {
                    node.rnic.reject(self.now, conn, &it.accept.private_data).unwrap();
                    self.finish(link, side);
                } else {
                    node.rnic.accept(self.now, conn, it.sides[1].qp, &it.accept).unwrap();
                }
            }
            Event::Established { conn, qp, private_data, ird, ord } => {
                let (link, side) = self.find(at, conn).expect("a stream that is there");
                assert_eq!(qp, self.links[link].sides[side].qp);
                self.established(link, side, &private_data, (ird, ord));
            }
            Event::Rejected { conn, private_data, .. } => {
                let (link, side) = self.find(at, conn).expect("a stream that is there");
                let it = &self.links[link];
                assert!(side == 0 && it.refuse);
                assert_eq!(private_data, it.accept.private_data);
                self.finish(link, side);
            }
            Event::Failed { conn, why, .. } => {
                let (link, side) = self.find(at, conn).expect("a stream that is there");
                let it = &self.links[link];
                let other = it.sides[1 - side].failed;
                let mut works = it.sides[side].works.iter();
                if why == StartupError::Fault(Cause::LOCAL) && works.any(|w| w.fails.is_some()) {
                    self.links[link].sides[side].failed = Some((Cause::LOCAL, true));
                    return self.finish(link, side);
                }
                assert!(
                    it.cut || it.refuse || it.ending || other.is_some(),
                    "{why:?} without a reason"
                );
                self.finish(link, side);
            }
            Event::QpFailed { qp, cause, ours } => {
                let (link, side) = self.find_qp(at, qp).expect("a queue pair that is there");
                self.failed(link, side, cause, ours);
            }
            Event::Disconnected { qp } => {
                let (link, side) = self.find_qp(at, qp).expect("a queue pair that is there");
                self.finish(link, side);
            }
            Event::Close { conn, reset } => self.closed(at, conn, reset),
            Event::CqReady(cq) => {
                let it = self.nodes[at].cqs.iter().position(|&c| c == cq).unwrap();
                assert!(
                    self.nodes[at].armed[it].take().is_some(),
                    "a queue wakes that is not armed"
                );
            }
            Event::LastWqe(qp) => {
                let (link, side) = self.find_qp(at, qp).expect("a queue pair that is there");
                assert!(self.links[link].sides[side].shares);
            }
            Event::CqOverflow(_) | Event::SrqLimit(_) => panic!("{event:?}"),
        }
    }

    fn closed(&mut self, at: usize, conn: sprat_proto::rdma::Conn, reset: bool) {
        let (link, side) = self.find(at, conn).expect("a stream closes once");
        let it = &mut self.links[link].sides[side];
        assert!(it.over, "a stream closes before its queue pair is told");
        it.closed = Some(reset);
        it.outbox.clear();
        it.inbox.clear();
        if reset {
            // An abort may lose the bytes in flight.
            let keep = self.rng.below(it.wire.len() as u64 + 1) as usize;
            it.wire.truncate(keep);
        }
        self.nodes[at].ready.retain(|&c| c != conn);
    }

    fn established(&mut self, link: usize, side: usize, private_data: &[u8], depths: (u16, u16)) {
        let it = &mut self.links[link];
        let (a, b) = (&it.connect, &it.accept);
        let rtr_read = a.peer_to_peer == Some(RtrKind::Read);
        let b_ird = if rtr_read { b.ird.max(1) } else { b.ird };
        let told = a.revision == Some(2);
        let expected = match (side, told) {
            (0, true) => (a.ird, a.ord.min(b_ird)),
            (0, false) => (a.ird, a.ord),
            (_, true) => (b_ird, b.ord.min(a.ird)),
            (_, false) => (b.ird, b.ord),
        };
        assert_eq!(depths, expected, "side {side} of {:?} {:?}", it.connect, it.accept);
        let data: &[u8] = if side == 0 { &it.accept.private_data } else { &[] };
        assert_eq!(private_data, data);
        let it = &mut it.sides[side];
        assert!(!it.established && !it.over);
        (it.established, it.depths) = (true, depths);
        self.seen.established += 1;
    }

    /// Checks that a failed connection had a fault that explains the cause of the failure.
    fn failed(&mut self, link: usize, side: usize, cause: Cause, ours: bool) {
        let it = &self.links[link];
        let [this, other] =
            if side == 0 { [&it.sides[0], &it.sides[1]] } else { [&it.sides[1], &it.sides[0]] };
        assert!(this.failed.is_none() && this.established, "{cause} after {:?}", this.failed);
        if !ours {
            assert_eq!(other.failed, Some((cause, true)), "what the other found");
        } else if cause == Cause::MPA_LOST {
            assert!(
                it.cut || it.damaged || it.ending || other.closed == Some(true),
                "lost without a cut"
            );
        } else if cause == Cause::LOCAL {
            assert!(this.works.iter().any(|w| w.fails.is_some()), "no request is wrong");
        } else if cause == Cause::MPA_CRC {
            assert!(it.damaged, "a bad CRC without damage");
        } else {
            let mut wrongs = other.owed.iter().chain(&other.messages).filter_map(|m| m.wrong);
            let mut passed = false;
            let found = wrongs.any(|w| {
                let here = w.cause == cause && !passed;
                passed |= w.certain;
                here
            });
            assert!(
                found,
                "side {side} of link {link} found {cause}, which nobody did: {:?}",
                other.messages
            );
        }
        self.links[link].sides[side].failed = Some((cause, ours));
        self.seen.failures += 1;
    }

    /// Checks that a responder whose peer disconnected in order, without faults, has received all
    /// of its Sends.
    fn check_orderly_end(&self, link: usize, side: usize) {
        let it = &self.links[link];
        let (this, other) = (&it.sides[side], &it.sides[1 - side]);
        let orderly = !it.cut && !it.damaged && this.failed.is_none() && other.failed.is_none();
        if orderly && side == 1 && other.disconnected && !this.disconnected {
            let lost = other.messages.iter().find(|m| matches!(m.body, Body::Send { .. }));
            assert!(lost.is_none(), "an orderly end loses {lost:?}");
        }
    }

    /// Records the end of one side's connection, and checks its state.
    fn finish(&mut self, link: usize, side: usize) {
        let (at, qp) = (self.links[link].sides[side].node, self.links[link].sides[side].qp);
        self.poll(at);
        self.check_orderly_end(link, side);
        while let Some(work) = self.links[link].sides[side].works.pop_front() {
            assert!(!work.signaled, "request {} never completes", work.id);
            self.work_done(link, side, work);
        }
        self.links[link].sides[side].over = true;
        self.finish_messages(link, side);
        let state = self.nodes[at].rnic.state(qp);
        if !self.links[link].sides[side].shares {
            if state == Some(QpState::Idle) {
                self.nodes[at].rnic.destroy_qp(qp).unwrap();
                for receive in std::mem::take(&mut self.links[link].sides[side].receives) {
                    self.drop_receive(at, &receive, &[]);
                }
            }
            let left = self.links[link].sides[side].receives.len();
            assert_eq!(left, 0, "receives are never flushed");
        }
        for tag in self.tags.iter_mut().filter(|t| t.only == Some((link, side))) {
            tag.state = TagState::Lost;
        }
    }

    /// Settles the messages in flight to this side that it no longer accepts, because its
    /// connection has ended.
    fn finish_messages(&mut self, link: usize, side: usize) {
        let at = self.links[link].sides[side].node;
        let (this, other) = (&self.links[link].sides[side], &self.links[link].sides[1 - side]);
        let theirs = |c: Cause| !matches!(c, Cause::MPA_LOST | Cause::LOCAL | Cause::MPA_CRC);
        let found =
            this.failed.filter(|&(cause, ours)| ours && theirs(cause)).map(|(cause, _)| cause);
        // The faulty message is this one, a later one, or one received long ago.
        let may_be = |m: &Message| m.wrong.is_some_and(|w| Some(w.cause) == found);
        let settled =
            other.messages.iter().position(may_be).filter(|_| !other.owed.iter().any(may_be));
        let (flushed, shares) = (this.flushed, this.shares);
        self.links[link].sides[1 - side].owed.clear();
        let messages = std::mem::take(&mut self.links[link].sides[1 - side].messages);
        // All messages before a faulty one were received, except for a Send that waited for its
        // receive.
        let waits = self.links[link].rnr_timeout_ns(side).is_none();
        for message in messages.iter().take(settled.unwrap_or(0)) {
            let sent = matches!(message.body, Body::Send { .. });
            assert!(!sent || waits, "{message:?} was not delivered");
            if !sent {
                self.settle_write(at, message);
            }
        }
        let mut lost = 0;
        for message in messages {
            if let Some(key) = message.claim {
                let node = &mut self.nodes[at];
                node.areas[PUBLIC].adopt(key, &[], &node.ram.arrays[PUBLIC]);
            }
            if let Body::Send { tag, .. } = message.body {
                lost += 1;
                if let Some((tag, _)) = tag {
                    self.tags[tag].state = TagState::Lost;
                }
            }
        }
        if shares {
            self.nodes[at].credit += usize::saturating_sub(lost, flushed);
        }
        let slot = COMMON_WORDS + 2 * link + 1 - side;
        let node = &mut self.nodes[at];
        if let Some((settled, chain)) = node.words.get_mut(slot) {
            let is = number(&node.ram.arrays[WORDS][8 * slot..8 * slot + 8]);
            assert!(is == *settled || chain.contains(&is), "word {slot} is what nobody made of it");
            *settled = is;
            chain.clear();
        }
    }

    pub(crate) fn settle_write(&mut self, at: usize, message: &Message) {
        assert!(message.wrong.is_none_or(|w| !w.certain), "{message:?} was taken as right");
        let node = &mut self.nodes[at];
        if let Some(key) = message.claim
            && !node.dead
        {
            node.areas[PUBLIC].settle(key, &node.ram.arrays[PUBLIC]);
        }
    }

    /// Polls all completions of a simulated machine. Returns true if there were any.
    pub(crate) fn poll(&mut self, at: usize) -> bool {
        let mut any = false;
        for it in 0..self.nodes[at].cqs.len() {
            if self.nodes[at].dead {
                return false;
            }
            let cq = self.nodes[at].cqs[it];
            while let Some(completion) = self.nodes[at].rnic.poll(cq) {
                any = true;
                let solicited = self.completion(at, &completion);
                let counts =
                    |only: bool| !only || solicited || completion.status != Status::Success;
                assert!(
                    !self.nodes[at].armed[it].is_some_and(counts),
                    "{completion:?} did not wake its queue"
                );
            }
            if self.half() {
                let solicited_only = self.half();
                let node = &mut self.nodes[at];
                node.rnic.arm(cq, solicited_only).unwrap();
                node.armed[it] = Some(solicited_only && node.armed[it] != Some(false));
            }
        }
        any
    }

    /// Checks a completion against its request. Returns true if it was solicited.
    fn completion(&mut self, at: usize, c: &Completion) -> bool {
        let (link, side) =
            self.find_qp(at, c.qp).expect("a completion of a queue pair that is there");
        let good = c.status == Status::Success;
        if good {
            self.seen.good += 1
        } else {
            self.seen.flushed += 1
        }
        let queue = usize::from(matches!(c.completed, Completed::Recv | Completed::RecvImmediate));
        let it = &mut self.links[link].sides[side];
        assert!(!good || !it.flushing[queue], "{c:?} behind an error");
        it.flushing[queue] |= !good;
        if !good {
            assert!(
                self.nodes[at].rnic.state(c.qp) != Some(QpState::Ready),
                "{c:?} on a good connection"
            );
        }
        match (queue, good) {
            (0, _) => self.sent(link, side, c),
            (_, true) => return self.received(link, side, c),
            (..) => self.not_received(link, side, c),
        }
        false
    }

    fn sent(&mut self, link: usize, side: usize, c: &Completion) {
        loop {
            let work = self.links[link].sides[side].works.pop_front();
            let work = work.unwrap_or_else(|| panic!("{c:?} of nothing that was posted"));
            if work.id != c.id {
                assert!(!work.signaled, "{c:?} overtakes {work:?}");
                self.work_done(link, side, work);
                continue;
            }
            assert_eq!(work.completed, c.completed);
            if c.status == Status::Success {
                assert!(work.signaled, "{c:?} was not asked for");
                assert_eq!(work.len, c.len, "{c:?}");
                assert_eq!((c.immediate, c.invalidated), (None, None));
                self.work_done(link, side, work);
            } else {
                self.work_lost(link, side, work, c.status);
            }
            return;
        }
    }

    fn release(&mut self, at: usize, key: u64, done: bool) {
        let node = &mut self.nodes[at];
        if node.dead {
            return;
        }
        for (area, array) in node.areas.iter_mut().zip(&node.ram.arrays) {
            if done { area.settle(key, array) } else { area.adopt(key, &[], array) }
        }
    }

    /// Checks the effects of a work request that succeeded.
    pub(crate) fn work_done(&mut self, link: usize, side: usize, work: Work) {
        let (at, peer) = (self.links[link].sides[side].node, self.links[link].sides[1 - side].node);
        assert!(work.fails.is_none(), "{work:?} succeeds");
        let spoilt = self.links[link].damaged || self.links[link].cut;
        assert!(spoilt || work.refused.is_none_or(|w| !w.certain), "{work:?} succeeds");
        let placed = work.signaled && self.links[link].acknowledges(&self.nodes);
        if placed
            || matches!(
                work.completed,
                Completed::Read | Completed::FetchAdd | Completed::CompareSwap
            )
        {
            self.settle_before(link, side, work.id);
        }
        self.links[link].sides[side].owed.retain(|m| m.id > work.id);
        match work.word {
            Some(slot) if work.common => self.counted(at, peer, slot, work.own[0]),
            Some(slot) => {
                let (settled, chain) = &mut self.nodes[peer].words[slot];
                if let Some(new) = chain.pop_front() {
                    *settled = new;
                }
            }
            None => {}
        }
        for key in work.own {
            self.release(at, key, true);
        }
        if let Some(key) = work.source {
            self.release(peer, key, true);
        }
        match work.change {
            Some(TagChange::Live(t)) => self.tags[t].state = TagState::Live,
            Some(TagChange::Free(t)) => self.tags[t].state = TagState::Free,
            None => {}
        }
    }

    /// Settles all messages of a side up to request `id`, because its response or acknowledgement
    /// was received.
    fn settle_before(&mut self, link: usize, side: usize, id: u64) {
        let peer = self.links[link].sides[1 - side].node;
        let mut messages = std::mem::take(&mut self.links[link].sides[side].messages);
        messages.retain(|m| {
            if m.id <= id && !matches!(m.body, Body::Send { .. }) {
                self.settle_write(peer, m);
                return false;
            }
            true
        });
        self.links[link].sides[side].messages = messages;
    }

    /// Checks a value that an atomic returned of a common word. No other atomic may have returned
    /// it.
    fn counted(&mut self, at: usize, peer: usize, slot: usize, key: u64) {
        let node = &mut self.nodes[at];
        let claim = node.areas[OWN].claims.iter().find(|c| c.key == key).expect("it waits");
        let word = node.ram.arrays[OWN][claim.range.clone()].to_vec();
        node.areas[OWN].received(key, &word, &node.ram.arrays[OWN]);
        let (done, _, told) = &mut self.nodes[peer].counts[slot];
        *done += 1;
        assert!(told.insert(number(&word)), "two were told the same count");
    }

    fn work_lost(&mut self, link: usize, side: usize, work: Work, status: Status) {
        let it = &self.links[link];
        let (this, other) = (&it.sides[side], &it.sides[1 - side]);
        let (at, peer) = (this.node, other.node);
        match status {
            Status::Flushed => {}
            Status::RemoteAccess | Status::RemoteOperation => {
                let refused =
                    work.refused.unwrap_or_else(|| panic!("{work:?} is blamed: {:?}", this.failed));
                assert_eq!(status == Status::RemoteAccess, refused.cause.is_access(), "{work:?}");
                assert_eq!(this.failed, Some((refused.cause, false)), "{work:?}");
            }
            _ => {
                assert_eq!(work.fails, Some(status), "{work:?}");
                assert_eq!(this.failed, Some((Cause::LOCAL, true)), "{work:?}");
            }
        }
        let blamed = this.blamed.len();
        let must = match (work.fails, work.refused, this.failed) {
            (Some(_), _, Some((Cause::LOCAL, true))) => blamed == 0,
            (_, Some(w), Some((cause, false))) => w.certain && w.cause == cause && blamed == 0,
            _ => false,
        };
        assert!(!must || status != Status::Flushed, "{work:?} is not blamed for {:?}", this.failed);
        let orderly = this.disconnected && !other.disconnected && !it.cut && !it.damaged;
        let calm = this.failed.is_none() && other.failed.is_none() && !this.over;
        assert!(!(side == 0 && orderly && calm), "an orderly end loses {work:?}");
        if status != Status::Flushed {
            assert_eq!(blamed, 0, "two are blamed");
            self.links[link].sides[side].blamed.push(status);
        }
        self.abandon(peer, &work);
        for key in work.own {
            if work.common {
                let node = &mut self.nodes[at];
                let open = node.areas[OWN].claims.iter().find(|c| c.key == key);
                let word = open
                    .map(|c| node.ram.arrays[OWN][c.range.clone()].to_vec())
                    .unwrap_or_default();
                node.areas[OWN].adopt(key, &word, &node.ram.arrays[OWN]);
            } else {
                self.release(at, key, false);
            }
        }
        if let Some(TagChange::Live(t) | TagChange::Free(t)) = work.change {
            self.tags[t].state = TagState::Lost;
        }
    }

    /// Releases a failed request's claim on the peer's memory. For an atomic on a common word,
    /// counts that it may have happened.
    pub(crate) fn abandon(&mut self, peer: usize, work: &Work) {
        if work.common
            && let Some(slot) = work.word
        {
            self.nodes[peer].counts[slot].1 += 1;
        }
        if let Some(key) = work.source {
            self.release(peer, key, false);
        }
    }

    /// Checks that the memory of a receive has exactly the bytes of its message.
    fn fill_receive(&mut self, at: usize, receive: &Receive, bytes: &[u8]) {
        let mut rest = bytes;
        let node = &mut self.nodes[at];
        for &(key, len) in &receive.list {
            let (here, behind) = rest.split_at(len.min(rest.len()));
            rest = behind;
            node.areas[OWN].received(key, here, &node.ram.arrays[OWN]);
        }
        assert!(rest.is_empty(), "a message is longer than its receive");
    }

    /// Checks that each byte of a flushed receive is its old one or that of a message.
    fn drop_receive(&mut self, at: usize, receive: &Receive, bytes: &[u8]) {
        let mut rest = bytes;
        let node = &mut self.nodes[at];
        for &(key, len) in &receive.list {
            let (here, behind) = rest.split_at(len.min(rest.len()));
            rest = behind;
            node.areas[OWN].adopt(key, here, &node.ram.arrays[OWN]);
        }
    }

    /// Takes the receive that a completion is about off its queue.
    fn take_receive(&mut self, link: usize, side: usize, id: u64) -> Receive {
        let it = &mut self.links[link].sides[side];
        if !it.shares {
            let receive = it.receives.pop_front().expect("a receive was posted");
            assert_eq!(receive.id, id, "receives complete in order");
            return receive;
        }
        assert!(id > it.last_shared, "shared receives are taken in order");
        it.last_shared = id;
        let shared = &mut self.nodes[it.node].shared;
        let at = shared.iter().position(|r| r.id == id).expect("a receive was posted");
        shared.remove(at).unwrap()
    }

    fn received(&mut self, link: usize, side: usize, c: &Completion) -> bool {
        let at = self.links[link].sides[side].node;
        let receive = self.take_receive(link, side, c.id);
        loop {
            let message = self.links[link].sides[1 - side].messages.pop_front();
            let message = message.unwrap_or_else(|| panic!("{c:?} of nothing that was sent"));
            let Body::Send { bytes, immediate, tag, solicited, written } = &message.body else {
                self.settle_write(at, &message);
                if matches!(message.body, Body::Ask) {
                    self.links[link].sides[1 - side].owed.push(message);
                }
                continue;
            };
            assert!(message.wrong.is_none_or(|w| !w.certain), "{message:?} was taken as right");
            assert_eq!(c.immediate, *immediate);
            assert_eq!(c.invalidated, tag.map(|(_, stag)| stag));
            if immediate.is_some() {
                assert_eq!(c.completed, Completed::RecvImmediate);
                assert!(c.len == *written || c.len == 0, "{c:?} {message:?}");
            } else {
                assert_eq!((c.completed, c.len as usize), (Completed::Recv, bytes.len()));
            }
            self.fill_receive(at, &receive, bytes);
            if let Some((tag, _)) = *tag {
                self.tags[tag].state = TagState::Free;
            }
            return *solicited;
        }
    }

    fn not_received(&mut self, link: usize, side: usize, c: &Completion) {
        let at = self.links[link].sides[side].node;
        let is_late = !self.links[link].sides[side].shares
            && self.links[link].sides[side].receives.is_empty();
        assert!(!is_late, "{c:?} of nothing that was posted");
        let receive = self.take_receive(link, side, c.id);
        let it = &mut self.links[link].sides[side];
        let (which, failed) = (it.flushed, it.failed);
        it.flushed += 1;
        let other = &self.links[link].sides[1 - side];
        let sends = other.messages.iter().filter_map(|m| match &m.body {
            Body::Send { bytes, .. } => Some((bytes, m.wrong)),
            _ => None,
        });
        let message = sends.clone().nth(which);
        if c.status != Status::Flushed {
            assert_eq!(c.status, Status::LocalLength);
            let wrong = message.and_then(|(_, wrong)| wrong).map(|w| (w.cause, true));
            assert_eq!((which, wrong), (0, failed), "{c:?}");
        }
        let bytes = message.map(|(bytes, _)| bytes.clone()).unwrap_or_default();
        self.drop_receive(at, &receive, &bytes);
    }
}
