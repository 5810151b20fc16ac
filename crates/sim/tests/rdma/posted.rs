//! Posted RDMA requests, receives and tags, with the outcome that the oracle expects of each.

use sprat_proto::rdma::mr::WindowKind;
use sprat_proto::rdma::{Access, Completed, Pd, Stag, Status};
use sprat_proto::wire::rdmap::Cause;

/// The number of the memory area with sources, receives and sinks of Reads.
pub(crate) const OWN: usize = 0;
/// The number of the memory area that peers read and write.
pub(crate) const PUBLIC: usize = 1;
/// The number of the memory area with words for atomics.
pub(crate) const WORDS: usize = 2;
/// The length of each memory area in bytes.
pub(crate) const SIZES: [usize; 3] = [1 << 16, 1 << 15, 8 * WORD_COUNT];
pub(crate) const WORD_COUNT: usize = 64;
/// The number of words to which the programs of all machines add 1.
pub(crate) const COMMON_WORDS: usize = 4;
/// The length in bytes of a receive in a shared receive queue.
pub(crate) const SHARED_RECV: usize = 1500;

/// The access of a tag without any rights.
pub(crate) const NONE: Access = Access {
    local_write: false,
    remote_write: false,
    remote_read: false,
    remote_atomic: false,
    bind: false,
};

/// The fault of a message that the peer must or may refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wrong {
    pub(crate) cause: Cause,
    /// True if the message must fail; otherwise it may fail.
    pub(crate) certain: bool,
}

#[derive(Debug)]
pub(crate) enum Body {
    Write {
        len: u32,
    },
    /// A Send, which consumes a receive.
    Send {
        bytes: Vec<u8>,
        immediate: Option<u64>,
        tag: Option<(usize, Stag)>,
        solicited: bool,
        written: u32,
    },
    /// A Read or an atomic, which asks the peer for a response.
    Ask,
}

/// A message of a posted work request, in flight to the peer.
#[derive(Debug)]
pub(crate) struct Message {
    /// The number of the message's work request.
    pub(crate) id: u64,
    pub(crate) body: Body,
    pub(crate) wrong: Option<Wrong>,
    /// The message's claim on bytes of the peer's public area.
    pub(crate) claim: Option<u64>,
    /// The peer's tag that a Read or an atomic uses.
    pub(crate) uses: Option<usize>,
}

/// The effect of a work request on a local tag, once it succeeds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TagChange {
    Live(usize),
    Free(usize),
}

/// A posted work request of a send queue, with the outcome that the oracle expects.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) completed: Completed,
    pub(crate) signaled: bool,
    pub(crate) len: u32,
    /// The work request's claims on local bytes that it sends or fills.
    pub(crate) own: Vec<u64>,
    /// The work request's claim on the bytes of the peer that it reads.
    pub(crate) source: Option<u64>,
    /// The index of the peer's word that an atomic changes; none for other work requests.
    pub(crate) word: Option<usize>,
    pub(crate) common: bool,
    /// The local failure that the oracle expects of the work request.
    pub(crate) fails: Option<Status>,
    /// The failure at the peer that the oracle expects of the work request.
    pub(crate) refused: Option<Wrong>,
    pub(crate) change: Option<TagChange>,
    /// The steering tag of the peer that the work request uses.
    pub(crate) uses: Option<usize>,
}

/// A posted receive of a queue pair or of a shared receive queue.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    /// The claims of the receive's scatter/gather elements, and their lengths in bytes.
    pub(crate) list: Vec<(u64, usize)>,
}

impl Receive {
    pub(crate) fn capacity(&self) -> usize {
        self.list.iter().map(|(_, len)| len).sum()
    }
}

/// A steering tag that peers may use, and the state that the oracle expects.
#[derive(Debug)]
pub(crate) struct Tag {
    pub(crate) stag: Stag,
    /// The steering tag with its previous key.
    pub(crate) before: Stag,
    pub(crate) node: usize,
    pub(crate) area: usize,
    pub(crate) offset: usize,
    pub(crate) base: u64,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) pd: Pd,
    /// The only end of a stream whose peer may use the tag, as a link and a side.
    pub(crate) only: Option<(usize, usize)>,
    pub(crate) kind: TagKind,
    pub(crate) state: TagState,
}

impl Tag {
    /// Makes an unbound steering tag, which permits nothing.
    pub(crate) fn blank(node: usize, stag: Stag, pd: Pd, kind: TagKind) -> Self {
        let (area, offset, base, len, access) = (PUBLIC, 0, 0, 0, NONE);
        let (before, only, state) = (stag, None, TagState::Free);
        Self { stag, before, node, area, offset, base, len, access, pd, only, kind, state }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TagKind {
    Region,
    Window(WindowKind),
    Fast,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TagState {
    Live,
    /// The steering tag is not bound.
    Free,
    /// A request in progress changes the steering tag.
    Changing,
    /// The test cannot know the state of the steering tag, or the tag is deregistered.
    Lost,
}
