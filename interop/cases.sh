# The cases, and what they have in common; sourced by interop/run.

# Which programs are put before the guest: the probe, a few lines of Python that share nothing with Sprat, shows what the peer
# takes, whoever asks. Without `sprat` in this list its cases count as ignored.
ours=(probe sprat)
rounds=100
# How long a client of ours waits behind the reply: what comes too soon siw overlooks until more comes, and it is slow here.
hold_ms=300

# ping PROGRAM OPTION…: one of ours, in the namespace, in rping's own words: -c|-s -a ADDRESS -p PORT -C ROUNDS -S OCTETS, and
# --crc on|off  --revision 1|2  --rtr write|read. Never more than a minute.
ping() {
    case $1 in
        probe) here timeout 60 python3 probe.py --hold-ms $hold_ms "${@:2}" ;;
        sprat) here timeout 60 "$sprat" rdma rping --insecure-network --hold-ms $hold_ms "${@:2}" ;;
    esac
}

dissect() {
    tshark -2 -r "$work/pcap" -o tcp.try_heuristic_first:TRUE --disable-protocol rpcordma --disable-protocol smb_direct "$@" \
        2>"$work/tshark" || { cat "$work/tshark"; return 1; }
}

# expect WHAT COMMAND…: the case fails here, and says what it had expected, if the command does.
expect() {
    "${@:2}" || { echo "expected: $1"; exit 1; }
}

# count PATTERN: how many lines of stdin match.
count() { grep -cE "$1" || true; }

# The last capture holds nothing that tshark finds wrong, or does not know for iWARP. If it is not whole the case ends here.
well_formed() {
    captured
    whole || exit "$incomplete"
    dissect -Y '_ws.malformed || iwarp_mpa.bad_length || tcp.len > 0 && !iwarp_mpa && !tcp.reassembled_in && !tcp.analysis.retransmission' >"$work/wrong"
    head -n 5 "$work/wrong"
    expect "all understood by tshark" [ ! -s "$work/wrong" ]
    dissect -V >"$work/text"
    expect "no bad CRC" [ "$(count 'Bad CRC' <"$work/text")" = 0 ]
    expect "no Terminate" [ "$(count 'OpCode: Terminate' <"$work/text")" = 0 ]
}

# crcs CRC: besides, all frames have a CRC that was checked, or none.
crcs() {
    local fpdus checked
    well_formed
    fpdus=$(count 'ULPDU length:' <"$work/text")
    checked=$(count 'Good CRC32' <"$work/text")
    echo "$fpdus FPDUs, $checked of them with a good CRC"
    expect "frames" [ "$fpdus" -gt 0 ]
    if [ "$1" = on ]; then
        expect "CRCs everywhere" [ "$checked" = "$fpdus" ]
    else
        expect "no CRC" [ "$checked" = 0 ]
    fi
}

# pings ROUNDS CRC: besides, the capture holds the messages of so many rounds.
pings() {
    local sends requests reads
    crcs "$2"
    dissect -T fields -E occurrence=a -E aggregator=' ' -e iwarp_rdma.opcode | tr ' ' '\n' >"$work/opcodes"
    sends=$(count '^(0x0*)?3$' <"$work/opcodes")
    requests=$(count '^(0x0*)?1$' <"$work/opcodes")
    reads=$(count '^(0x0*)?2$' <"$work/opcodes")
    echo "Sends $sends, Read Requests $requests, Read Responses $reads"
    expect "four Sends a round" [ "$sends" = $((4 * $1)) ]
    expect "one Read a round" [ "$requests" -ge "$1" ]
    expect "each Read answered" [ "$reads" -ge "$requests" ]
}

# start FIELD VALUE: the start-up frames of the last capture hold this value, Request and Reply the same.
start() {
    local values
    values=$(dissect -Y 'iwarp_mpa.req || iwarp_mpa.rep' -T fields -e "$1" | sort -u)
    expect "$1 $2, not ${values//$'\n'/ and }" [ "$values" = "$2" ]
}

