//! The rows of the matrix of programs: their options, and the expected output.
//!
//! In commands, PORT stands for a free port, VALGRIND for [`VALGRIND`], and SUPPRESSIONS for
//! valgrind.supp in this directory. The numbers of iterations are small: the rows test function,
//! not speed.

use crate::over::Over;

/// The expected outcome of a row of the matrix of programs.
pub(crate) enum State {
    /// Server and client end successfully and print the expected output.
    Works,
    /// The device cannot do what the program requests, and the program must report it: by an exit
    /// code other than 0, not by a signal or a standstill.
    Refused(&'static str),
}

/// The expected end of a row's server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The server ends by itself with exit code 0.
    Well,
    /// The server ends by itself with any exit code, since that is how the program works.
    Somehow,
    /// The server does not end, and the test kills it after the client.
    Never,
}

/// The expected output of a row's client, or of its only program.
#[derive(Clone, Copy)]
pub(crate) enum Shows {
    /// The client may print anything.
    Nothing,
    /// The client prints this text.
    Text(&'static str),
    /// The client prints this number of lines with figures: a size, a count and more.
    Figures(usize),
}

/// A row of the matrix of programs.
pub(crate) struct Row {
    /// The option that the row varies, as the page docs/programs.md shows it; empty for the plain
    /// command.
    pub(crate) option: String,
    /// The command of the row's server, if there is one.
    pub(crate) server: Option<String>,
    pub(crate) ends: Ends,
    /// The command of the row's client, or the row's only command.
    pub(crate) client: String,
    pub(crate) shows: Shows,
    pub(crate) state: State,
    /// True if both programs of the row run under valgrind.
    pub(crate) valgrind: bool,
    /// The functions of our libraries whose objects the programs themselves do not destroy. It
    /// applies to rows under valgrind.
    pub(crate) leaves: &'static [&'static str],
    /// True if the row runs in a network namespace with an interface beside loopback.
    pub(crate) network: bool,
    /// The TCP of the row's programs, and what lies between them.
    pub(crate) over: Over,
}

impl Row {
    fn new(option: &str, server: &str, client: &str) -> Self {
        Self {
            option: option.to_owned(),
            server: (!server.is_empty()).then(|| server.to_owned()),
            ends: Ends::Well,
            client: client.to_owned(),
            shows: Shows::Nothing,
            state: State::Works,
            valgrind: false,
            leaves: &[],
            network: false,
            over: Over::Loopback,
        }
    }

    fn shows(self, shows: Shows) -> Self {
        Self { shows, ..self }
    }

    fn ends(self, ends: Ends) -> Self {
        Self { ends, ..self }
    }

    fn refused(self, reason: &'static str) -> Self {
        Self { state: State::Refused(reason), ..self }
    }

    /// The program that the row tests, which is the client's.
    pub(crate) fn program(&self) -> &str {
        self.client.split(' ').next().unwrap_or_default()
    }

    /// A command of the row as the page docs/programs.md shows it; words in capitals get their
    /// values for the run.
    pub(crate) fn shown(&self, command: &str) -> String {
        if self.valgrind { format!("{UNDER} {command}") } else { command.to_owned() }
    }

    /// The name of the row: its program, its option, and what it runs over.
    pub(crate) fn name(&self) -> String {
        let name = format!("{} {}", self.program(), self.option).trim_end().to_owned();
        match self.over {
            Over::Loopback => name,
            over => format!("{name} over {}", over.name()),
        }
    }
}

/// All rows of the matrix of programs, in the page's order.
pub(crate) fn rows() -> Vec<Row> {
    let mut rows = devices();
    rows.extend(rping());
    rows.extend(others());
    rows.extend(perftest());
    rows.extend(libfabric());
    rows.extend(fio());
    rows.extend(valgrind());
    rows.extend(over_devices());
    rows
}

