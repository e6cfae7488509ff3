# shellcheck shell=bash
# What the scripts beside it have in common: sourced by each before it goes elsewhere.

# Whatever the caller's terminal is, a page is as wide as a file's, 80 columns; a script that wants another width says so.
unset COLUMNS

failures=0
verb=() # the command that all calls of a script are of; none: each names its own
reason='^dtplan: ' # what standard error has where dtplan refuses or fails; of what another program said, anything

failed() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# enter DTPLAN SOURCE_TREE: a folder of the script's own, which goes with it, and the catalogues of the tree.
enter() {
    program=$1
    source=$2
    export DTPLAN_DATA=$source/scenarios LC_ALL=C.UTF-8
    scratch=$(mktemp -d)
    trap 'rm -rf -- "$scratch"' EXIT
    cd -- "$scratch" || exit 1
}

# expect STATUS ARGUMENTS: how dtplan ends, with a reason where it refuses or fails; leaves out and err behind.
expect() {
    local wanted=$1 status
    shift
    timeout 900 "$program" "${verb[@]}" "$@" >out 2>err </dev/null
    status=$?
    [[ $status == "$wanted" ]] || failed "exit status $status, not $wanted: dtplan ${verb[*]} $*: $(head -c 900 err out)"
    ((wanted < 2)) || grep -q "$reason" err || failed "no message: dtplan ${verb[*]} $*"
}

# says TEXT [FILE]: err, or FILE, has it.
says() {
    grep -qF -e "$1" "${2:-err}" || failed "${2:-err} lacks '$1': $(head -c 900 "${2:-err}")"
}
