# Guests and the network they sit in; sourced by interop/run. Everything it starts is ended by `down`, by process id.
#
#   network                makes namespace $ns with a bridge: our end 10.77.0.1, guest N at 10.77.0.(N+1)
#   boot N                 starts guest N, returns when it is ready
#   halt N                 ends guest N
#   inside N 'COMMAND'     runs COMMAND in guest N's shell, both outputs to stdout; its exit status, 255 if there was no answer
#   serve N 'COMMAND' PORT starts COMMAND in guest N and returns when something listens on PORT
#   here COMMAND…          runs COMMAND in the namespace
#   healthy N              true if guest N lives and its kernel has reported no bug
#   capture FILE PORT      starts to record the bridge's traffic of a TCP port
#   captured               ends that when all connections in it have ended, or a few seconds later; `stop_recorder` does at once
#   whole                  true if the last capture lacks nothing; says what it lacks
#   down                   ends all of it
#
# Of the caller: $ns a name for the namespace, $cache interop/build's folder, $work a folder for logs. He may set $accelerator
# (tcg unless told), $processors (1), $memory (384, MiB), $initrd (the one in $cache) and $niceness (10) for the guests that he
# boots.

declare -A guests=()
recorder= recorded=

network() {
    ip netns add "$ns" && made_ns=yes && ip -n "$ns" link set lo up && ip -n "$ns" link add bridge0 type bridge &&
        ip -n "$ns" addr add 10.77.0.1/24 dev bridge0 && ip -n "$ns" link set bridge0 up
}

here() { ip netns exec "$ns" "$@"; }

tap() { here ip tuntap add dev "tap$1" mode tap && ip -n "$ns" link set "tap$1" master bridge0 up; }

boot() {
    local n=$1 log=$work/guest$1.console tries how=()
    ip -n "$ns" link show "tap$n" >/dev/null 2>&1 || tap "$n"
    : >"$log"
    # Emulated unless told: nested virtualisation that half works ends QEMU, and this is fast enough.
    case ${accelerator:-tcg} in
        tcg) how=(-accel tcg,thread=multi -cpu max) ;;
        *) how=(-accel "$accelerator" -cpu host) ;;
    esac
    nice -n "${niceness:-10}" ip netns exec "$ns" qemu-system-x86_64 -M q35 "${how[@]}" -smp "${processors:-1}" -m "${memory:-384}" \
        -nodefaults -no-user-config -display none -no-reboot -kernel "$cache/vmlinux" -initrd "${initrd:-$cache/initramfs.cpio}" \
        -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check cryptomgr.notests rcupdate.rcu_expedited=1 guest=10.77.0.$((n + 1))" \
        -netdev "tap,id=n0,ifname=tap$n,script=no,downscript=no" \
        -device "virtio-net-pci,netdev=n0,romfile=,mac=52:54:00:77:00:0$n" \
        -serial "file:$log" </dev/null >"$work/guest$n.qemu" 2>&1 &
    guests[$n]=$!
    for tries in $(seq 600); do
        grep -q SIW-READY "$log" && return
        kill -0 "${guests[$n]}" 2>/dev/null || break
        sleep 0.1
    done
    echo "guest $n did not start:"
    tail -n 5 "$work/guest$n.qemu" "$log"
    return 1
}

