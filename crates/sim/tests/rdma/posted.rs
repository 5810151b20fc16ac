//! Posted requests, receives and tags, with the outcome that the oracle expects of each.

use sprat_proto::rdma::mr::WindowKind;
use sprat_proto::rdma::{Access, Completed, Pd, Stag, Status};
use sprat_proto::wire::rdmap::Cause;

/// The area of sources, receives and sinks of Reads.
pub(crate) const OWN: usize = 0;
/// The area that peers read and write.
pub(crate) const PUBLIC: usize = 1;
/// The area of words for atomics.
pub(crate) const WORDS: usize = 2;
/// The bytes of each area.
pub(crate) const SIZES: [usize; 3] = [1 << 16, 1 << 15, 8 * WORD_COUNT];
pub(crate) const WORD_COUNT: usize = 64;
/// The words to which all sides add 1.
pub(crate) const COMMON_WORDS: usize = 4;
/// The bytes of a receive in a shared queue.
pub(crate) const SHARED_RECV: usize = 1500;

/// No access rights.
pub(crate) const NONE: Access = Access {
    local_write: false,
    remote_write: false,
    remote_read: false,
    remote_atomic: false,
    bind: false,
};

/// The fault of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wrong {
    pub(crate) cause: Cause,
    /// The message must fail; otherwise it may.
    pub(crate) certain: bool,
}

#[derive(Debug)]
pub(crate) enum Body {
    Write {
        len: u32,
    },
    /// The message consumes a receive.
    Send {
        bytes: Vec<u8>,
        immediate: Option<u64>,
        tag: Option<(usize, Stag)>,
        solicited: bool,
        written: u32,
    },
    /// A Read or an atomic.
    Ask,
}

/// A message in flight to the peer.
#[derive(Debug)]
pub(crate) struct Message {
    /// The number of its work request.
    pub(crate) id: u64,
    pub(crate) body: Body,
    pub(crate) wrong: Option<Wrong>,
    /// The claim on the peer's public bytes.
    pub(crate) claim: Option<u64>,
    /// The peer's tag in a Read or an atomic.
    pub(crate) uses: Option<usize>,
}

/// The effect of a work request on a local tag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TagChange {
    Live(usize),
    Free(usize),
}

/// A work request of a send queue.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) id: u64,
    pub(crate) completed: Completed,
    pub(crate) signaled: bool,
    pub(crate) len: u32,
    /// The claims on local bytes that it sends or fills.
    pub(crate) own: Vec<u64>,
    /// The claim on the bytes of the peer that it reads.
    pub(crate) source: Option<u64>,
    /// The number of a private word of the peer; none for a common word, which has only the claim
    /// of the result.
    pub(crate) word: Option<usize>,
    pub(crate) common: bool,
    /// The expected local failure.
    pub(crate) fails: Option<Status>,
    /// The expected failure at the peer.
    pub(crate) refused: Option<Wrong>,
    pub(crate) change: Option<TagChange>,
    /// The peer's tag.
    pub(crate) uses: Option<usize>,
}

/// A receive.
#[derive(Clone, Debug)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    /// The claims of its elements, and their lengths in bytes.
    pub(crate) list: Vec<(u64, usize)>,
}

impl Receive {
    pub(crate) fn capacity(&self) -> usize {
        self.list.iter().map(|(_, len)| len).sum()
    }
}

/// A tag that peers may use.
#[derive(Debug)]
pub(crate) struct Tag {
    pub(crate) stag: Stag,
    /// The tag with its previous key.
    pub(crate) before: Stag,
    pub(crate) node: usize,
    pub(crate) area: usize,
    pub(crate) offset: usize,
    pub(crate) base: u64,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) pd: Pd,
    /// The only end whose peer may use it, as a link and a side.
    pub(crate) only: Option<(usize, usize)>,
    pub(crate) kind: TagKind,
    pub(crate) state: TagState,
}

impl Tag {
    /// Makes an unbound tag, which permits nothing.
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
    /// The tag is not bound.
    Free,
    /// A request in progress changes the tag.
    Changing,
    /// The state is unknown, or the tag no longer exists.
    Lost,
}
