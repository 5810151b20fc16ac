//! The control socket of a memif link: the exchange of messages that makes the link's rings.
//!
//! ```text
//! server ─ Hello ─►   ◄─ Init ─  Ack ─►   ◄─ AddRegion, its file ─  Ack ─►
//!          ◄─ AddRing (twice or more) ─  Ack ─►   ◄─ Connect ─  Connected ─►
//! either ─ Disconnect, why ─►
//! ```
//!
//! Always holds: a peer that sends a message out of turn gets a Disconnect. Memory is mapped only
//! from files that cannot shrink, and no more of it than the limits below.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use sprat_proto::wire::memif::{
    AddRing, Hello, Init, LOG2_RING_MAX, MESSAGE, Message, REASON, SECRET, VERSION, chars, ring_len,
};

use super::super::burst::Burst;
use super::ring::{Broken, Laid, Place, Ring, Sink, Source, interrupt};
use crate::driver::shm::connected::Connected;
use sprat_sys::memory::{Region, Sealed};

/// The most regions of memory that a peer may add. DPDK adds one, or with its zero-copy one for
/// each of its own memory areas.
const MOST_REGIONS: usize = 8;
/// The most rings of a client in each direction.
const MOST_RINGS: usize = 16;
/// The most bytes of one region of a peer.
const MOST_OCTETS: u64 = 256 << 20;
/// The name by which this program introduces itself to a peer.
const NAME: &str = "sprat";

/// The parameters of a link that a client requests, or that a server expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The number of the memif interface. A server without one accepts any number.
    pub(super) id: Option<u32>,
    /// The secret that a client sends and a server expects. Zeros stand for no secret.
    pub(super) secret: [u8; SECRET],
    /// Number of a ring's descriptors, as a power of two. A client chooses it, and the size of a
    /// buffer in the field `buffer`.
    pub(super) log2: u8,
    pub(super) buffer: usize,
}

/// The rings of a link, usually one in each direction. A client with several queues sends by all of
/// its rings and receives by any: so a server empties all rings and fills the first.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) source: Source,
    pub(super) sink: Sink,
    /// Further rings by which the client sends frames.
    pub(super) more: Vec<Source>,
    /// The number of the ring that is emptied first.
    pub(super) first: usize,
}

impl Rings {
    fn new(source: Ring, sink: Ring) -> Self {
        Self { source: Source::new(source), sink: Sink::new(sink), more: Vec::new(), first: 0 }
    }

    /// Returns all rings by which frames arrive.
    pub(super) fn sources(&mut self) -> impl Iterator<Item = &mut Source> {
        std::iter::once(&mut self.source).chain(&mut self.more)
    }

    /// Takes frames out of the rings until they are empty or the burst is full. Returns the number
    /// of bad frames.
    #[inline(always)]
    pub(super) fn take(&mut self, burst: &mut Burst) -> Result<u64, Broken> {
        if self.more.is_empty() { self.source.take(burst) } else { self.take_in_turns(burst) }
    }

    /// Takes frames out of several rings. At each call another ring is the first.
    #[inline(never)]
    fn take_in_turns(&mut self, burst: &mut Burst) -> Result<u64, Broken> {
        let all = 1 + self.more.len();
        self.first = (self.first + 1) % all;
        let mut bad = 0;
        for n in (self.first..all).chain(0..self.first) {
            let source = if n == 0 { &mut self.source } else { &mut self.more[n - 1] };
            bad += source.take(burst)?;
        }
        Ok(bad)
    }
}

/// The stage of the exchange that makes a link.
#[derive(Debug)]
enum Stage {
    /// The server's stage: it collects the messages of the client.
    Server(Box<Said>),
    /// The client's stage: it waits for `Hello`, and then for the answer to each of its messages.
    Client(Option<Box<Saying>>),
    /// The exchange has ended.
    Done,
}

/// The messages that a client has sent so far, as the server keeps them.
#[derive(Debug, Default)]
struct Said {
    greeted: bool,
    regions: Vec<Arc<Region>>,
    /// The rings to the server, and those to the client, each with its interrupt.
    rings: [Vec<(AddRing, OwnedFd)>; 2],
}

/// The messages that a client still has to send, the last one first, and the rings that they
/// describe.
#[derive(Debug)]
struct Saying {
    left: Vec<(Message, Option<OwnedFd>)>,
    to_server: Ring,
    to_client: Ring,
}

/// The control socket of one link, and the stage of its exchange.
#[derive(Debug)]
pub(super) struct Control {
    socket: Connected,
    stage: Stage,
}

/// The result of one step of the exchange.
#[derive(Debug)]
pub(super) enum Progress {
    /// The exchange goes on, or no message has arrived.
    None,
    /// The link is made, with these rings.
    Linked(Box<Rings>),
    /// The link has ended; the text is the reason.
    Ended(String),
}