# between PORT COMMAND [LISTENER]: COMMAND of guest 2 asks guest 1, where LISTENER is started for it. Up to three times, since siw
# as a client does not hold back its first message and siw as a server may overlook it: then both stand still.
between() {
    local tries
    for tries in 1 2 3; do
        [ -z "${3:-}" ] || serve 1 "$3" "$1"
        rm -f "$work/pcap"
        capture "$work/pcap" "$1"
        if inside 2 "timeout 20 $2"; then
            return
        fi
        captured
        [ -z "${3:-}" ] || inside 1 "killall ${3%% *}; true"
    done
    return 1
}

# guests_program PORT SERVER CLIENT: both ends are siw: what the libraries' cases are compared with.
guests_program() {
    between "$1" "$3" "$2"
    well_formed
}

# guest_to_guest: both ends are siw; what is recorded of them is what the checks above call clean.
guest_to_guest() {
    between 9000 "rping -c -a 10.77.0.2 -p 9000 -C $rounds -V"
    pings "$rounds" off
    start iwarp_mpa.rev 2
}

# perftest PROGRAM PORT: rdma-core's benchmark between two guests, connected by rdma_cm.
perftest() {
    between "$2" "$1 -R -n 100 -s 64 -p $2 10.77.0.2" "$1 -R -n 100 -s 64 -p $2"
    well_formed
}

# client PROGRAM PORT CRC REVISION [RTR [OPTION…]]: ours asks the guest's rping -s.
client() {
    local program=$1 port=$2 crc=$3 revision=$4 rtr=${5:-}
    capture "$work/pcap" "$port"
    ping "$program" -c -a 10.77.0.2 -p "$port" -C "$rounds" --crc "$crc" --revision "$revision" ${rtr:+--rtr "$rtr"} "${@:6}"
    pings "$rounds" "$crc"
    start iwarp_mpa.rev "$revision"
}

# listening PORT: returns when one of ours listens there.
listening() {
    local tries
    for tries in $(seq 100); do
        [ -z "$(here ss -Hltn "sport = :$1")" ] || return 0
        sleep 0.05
    done
}

# server PROGRAM PORT CRC [OPTION…]: the guest's rping -c asks ours, which ends when its client has left. Both get the options.
server() {
    local program=$1 port=$2 crc=$3 us
    capture "$work/pcap" "$port"
    ping "$program" -s -a 10.77.0.1 -p "$port" --crc "$crc" "${@:4}" &
    us=$!
    listening "$port"
    inside 1 "rping -c -a 10.77.0.1 -p $port -C $rounds -V ${*:4}"
    wait "$us"
    pings "$rounds" "$crc"
    start iwarp_mpa.rev 2
}

# measured PROGRAM PORT CRC OPTION…: the guest's PROGRAM measures with our server, which ends when its client has left.
measured() {
    local program=$1 port=$2 crc=$3 us
    capture "$work/pcap" "$port"
    here timeout 60 "$sprat" rdma perftest --insecure-network -a 10.77.0.1 -p "$port" --crc "$crc" &
    us=$!
    listening "$port"
    inside 1 "$program -R -p $port ${*:4} 10.77.0.1" | tee "$work/table"
    wait "$us"
    expect "a line of results" [ "$(count '^ +[0-9]+ +[0-9]+ +[0-9.]+ ' <"$work/table")" = 1 ]
    crcs "$crc"
}

# The programs of rdma_cm, and how one is run as server at ADDRESS and as its client. Each is known to work between two siw.
rdma_programs=(
    "rping -s -a ADDRESS -p PORT -C 20 -V|rping -c -a ADDRESS -p PORT -C 20 -V"
    "ucmatose -b ADDRESS -p PORT|ucmatose -s ADDRESS -p PORT"
    "cmtime -b ADDRESS -p PORT -c 20|cmtime -s ADDRESS -p PORT -c 20"
    "rdma_server -s ADDRESS -p PORT|rdma_client -s ADDRESS -p PORT"
    "rdma_xserver -p PORT|rdma_xclient -s ADDRESS -p PORT"
    "ib_send_lat -R -F -n 50 -p PORT|ib_send_lat -R -F -n 50 -p PORT ADDRESS"
    "ib_write_lat -R -F -n 50 -p PORT|ib_write_lat -R -F -n 50 -p PORT ADDRESS"
    "ib_read_bw -R -F -n 50 -p PORT|ib_read_bw -R -F -n 50 -p PORT ADDRESS"
)