# Ends process $1, which this shell started: asks, then insists.
end() {
    local tries
    kill "$1" 2>/dev/null || true
    for tries in $(seq 50); do
        kill -0 "$1" 2>/dev/null || break
        sleep 0.1
    done
    kill -9 "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

halt() {
    [ -n "${guests[$1]:-}" ] || return 0
    end "${guests[$1]}"
    unset "guests[$1]"
}

inside() {
    local answer status
    answer=$(here timeout "${patience:-30}" bash -c '
        exec 3<>"/dev/tcp/10.77.0.$(($1 + 1))/7000"
        printf "( %s\n) 2>&1 </dev/null; echo status=\$?; exit\n" "$2" >&3
        cat <&3' inside "$1" "$2" 2>&1) || true
    status=${answer##*status=}
    echo "${answer%status=*}"
    [[ $status =~ ^[0-9]+$ ]] || status=255
    [ "$status" = 0 ] || echo "guest $1: status $status of: $2"
    return "$status"
}

serve() {
    local port
    port=$(printf '%04X' "$3")
    inside "$1" "{ $2; } >/tmp/serve$3.log 2>&1 </dev/null &
        i=0; while [ \$i -lt 250 ]; do grep -q ':$port .* 0A ' /proc/net/tcp && exit 0; usleep 20000; i=\$((i+1)); done
        cat /tmp/serve$3.log; exit 1"
}

healthy() {
    kill -0 "${guests[$1]}" 2>/dev/null && ! grep -E 'BUG|Oops|Call Trace|general protection' "$work/guest$1.console"
}

capture() {
    local tries
    rm -f "$work/dumpcap" # which says of the recorder before that it is ready
    recorded=$1
    # Not by `here`: a function gets a shell of its own, which would be ended in dumpcap's place. Before all others, and with
    # 64 MiB between it and the kernel, since what it is too late for is lost. At the first guest's device, where a frame is
    # recorded before anybody gets it: the bridge forwards a frame first and shows it to the recorder then, perhaps behind
    # its acknowledgement, which tshark takes for sent again and does not dissect.
    nice -n -10 ip netns exec "$ns" dumpcap -q -P -B 64 -i tap1 -f "tcp port $2" -w "$1" >"$work/dumpcap" 2>&1 &
    recorder=$!
    for tries in $(seq 100); do
        grep -qs '^File: ' "$work/dumpcap" && return
        sleep 0.05
    done
    cat "$work/dumpcap"
    return 1
}

captured() {
    local tries
    [ -n "$recorder" ] || return 0
    # The kernel hands packets over in blocks, a quarter of a second late and later where others want the processor.
    for tries in $(seq 10); do
        sleep 0.3
        [ -n "$(open_connections)" ] || break
    done
    stop_recorder
}

stop_recorder() {
    [ -n "$recorder" ] || return 0
    end "$recorder"
    recorder=
}

# What the last capture has of no end: no FIN both ways, no RST. Nothing at all is a connection that is to come.
open_connections() {
    recorded_fields tcp.stream tcp.srcport tcp.flags.fin tcp.flags.reset | awk '
        { seen[$1] = 1 }
        ($3 == 1 || $3 == "True") && !(($1, $2) in fin) { fin[$1, $2] = 1; fins[$1]++ }
        $4 == 1 || $4 == "True" { fins[$1] = 2 }
        END { for (s in seen) if (fins[s] < 2) print "connection " s; if (NR == 0) print "any connection" }'
}

# The octets of streams that were sent, or acknowledged by their peer, and are not in the last capture, not even sent again.
holes() {
    recorded_fields tcp.stream tcp.srcport tcp.seq tcp.nxtseq tcp.dstport tcp.ack tcp.flags.reset | sort -k1,1n -k2,2n -k3,3n | awk '
        # A connection that is refused has a RST and nothing before it.
        $7 == 1 || $7 == "True" { next }
        { way = $1 " " $2; other = $1 " " $5; last = $4 > $3 ? $4 : $3 }
        !(way in to) { to[way] = 0 }
        $3 > to[way] { print "octets " to[way] " to " $3 " from port " $2 }
        last > to[way] { to[way] = last }
        $6 > acked[other] { acked[other] = $6 }
        END { for (way in acked) if (acked[way] > to[way] + 1) print "octets " to[way] " to " acked[way] ", which were acknowledged" }'
}

recorded_fields() {
    local name fields=()
    for name in "$@"; do fields+=(-e "$name"); done
    tshark -r "$recorded" -T fields -E separator=' ' "${fields[@]}" 2>/dev/null || true
}

whole() {
    local lacks dropped unseen
    # "Packets received/dropped on interface 'bridge0': 1234/0 (…)"
    dropped=$(sed -n 's,^Packets received/dropped on interface .*: [0-9]*/\([0-9]*\) .*,\1,p' "$work/dumpcap")
    lacks=$({ open_connections | sed 's/^/no end of /'; holes | sed 's/^/no /'; } | head -n 3 | paste -sd ,)
    # What was acknowledged before it was recorded is dissected by nobody, even where it was sent again later.
    unseen=$(tshark -r "$recorded" -Y tcp.analysis.ack_lost_segment 2>/dev/null | wc -l)
    [ "$unseen" = 0 ] || lacks+=" ($unseen segments were acknowledged before they were recorded)"
    [ "$dropped" = 0 ] || lacks+=" (dumpcap dropped ${dropped:-?} packets)"
    [ -z "$lacks" ] || { echo "incomplete capture: $lacks"; return 1; }
}

down() {
    local n pid
    stop_recorder
    for n in "${!guests[@]}"; do halt "$n"; done
    [ -n "${made_ns:-}" ] || return 0
    for pid in $(ip netns pids "$ns"); do kill "$pid" 2>/dev/null || true; done
    ip netns del "$ns"
    made_ns=
}