impl Control {
    /// Begins the exchange on a connection that the server has accepted.
    pub(super) fn server(socket: Connected) -> io::Result<Self> {
        let hello = Hello {
            name: chars(NAME),
            min_version: VERSION,
            max_version: VERSION,
            max_region: MOST_REGIONS as u16 - 1,
            max_to_client: MOST_RINGS as u16 - 1,
            max_to_server: MOST_RINGS as u16 - 1,
            max_log2: LOG2_RING_MAX,
        };
        let control = Self { socket, stage: Stage::Server(Box::default()) };
        control.say(&Message::Hello(hello), None)?;
        Ok(control)
    }

    /// Begins the exchange on a connection that the client has made.
    pub(super) fn client(socket: Connected) -> Self {
        Self { socket, stage: Stage::Client(None) }
    }

    pub(super) fn socket(&self) -> &Connected {
        &self.socket
    }

    /// True once the exchange has made the link.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    fn say(&self, message: &Message, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = fd.into_iter().collect();
        if !fds.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(
            &self.socket,
            &[IoSlice::new(&message.emit())],
            &mut ancillary,
            flags,
        )?;
        Ok(())
    }

    /// Sends the peer a Disconnect with the reason.
    pub(super) fn leave(&self, why: &str) {
        // A peer that takes nothing more finds out by the socket's end.
        let _ = self.say(&Message::Disconnect { code: 0, reason: chars(why) }, None);
    }

    /// Receives the next message of the peer, with the file descriptor that it carries. `None` if
    /// no message has arrived.
    fn hear(&self) -> io::Result<Option<(Message, Option<OwnedFd>)>> {
        let mut bytes = [0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        let n = match rustix::net::recvmsg(&self.socket, parts, &mut ancillary, flags) {
            Err(Errno::AGAIN) => return Ok(None),
            Err(e) => return Err(e.into()),
            Ok(got) => got.bytes,
        };
        let fd = ancillary.drain().find_map(|m| match m {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        match n {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the peer has gone")),
            MESSAGE => match Message::parse(&bytes) {
                Ok(message) => Ok(Some((message, fd))),
                Err(bad) => Err(io::Error::new(io::ErrorKind::InvalidData, bad)),
            },
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a message of the wrong size")),
        }
    }

    /// Handles at most one message of the peer.
    pub(super) fn turn(&mut self, wanted: &Wanted) -> Progress {
        let (message, fd) = match self.hear() {
            Ok(None) => return Progress::None,
            Ok(Some(heard)) => heard,
            Err(e) => return self.end(&e.to_string()),
        };
        if let Message::Disconnect { reason, .. } = message {
            return Progress::Ended(format!("the peer says: {}", text(&reason)));
        }
        let went = match &mut self.stage {
            Stage::Server(said) => serve(said, wanted, message, fd),
            Stage::Client(saying) => go_on(saying, wanted, message),
            Stage::Done => Err("nothing more was to be said"),
        };
        match went {
            Err(why) => self.end(why),
            Ok(Answer::Say(message, fd)) => {
                match self.say(&message, fd.as_ref().map(|f| f.as_fd())) {
                    Ok(()) => Progress::None,
                    Err(e) => self.end(&e.to_string()),
                }
            }
            Ok(Answer::Link(rings)) => {
                let server = matches!(self.stage, Stage::Server(_));
                self.stage = Stage::Done;
                if server && let Err(e) = self.say(&Message::Connected(chars(NAME)), None) {
                    return self.end(&e.to_string());
                }
                Progress::Linked(rings)
            }
        }
    }

    fn end(&self, why: &str) -> Progress {
        self.leave(why);
        Progress::Ended(why.to_owned())
    }
}

/// The reaction to a message of the peer: a message to send, or the link.
enum Answer {
    Say(Message, Option<OwnedFd>),
    Link(Box<Rings>),
}

type Went = Result<Answer, &'static str>;

/// Returns the text of a peer's reason up to its zero, without control characters.
fn text(reason: &[u8; REASON]) -> String {
    let words = reason.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(words).chars().filter(|c| !c.is_control()).collect()
}

/// Handles a client's message, as the server.
fn serve(said: &mut Said, wanted: &Wanted, message: Message, fd: Option<OwnedFd>) -> Went {
    match message {
        Message::Init(init) if !said.greeted => {
            check(&init, wanted)?;
            said.greeted = true;
        }
        Message::AddRegion { index, size } if said.greeted => {
            if usize::from(index) != said.regions.len() || said.regions.len() == MOST_REGIONS {
                return Err("Invalid region index");
            }
            if size == 0 || size > MOST_OCTETS {
                return Err("Invalid region size");
            }
            let file = Sealed::unshrinkable(fd.ok_or("Missing region fd")?, size as usize)
                .map_err(|_| "The region's file is too short, or may shrink")?;
            let region = Region::map_sparse(&file).map_err(|_| "The region cannot be mapped")?;
            said.regions.push(Arc::new(region));
        }
        Message::AddRing(ring) if said.greeted => {
            let rings = &mut said.rings[usize::from(!ring.to_server)];
            if usize::from(ring.index) != rings.len() || rings.len() == MOST_RINGS {
                return Err("Invalid ring index");
            }
            if ring.private_header != 0 {
                return Err("Private headers are not supported");
            }
            let fd = fd.ok_or("Missing interrupt fd")?;
            if !is_counter(&fd) {
                return Err("The interrupt is no eventfd");
            }
            rings.push((ring, fd));
        }
        Message::Connect(_) if said.greeted => return link(said).map(Answer::Link),
        _ => return Err("Message out of turn"),
    }
    Ok(Answer::Say(Message::Ack, None))
}

/// True if the descriptor is an eventfd. The server writes to no other kind of a peer's descriptor.
fn is_counter(fd: &OwnedFd) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|l| l.as_os_str() == "anon_inode:[eventfd]")
}

