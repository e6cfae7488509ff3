# shellcheck shell=bash
# What the scripts beside it have in common: sourced by each before it goes elsewhere.

failures=0

failed() {
    echo "FAILED: $*"
    failures=$((failures + 1))
}

# says TEXT [FILE]: err, or FILE, has it.
says() {
    grep -qF -e "$1" "${2:-err}" || failed "${2:-err} lacks '$1': $(head -c 900 "${2:-err}")"
}
