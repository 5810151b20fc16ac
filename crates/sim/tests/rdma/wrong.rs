//! Faults of the simulated RDMA programs: requests that must fail, locally or at the peer, and tags
//! invalidated while in use.

use sprat_proto::rdma::{Completed, Data, Remote, SendOp, Sge, Stag, Status};
use sprat_proto::wire::rdmap::Cause;

use super::memory::{Free, Use};
use super::post::{Draft, List, order};
use super::posted::{Body, OWN, PUBLIC, SIZES, TagKind, TagState, WORDS, Wrong};
use super::world::World;

impl World {
    /// Drafts a work request that must fail, locally or at the peer.
    pub(crate) fn any_wrong(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
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
                let stag =
                    if self.half() { self.tags[region].stag } else { Stag(self.rng.u32() & 0xff) };
                draft.op = SendOp::SendInvalidate(stag);
                draft.messages[0].wrong =
                    Some(Wrong { cause: Cause::CANNOT_INVALIDATE, certain: true });
                Some(draft)
            }
            8 => self.unexpected(link, side, id),
            _ => self.wrong_at_home(link, side, id),
        }
    }

    /// Drafts a Send for which no receive is ever posted.
    fn unexpected(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        self.links[link].rnr_timeout_ns(1 - side)?;
        let other = &mut self.links[link].sides[1 - side];
        if other.shares || !other.rooms.is_empty() {
            return None;
        }
        other.closed_to_receives = true;
        let mut draft = Draft::new(id, SendOp::Send, Completed::Send);
        let body = Body::Send {
            bytes: Vec::new(),
            immediate: None,
            tag: None,
            solicited: false,
            written: 0,
        };
        draft.message(body, Some(Cause::UNTAGGED_NO_BUFFER), None);
        Some(draft)
    }

    /// Draws a wrong tag, address or length of the peer's memory, with the error codes of DDP and
    /// of RDMAP for it.
    fn wrong_place(
        &mut self,
        link: usize,
        side: usize,
        write: bool,
    ) -> Option<(Remote, usize, usize, usize, [Cause; 2])> {
        let peer = self.links[link].sides[1 - side].node;
        let region = self.tags.iter().position(|t| t.node == peer)?;
        let other =
            self.tags.iter().position(|t| t.node == peer && t.pd == self.nodes[peer].pds[1])?;
        let len = 1 + self.below(100);
        let weak = self.tags.iter().position(|t| {
            let live =
                t.node == peer && t.area == PUBLIC && t.state == TagState::Live && t.only.is_none();
            live && t.kind == TagKind::Region
                && !(if write { t.access.remote_write } else { t.access.remote_read })
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
                (
                    Remote { stag, addr },
                    len,
                    0,
                    0,
                    [Cause::TAGGED_NOT_ASSOCIATED, Cause::NOT_ASSOCIATED],
                )
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
                // The first part of the range is valid.
                let len = 1 + self.length();
                let inside = self.below(len).min(SIZES[PUBLIC]);
                let start = SIZES[PUBLIC] - inside;
                let tag = &self.tags[region];
                let addr = tag.base + start as u64;
                addr.checked_add(len as u64)?;
                (
                    Remote { stag: tag.stag, addr },
                    len,
                    start,
                    inside,
                    [Cause::TAGGED_BOUNDS, Cause::BOUNDS],
                )
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
                _ => {
                    (Remote { stag: Stag(self.rng.u32() & 0xff), addr: base }, Cause::INVALID_STAG)
                }
            };
            to.addr.checked_add(8)?;
            (SendOp::FetchAdd { to, add: 1, mask: 0 }, Completed::FetchAdd, 8, cause)
        };
        let mut draft = Draft::new(id, op, completed);
        draft.data = Data::Gather(match self.sink_of_a_read(link, side, len) {
            Some(list) if self.half() => list,
            _ => self.untouched_sink(node, len, &mut draft.work.own)?,
        });
        draft.work.refused = Some(Wrong { cause, certain: true });
        draft.message(Body::Ask, Some(cause), None);
        Some(draft)
    }

    /// Returns the sink of an earlier Read in progress, as a scatter/gather list. Only that Read
    /// writes to it.
    fn sink_of_a_read(&self, link: usize, side: usize, len: usize) -> Option<List> {
        let it = &self.links[link].sides[side];
        let node = &self.nodes[it.node];
        let (stag, base) = node.own[0];
        let reads =
            it.works.iter().filter(|w| w.completed == Completed::Read && w.change.is_none());
        let mut claims =
            reads.flat_map(|w| node.areas[OWN].claims.iter().filter(|c| w.own.contains(&c.key)));
        let claim = claims.find(|c| c.range.len() >= len)?;
        Some(List::from_iter([Sge {
            stag,
            addr: base + claim.range.start as u64,
            len: len as u32,
        }]))
    }

    /// Returns a scatter/gather list for a sink that no response reaches.
    fn untouched_sink(&mut self, node: usize, len: usize, own: &mut Vec<u64>) -> Option<List> {
        let list = self.sink(node, Some(Vec::new()), len, own)?;
        let claim = self.nodes[node].areas[OWN].claims.last_mut()?;
        claim.what = Use::Source;
        Some(list)
    }

    /// Drafts a work request that the local machine must refuse.
    fn wrong_at_home(&mut self, link: usize, side: usize, id: u64) -> Option<Draft> {
        let it = &self.links[link].sides[side];
        let (node, established, ord) = (it.node, it.established, it.depths.1);
        let nowhere = Sge {
            stag: Stag(self.rng.u32() & 0xff),
            addr: 0,
            len: 1 + self.rng.below(5000) as u32,
        };
        let (op, completed, list, status) = match self.below(5) {
            0 => {
                (SendOp::Send, Completed::Send, List::from_iter([nowhere]), Status::LocalProtection)
            }
            1 => {
                let t = self.peers_tag(link, side, PUBLIC, |a| a.remote_write)?;
                let to = Remote { stag: self.tags[t].stag, addr: self.tags[t].base };
                let (stag, base) = self.nodes[node].own[0];
                let beyond = Sge { stag, addr: base.checked_add(SIZES[OWN] as u64 - 9)?, len: 10 };
                let good = Sge { stag, addr: base, len: 2000 };
                let list = if self.half() {
                    List::from_iter([beyond])
                } else {
                    List::from_iter([good, beyond])
                };
                (SendOp::Write(to), Completed::Write, list, Status::LocalProtection)
            }
            2 => {
                if !established {
                    return None;
                }
                let t = self.peers_tag(link, side, PUBLIC, |a| a.remote_read)?;
                let from = Remote { stag: self.tags[t].stag, addr: self.tags[t].base };
                // The memory is not writable.
                let (stag, addr) = self.nodes[node].own[1];
                let status =
                    if ord == 0 { Status::LocalOperation } else { Status::LocalProtection };
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
                    t.node == node
                        && matches!(t.kind, TagKind::Window(_))
                        && t.state == TagState::Free
                });
                let window = window?.stag;
                let addr = base.checked_add(1)?;
                let op =
                    SendOp::Bind { window, region: stag, addr, len: SIZES[PUBLIC] as u64, access };
                (op, Completed::Bind, List::new(), Status::Bind)
            }
        };
        let mut draft = Draft::new(id, op, completed);
        draft.data = Data::Gather(list);
        draft.work.fails = Some(status);
        Some(draft)
    }
}
