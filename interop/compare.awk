# The table of interop/compare: the first file has what was measured on, name and text; the second round, what, side, figure.

BEGIN { FS = "\t" }

# Puts a number into its place among those of a key.
function insert(key, x,    i) {
    for (i = ++n[key]; i > 1 && v[key, i - 1] > x; i--) v[key, i] = v[key, i - 1]
    v[key, i] = x
}
function median(key,    m) { m = n[key]; return m ? (v[key, int((m + 1) / 2)] + v[key, int(m / 2) + 1]) / 2 : 0 }

FNR == NR { names[++lines] = $1; text[$1] = $2; next }
{
    if (!($2 in seen)) { seen[$2] = 1; whats[++count] = $2 }
    insert($2 FS $3, $4)
    figure[$1, $2, $3] = $4
    rounds = $1
}

# How many times faster than the other side a side is in one round: times fall, throughput rises.
function faster(r, what, side, than, floor,    a, b) {
    a = figure[r, what, side]
    b = floor ? figure[r, floor, than] : figure[r, what, than]
    return what ~ /_lat$/ ? b / a : a / b
}

function row(what,    unit, floor, r) {
    unit = what ~ /_lat$/ ? "us" : "MB/s"
    floor = what ~ /_lat$/ ? "tcp" : "tcp.stream"
    for (r = 1; r <= rounds; r++) {
        insert(what FS "quotient", faster(r, what, "ours", "siw"))
        insert(what FS "floor", faster(r, what, "ours", "floor", floor))
    }
    if (json)
        printf "{\"program\":\"%s\",\"unit\":\"%s\",\"siw\":%.6g,\"ours\":%.6g,\"times_faster\":%.6g,\"least\":%.6g,\"greatest\":%.6g,\"of_floor\":%.6g}\n", \
            what, unit, median(what FS "siw"), median(what FS "ours"), median(what FS "quotient"), v[what FS "quotient", 1], \
            v[what FS "quotient", n[what FS "quotient"]], median(what FS "floor")
    else
        printf "%-14s %-5s %10.1f %10.1f %10.2f %15s %10.2f\n", what, unit, median(what FS "siw"), median(what FS "ours"), \
            median(what FS "quotient"), sprintf("%.2f to %.2f", v[what FS "quotient", 1], v[what FS "quotient", n[what FS "quotient"]]), \
            median(what FS "floor")
}

END {
    if (json) {
        for (i = 1; i <= lines; i++) printf "%s\"%s\":\"%s\"", (i > 1 ? "," : "{\"rounds\":" rounds ","), names[i], text[names[i]]
        print "}"
    } else {
        for (i = 1; i <= lines; i++) printf "%-12s %s\n", names[i], text[names[i]]
        printf "\n%-14s %-5s %10s %10s %10s %15s %10s\n", "program", "unit", "siw", "ours", "x faster", "least to most", "of floor"
    }
    for (w = 1; w <= count; w++) if (whats[w] !~ /^tcp/) row(whats[w])
    for (w = 1; w <= count; w++) if (whats[w] ~ /^tcp/) {
        unit = whats[w] == "tcp.stream" ? "MB/s" : "us"
        if (json) printf "{\"program\":\"%s\",\"unit\":\"%s\",\"floor\":%.6g}\n", whats[w], unit, median(whats[w] FS "floor")
        else printf "%-14s %-5s %10.1f   raw TCP of the guest, the floor\n", whats[w], unit, median(whats[w] FS "floor")
    }
}