/// The rows over our own TCP: the programs that use each kind of operation, and connect in each
/// way.
fn over_devices() -> Vec<Row> {
    const NAMES: [&str; 14] = [
        "rping -C 1000",
        "rping -S 65535",
        "ucmatose",
        "ucmatose -c 10 -C 100 -S 4096",
        "cmtime -c 100",
        "rdma_client",
        "ib_send_lat",
        "ib_send_lat -e",
        "ib_write_lat",
        "ib_read_lat",
        "ib_send_bw",
        "ib_write_bw -a",
        "ib_read_bw",
        "ib_atomic_lat",
    ];
    let listed = Row::new("-v", "", "ibv_devinfo -v -d iw_sprat0");
    let mut rows = vec![Row { over: Over::Shared, ..listed.shows(Shows::Text("PORT_ACTIVE")) }];
    for over in [Over::Shared, Over::Wire, Over::WireToKernel, Over::KernelToWire] {
        let all = rping().into_iter().chain(others()).chain(perftest());
        for row in all.filter(|row| NAMES.contains(&row.name().as_str())) {
            let at = |command: &str| command.replace("127.0.0.1", over.address());
            let (server, client) = (row.server.as_deref().map(at), at(&row.client));
            rows.push(Row { server, client, over, network: over.is_wired(), ..row });
        }
    }
    rows
}

fn devices() -> Vec<Row> {
    vec![
        Row::new("", "", "ibv_devices").shows(Shows::Text("iw_lo")),
        Row::new("-v", "", "ibv_devinfo -v -d iw_lo").shows(Shows::Text("PORT_ACTIVE")),
    ]
}

fn rping() -> Vec<Row> {
    let both = |option: &str, rounds: &str, server: Ends| {
        Row::new(
            option,
            &format!("rping -s -a 127.0.0.1 -p PORT -V {option}"),
            &format!("rping -c -a 127.0.0.1 -p PORT -V {option} {rounds}"),
        )
        .ends(server)
    };
    vec![
        both("-C 1000", "", Ends::Somehow),
        both("-S 65535", "-C 10", Ends::Somehow),
        Row::new("-S 65536", "", "rping -c -a 127.0.0.1 -S 65536")
            .refused("rping says 65536 and takes 65535"),
        both("-v", "-C 10", Ends::Somehow).shows(Shows::Text("ping data: rdma-ping-9")),
        both("-q", "-C 10", Ends::Somehow),
        Row::new(
            "-P",
            "rping -s -P -a 127.0.0.1 -p PORT",
            "rping -c -a 127.0.0.1 -p PORT -C 10 -V",
        )
        .ends(Ends::Never),
    ]
}

/// The rows for the other programs of rdmacm-utils.
fn others() -> Vec<Row> {
    let pair = |option: &str, server: &str, client: &str| {
        Row::new(
            option,
            &format!("{server} -p PORT {option}"),
            &format!("{client} -p PORT -s 127.0.0.1 {option}"),
        )
    };
    let datagrams = "datagrams (UD) have no place in iWARP";
    vec![
        pair("", "ucmatose -b 127.0.0.1", "ucmatose").shows(Shows::Text("return status 0")),
        pair("-c 10 -C 100 -S 4096", "ucmatose -b 127.0.0.1", "ucmatose")
            .shows(Shows::Text("return status 0")),
        pair("-m", "ucmatose -b 127.0.0.1", "ucmatose").shows(Shows::Text("return status 0")),
        pair("-c 100", "cmtime -b 127.0.0.1", "cmtime")
            .shows(Shows::Text("connect"))
            .ends(Ends::Never),
        pair("", "rdma_server", "rdma_client").shows(Shows::Text("rdma_client: end 0")),
        pair("-c r", "rdma_xserver", "rdma_xclient").shows(Shows::Text("rdma_xclient: end 0")),
        pair("-c x", "rdma_xserver", "rdma_xclient")
            .ends(Ends::Somehow)
            .refused("iWARP has no XRC"),
        Row::new("", "", "udaddy -s 127.0.0.1 -p PORT").refused(datagrams),
        Row::new("", "", "mckey -m 239.1.1.1 -b 127.0.0.1").refused(datagrams),
        Row::new("", "", "rstream -s 127.0.0.1 -p PORT").refused("rsockets are not there yet"),
    ]
}