fn check(init: &Init, wanted: &Wanted) -> Result<(), &'static str> {
    if init.version != VERSION {
        return Err("Incompatible memif version");
    }
    if init.mode != 0 {
        return Err("Only ethernet mode supported");
    }
    if wanted.id.is_some_and(|id| id != init.id) {
        return Err("ID not found");
    }
    // A process that can connect to the socket can read the secret anyway, so a secret prevents
    // mistakes and not attacks.
    if wanted.secret != [0; SECRET] && wanted.secret != init.secret {
        Err("Incorrect secret")
    } else {
        Ok(())
    }
}

fn link(said: &mut Said) -> Result<Box<Rings>, &'static str> {
    let regions: Arc<[Arc<Region>]> = std::mem::take(&mut said.regions).into();
    let make = |(ring, interrupt): (AddRing, OwnedFd)| {
        let AddRing { region, offset, log2, .. } = ring;
        let place = Place { region, offset: offset as usize, log2 };
        Ring::new(&regions, place, interrupt, None).filter(Ring::has_cookie).ok_or("Wrong ring")
    };
    let [to_server, to_client] = std::mem::take(&mut said.rings);
    let mut sources = to_server.into_iter().map(make).collect::<Result<Vec<_>, _>>()?.into_iter();
    let mut sinks = to_client.into_iter().map(make).collect::<Result<Vec<_>, _>>()?.into_iter();
    let (Some(source), Some(sink)) = (sources.next(), sinks.next()) else {
        return Err("A ring is missing");
    };
    let mut rings = Rings::new(source, sink);
    rings.more = sources.map(Source::new).collect();
    Ok(Box::new(rings))
}

/// Handles the server's answer to a message, as the client.
fn go_on(saying: &mut Option<Box<Saying>>, wanted: &Wanted, message: Message) -> Went {
    let Some(known) = saying else {
        let Message::Hello(hello) = message else { return Err("Message out of turn") };
        if hello.min_version > VERSION || hello.max_version < VERSION {
            return Err("Incompatible memif version");
        }
        let init = Init {
            version: VERSION,
            id: wanted.id.unwrap_or(0),
            mode: 0,
            secret: wanted.secret,
            name: chars(NAME),
        };
        let log2 = wanted.log2.min(hello.max_log2);
        *saying = Some(Box::new(lay_out(wanted, log2).map_err(|_| "No memory for the rings")?));
        return Ok(Answer::Say(Message::Init(init), None));
    };
    match (message, known.left.pop()) {
        (Message::Ack, Some((next, fd))) => Ok(Answer::Say(next, fd)),
        (Message::Connected(_), None) => {
            let Some(said) = saying.take() else { return Err("Message out of turn") };
            Ok(Answer::Link(Box::new(Rings::new(said.to_client, said.to_server))))
        }
        _ => Err("Message out of turn"),
    }
}

/// Makes the client's region: the ring to the server, the ring to the client, and the buffers of
/// each.
fn lay_out(wanted: &Wanted, log2: u8) -> io::Result<Saying> {
    let ring = ring_len(log2);
    let buffers = wanted.buffer << log2;
    let size = 2 * (ring + buffers);
    let file = Sealed::create(size)?;
    let regions: Arc<[Arc<Region>]> = Arc::new([Arc::new(Region::map(&file)?)]);
    let mut left = vec![(Message::Connect(chars(NAME)), None)];
    let mut make = |n: usize| {
        let (offset, laid) = (n * ring, Laid { at: 2 * ring + n * buffers, each: wanted.buffer });
        let interrupt = interrupt()?;
        let said = AddRing {
            to_server: n == 0,
            index: 0,
            region: 0,
            offset: offset as u32,
            log2,
            private_header: 0,
        };
        left.push((Message::AddRing(said), Some(interrupt.try_clone()?)));
        let place = Place { region: 0, offset, log2 };
        let ring = Ring::new(&regions, place, interrupt, Some(laid));
        let ring = ring.ok_or(io::ErrorKind::InvalidInput)?;
        ring.set_cookie();
        Ok::<_, io::Error>(ring)
    };
    let (to_server, to_client) = (make(0)?, make(1)?);
    let region = Message::AddRegion { index: 0, size: size as u64 };
    left.push((region, Some(std::fs::File::from(file).into())));
    Ok(Saying { left, to_server, to_client })
}