# on_ours COMMAND…: the Debian program in the namespace on our libraries, as nobody, never more than a minute.
on_ours() {
    here timeout "${limit:-60}" setpriv --reuid nobody --clear-groups --bounding-set -all --no-new-privs \
        "$place/sprat" exec --insecure-network -- "$@"
}

# on_tap COMMAND…: the same on our own TCP, with an address of its own on the guest's network: a packet device needs root.
tap_address=10.77.0.100
on_tap() {
    here timeout "${limit:-60}" "$place/sprat" exec --device "rdma+tap:dev=sprat0,bridge=bridge0,host=$tap_address,port=0" -- "$@"
}

# How the library cases run a program of ours: on_ours or on_tap.
runs=on_ours

# ready PORT LOG: returns when a program on our libraries listens there. No file of the kernel lists what our own TCP listens to,
# so the log of the library tells it.
ready() {
    local tries
    [ "$runs" = on_tap ] || { listening "$1"; return; }
    for tries in $(seq 200); do
        grep -qs ' info: listens on ' "$2" && return
        sleep 0.05
    done
}

# siws_own STATUS LOG: a run ended with STATUS and the guest's LOG by what siw is known for, whoever its peer is, so that it proves
# nothing either way: it stands still where its first message or its peer's was overlooked (see `between`); or it completes a Send
# with a local error (2) though all of it has left, since the answer and the end of the connection came before it had looked
# whether the connection is still there (siw_qp_sq_proc_tx and `tx_suspend`).
siws_own() {
    # 143 is what the guest's timeout ends with.
    [ "$1" = 124 -o "$1" = 143 ] || grep -q 'wc status 2' "$2" || return 1
    echo "again: status $1, $(grep -m 1 'wc status 2' "$2" || echo 'stood still')"
}

# program_client PORT SERVER CLIENT: CLIENT on our libraries asks the guest's SERVER. At most three times: see `siws_own`.
program_client() {
    local tries status limit=20
    [ "${2%% *}" != cmtime ] || limit=60
    for tries in 1 2 3; do
        serve 1 "$2" "$1"
        rm -f "$work/pcap"
        capture "$work/pcap" "$1"
        status=0
        # shellcheck disable=SC2086 # words
        SPRAT_LOG=${SPRAT_LOG:-error} $runs $3 || status=$?
        if [ "$status" = 0 ]; then
            well_formed
            return
        fi
        stop_recorder
        inside 1 "cat /tmp/serve$1.log; killall ${2%% *}; true" | tee "$work/theirs"
        siws_own "$status" "$work/theirs" || return 1
    done
    return 1
}

# program_server PORT SERVER CLIENT: the guest's CLIENT asks SERVER on our libraries, which ends when it has left. At most three
# times: see `siws_own`.
program_server() {
    local us tries status limit=60
    # Its server never ends.
    [ "${2%% *}" != cmtime ] || limit=10
    for tries in 1 2 3; do
        rm -f "$work/pcap"
        capture "$work/pcap" "$1"
        rm -f "$work/ours"
        # shellcheck disable=SC2086 # words
        SPRAT_LOG=${SPRAT_LOG:-info} $runs $2 2>"$work/ours" &
        us=$!
        ready "$1" "$work/ours"
        status=0
        inside 1 "timeout 20 $3" >"$work/theirs" || status=$?
        cat "$work/ours" "$work/theirs"
        if [ "$status" = 0 ]; then
            well_formed
            # rping's server ends with an exit code of its own, and cmtime's by its time limit.
            wait "$us" || [ "${2%% *}" = rping -o "${2%% *}" = cmtime ]
            return
        fi
        # It may have ended by itself.
        kill "$us" 2>/dev/null || true
        wait "$us" || true
        stop_recorder
        siws_own "$status" "$work/theirs" || return 1
    done
    return 1
}