/// The programs of perftest, with those of the options -a, -b, -e, -q and --use-srq that each
/// program offers.
const PERFTEST: [(&str, &str); 8] = [
    ("ib_send_lat", "aes"),
    ("ib_write_lat", "a"),
    ("ib_read_lat", "ae"),
    ("ib_send_bw", "abeqs"),
    ("ib_write_bw", "abq"),
    ("ib_read_bw", "abeq"),
    ("ib_atomic_lat", "e"),
    ("ib_atomic_bw", "beq"),
];
/// The number of sizes that perftest's option -a measures: each power of two from 2 to 2^23.
const SIZES: usize = 23;

fn perftest() -> Vec<Row> {
    let mut rows = Vec::new();
    for (program, offers) in PERFTEST {
        let options = [('a', "-a"), ('b', "-b"), ('e', "-e"), ('q', "-q 8"), ('s', "--use-srq")];
        let offered = options
            .into_iter()
            .filter(|(letter, _)| offers.contains(*letter))
            .map(|(_, option)| option);
        for option in std::iter::once("").chain(offered) {
            let rounds = match option {
                "-a" => 5,
                // A sender that waits for events must get one before its peer's credits, 170
                // messages each, are used up.
                "-e" if program.ends_with("bw") => 1000,
                _ => 50,
            };
            let command = format!("{program} -R -F -n {rounds} -p PORT {option}");
            let figures = Shows::Figures(if option == "-a" { SIZES } else { 1 });
            let row = Row::new(option, command.trim_end(), &format!("{command} 127.0.0.1"));
            rows.push(row.shows(figures));
        }
    }
    rows
}

/// The rows for libfabric, which skips the interface `lo` and uses the address of another interface
/// of this machine.
fn libfabric() -> Vec<Row> {
    ["-e msg", "-e rdm"]
        .into_iter()
        .map(|option| {
            let command = format!("fi_pingpong -p verbs {option} -I 10 -c");
            let row = Row::new(
                option,
                &format!("{command} -B PORT"),
                &format!("{command} -P PORT 127.0.0.1"),
            );
            Row { network: true, ..row.shows(Shows::Text("1m")) }
        })
        .collect()
}

/// The rows for the RDMA engine of fio, whose files lie in the server's memory. Its Sends need more
/// receives than it posts, which ends in an error with `rnr_retry` 0 on any hardware.
fn fio() -> Vec<Row> {
    ["--verb=write", "--verb=read"]
        .into_iter()
        .map(|verb| {
            let both = "--bs=64k --size=4m --ioengine=rdma --port=PORT";
            let server = format!("fio --name=server --rw=read {both}");
            let client = format!("fio --name=client --rw=write {both} --hostname=127.0.0.1 {verb}");
            Row::new(verb, &server, &client).shows(Shows::Text("err= 0"))
        })
        .collect()
}

/// The command by which a row runs under valgrind. Any error that valgrind finds is exit code 99 on
/// either side. `left` checks the open descriptors.
pub(crate) const VALGRIND: &str = "valgrind -q --fair-sched=yes --error-exitcode=99 \
    --suppressions=SUPPRESSIONS --num-callers=40 --track-fds=yes";

/// The word in a row's command that stands for [`VALGRIND`].
pub(crate) const UNDER: &str = "VALGRIND";

/// The objects that perftest does not destroy: its devices and their list, event channels,
/// addresses and ids.
const PERFTEST_LEAVES: &[&str] = &[
    "ibv_open_device",
    "ibv_get_device_list",
    "sprat_rdma_create_event_channel",
    "sprat_rdma_create_id",
    "sprat_rdma_getaddrinfo",
];

fn valgrind() -> Vec<Row> {
    let measures = |program: &str| {
        let command = format!("{program} -R -F -n 20 -p PORT");
        let row = Row::new("under valgrind", &command, &format!("{command} 127.0.0.1"));
        Row { valgrind: true, leaves: PERFTEST_LEAVES, ..row.shows(Shows::Figures(1)) }
    };
    let ping = "-a 127.0.0.1 -p PORT -V -C 20";
    let rping =
        Row::new("under valgrind", &format!("rping -s {ping}"), &format!("rping -c {ping}"));
    let rping = Row { valgrind: true, ..rping.ends(Ends::Somehow) };
    [rping]
        .into_iter()
        .chain(["ib_send_bw", "ib_write_lat", "ib_read_bw", "ib_atomic_lat"].map(measures))
        .collect()
}
