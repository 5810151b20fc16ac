# Medians over several files of JSON lines as `sprat bench --json` writes them. Rows are the same row if they agree in
# every field that is not measured; a row missing from some files is taken over those that have it. Distributions are left out.

BEGIN { CONVFMT = OFMT = "%.9g" }

function measured(name) { return name ~ /(_us|_per_s)$/ || name == "count" || name == "value" }

# Splits one flat object into name[1..n] and value[1..n]; values keep their quotes. Returns n.
function parse(line,    n) {
    n = 0
    sub(/^[ \t]*\{/, "", line)
    sub(/,"distribution":\[[^}]*\]/, "", line)
    while (match(line, /"[^"]*"[ \t]*:[ \t]*("([^"\\]|\\.)*"|[^,}]*)/)) {
        pair = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        match(pair, /^"[^"]*"/)
        name[++n] = substr(pair, 2, RLENGTH - 2)
        value[n] = substr(pair, RLENGTH + 1)
        sub(/^[ \t]*:[ \t]*/, "", value[n])
    }
    return n
}

# The median of the values that row `key` has in field `f`, or "null".
function median(key, f,    n, i, j, t, list) {
    n = 0
    for (i = 1; i <= seen[key]; i++)
        if ((key, f, i) in figure && figure[key, f, i] != "null") list[++n] = figure[key, f, i] + 0
    for (i = 2; i <= n; i++) {
        t = list[i]
        for (j = i - 1; j > 0 && list[j] > t; j--) list[j + 1] = list[j]
        list[j + 1] = t
    }
    if (n == 0) return "null"
    return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}

function number(x, digits) { return x == "null" || x == "" ? "-" : sprintf("%." digits "f", x) }
function plain(x) { gsub(/"/, "", x); return x == "null" ? "-" : x }

!/"test"/ { if (FNR == 1 && context == "") context = $0; next }

{
    n = parse($0)
    key = ""
    for (i = 1; i <= n; i++) if (!measured(name[i])) key = key name[i] "=" value[i] ";"
    if (!(key in seen)) {
        order[++rows] = key
        width[key] = n
        for (i = 1; i <= n; i++) { field[key, i] = name[i]; fixed[key, i] = value[i] }
    }
    seen[key]++
    for (i = 1; i <= n; i++) if (measured(name[i])) figure[key, name[i], seen[key]] = value[i]
}

END {
    out = "bench/median.json"
    if (context != "") print context > out
    line = "%-16s %-10s %9s %10s %10s %10s  %-22s %9s %7s %7s %12s %9s\n"
    printf line, "test", "transport", "bytes", "p50 us", "p99 us", "p99.9 us", "floor", "floor us", "x floor", "x tcp", "ops/s", "MB/s"
    for (r = 1; r <= rows; r++) {
        key = order[r]
        json = ""
        delete row
        for (i = 1; i <= width[key]; i++) {
            f = field[key, i]
            v = measured(f) ? median(key, f) : fixed[key, i]
            row[f] = v
            json = json (i > 1 ? "," : "") "\"" f "\":" v
        }
        print "{" json ",\"runs\":" seen[key] "}" > out
        p50 = row["p50_us"]; floor = row["floor_us"]; tcp = row["tcp_us"]; mbs = row["bytes_per_s"]
        printf line, plain(row["test"]), plain(row["transport"]), plain(row["size_bytes"]), number(p50, 2), \
            number(row["p99_us"], 2), number(row["p999_us"], 2), plain(row["floor"]), number(floor, 2), \
            (p50 + 0 > 0 && floor + 0 > 0) ? number(p50 / floor, 2) : "-", \
            (p50 + 0 > 0 && tcp + 0 > 0) ? number(tcp / p50, 2) : "-", \
            number(row["ops_per_s"], 0), (mbs + 0 > 0) ? number(mbs / 1e6, 1) : "-"
        if (row["value"] + 0 > 0) printf "%-16s %-10s %9s %10.3f %s\n", "", "", "", row["value"], plain(row["unit"])
    }
}