# without_depth PROGRAM: revision 1 has no read depth, so rping -s, which takes it for 0, ends the connection; so must ours end.
without_depth() {
    local status=0
    capture "$work/pcap" 9000
    ping "$1" -c -a 10.77.0.2 -p 9000 -C 1 --crc on --revision 1 || status=$?
    # timeout's own status is 124.
    expect "an end with an error, not $status" [ "$status" -gt 0 -a "$status" -lt 124 ]
    captured
}

# rping -s accepts with the depths it was asked for, rping -s -q with its own; the one at 9002 has room for the largest ping.
rpings() {
    serve 1 'rping -s -P -a 10.77.0.2 -p 9000' 9000
    serve 1 'rping -s -P -q -a 10.77.0.2 -p 9001' 9001
    serve 1 'rping -s -P -S 65535 -a 10.77.0.2 -p 9002' 9002
}

all_cases() {
    local program crc rtr port=9200
    group 2 rpings
    test_case guest_to_guest guest_to_guest
    for program in ib_send_lat ib_write_bw ib_read_bw; do
        port=$((port + 1))
        test_case "guest_to_guest_$program" perftest "$program" $port
    done

    for program in "${ours[@]}"; do
        group 1 rpings
        for crc in on off; do
            test_case "${program}_client_crc_$crc" client "$program" 9000 $crc 2
            test_case "${program}_client_crc_${crc}_rtr_write" client "$program" 9000 $crc 2 write
            test_case "${program}_client_crc_${crc}_rtr_read" client "$program" 9000 $crc 2 read
            test_case "${program}_client_crc_${crc}_revision_1" client "$program" 9001 $crc 1
        done
        rounds=10 test_case "${program}_client_64k" client "$program" 9002 on 2 '' -S 65535
        test_case "${program}_client_revision_1_without_depth" without_depth "$program"
        # siw as initiator speaks revision 2 only, and asks for neither CRC nor peer to peer.
        group 1
        for crc in on off; do
            port=$((port + 1))
            test_case "${program}_server_crc_$crc" server "$program" $port $crc
        done
        port=$((port + 1))
        rounds=10 test_case "${program}_server_64k" server "$program" $port on -S 65535
    done
    if [[ " ${ours[*]} " != *" sprat "* ]]; then
        ignored sprat "not in the list of programs"
        return
    fi
    group 1
    for program in ib_send_lat ib_write_bw ib_read_bw ib_read_lat; do
        for crc in on off; do
            port=$((port + 1))
            test_case "sprat_${program}_crc_$crc" measured "$program" $port $crc -n 100 -s 64
        done
        port=$((port + 1))
        test_case "sprat_${program}_64k" measured "$program" $port on -n 20 -s 65536
    done

    # What nobody may read cannot be run by nobody: the programs that are built lie in a folder of their own.
    group 1
    local row server client name side own
    for runs in on_ours on_tap; do
        [ $runs = on_ours ] && name=libraries own=10.77.0.1 || { group 1; name=tap own=$tap_address; }
        for side in client server; do
            for row in "${rdma_programs[@]}"; do
                port=$((port + 1))
                row=${row//PORT/$port}
                [ $side = client ] && row=${row//ADDRESS/10.77.0.2} || row=${row//ADDRESS/$own}
                server=${row%|*} client=${row#*|}
                test_case "${name}_${side}_${client%% *}" program_$side $port "$server" "$client"
            done
        done
    done
    runs=on_ours
    # Queue pairs that the program makes and moves itself.
    port=$((port + 1))
    test_case libraries_client_rping_q program_client $port "rping -s -q -a 10.77.0.2 -p $port -C 20 -V" \
        "rping -c -q -a 10.77.0.2 -p $port -C 20 -V"
    port=$((port + 1))
    test_case libraries_server_rping_q program_server $port "rping -s -q -a 10.77.0.1 -p $port -C 20 -V" \
        "rping -c -a 10.77.0.1 -p $port -C 20 -V"
}
