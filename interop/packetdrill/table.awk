# The table of interop/packetdrill/run, from the file `known` and the results.
#
# known     path or folder/ | kind | reason
# results   whose, path, exact or push or acks or failed, what packetdrill said

function reason_of(path,    at) {
    for (at = path; at != ""; sub(/[^\/]*\/?$/, "", at))
        if (at in reason) return at
    return ""
}

FILENAME == "known" {
    if ($0 ~ /^#/ || NF == 0) next
    split($0, field, "|")
    kind[field[1]] = field[2]
    reason[field[1]] = field[3]
    next
}

{
    total[$1]++
    at = $1 == "upstream" ? reason_of($2) : ""
    if ($3 != "failed") {
        passed[$1]++
        way[$1, $3]++
        line = "passed"
        text = $3
        # A folder's reason holds for those of its scripts that fail.
        if (at == $2) {
            line = "PASSED"
            text = $3 ", but known says: " reason[at]
            wrong++
        }
    } else if (at != "") {
        line = kind[at]
        text = reason[at]
        failed[line]++
    } else {
        line = "FAILED"
        text = $4
        wrong++
    }
    printf "%-8s %-8s %-62s %s\n", line, $1, $2, text
}

END {
    printf "\n%-24s %5s %7s\n", "", "runs", "passed"
    for (whose in total) printf "%-24s %5d %7d\n", whose, total[whose], passed[whose]
    printf "\n%-24s %5d\n%-24s %5d\n%-24s %5d\n", "upstream, exact", way["upstream", "exact"], "upstream, push",
        way["upstream", "push"], "upstream, acks", way["upstream", "acks"]
    for (line in failed) printf "%-24s %5d\n", "upstream, " line, failed[line]
    printf "%-24s %5d\n", "not as known says", wrong
    exit wrong > 0
}
