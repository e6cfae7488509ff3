#!/usr/bin/env bash
# The checker of the pages is itself checked, on a small tree in which each mistake is planted once: check_pages_test.sh
# shellcheck disable=SC2016 # backticks are those of pages
set -euo pipefail
here=$(CDPATH='' cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
tree=$(mktemp -d)
trap 'rm -rf -- "$tree"' EXIT
mkdir -p "$tree"/model/base "$tree"/model/net "$tree"/scenarios "$tree"/tests/base
cd -- "$tree"
printf 'dtp_folder(model/base SYSTEM libc)\ndtp_folder(model/net USES model/base SYSTEM libc)\n' >folders.cmake
touch CMakeLists.txt model/net/{a,b,c,d,e}.h
for name in a b c d e f; do
    echo "int dtp_$name(void);" >"model/base/$name.h"
done
echo 'static void test_by_hand(void);' >tests/base/test_a.c
echo 'add_test(NAME layers COMMAND x)' >tests/CMakeLists.txt
page() {
    printf '**Idea.** %s\n\n**Data flow.** It flows.\n\n**Invariants.** Some.\n\n**Traps.** None.\n' "$1"
}
good='`dtp_a` `a.h` `base/b.h` `net/NAME.h` `model/base/` `test_a` `test_by_hand` `build/x` test `layers`'
echo 'There is `model/base/a.h`.' >CONTRIBUTING.md

# says STATUS WORDS...: how the check ends, and that its output has each of the words.
says() {
    local status=0 output words
    output=$("$here/check_pages.sh" "$tree" 2>&1) || status=$?
    if ((status != $1)); then
        printf 'ended with %s instead of %s:\n%s\n' "$status" "$1" "$output"
        exit 1
    fi
    shift
    for words in "$@"; do
        [[ $output == *"$words"* ]] || { printf 'does not say "%s":\n%s\n' "$words" "$output" && exit 1; }
    done
}

says 1 "model/base holds 6 files and folders and has no README.md"
page "$good" >model/base/README.md
says 0 "1 pages of folders"
for mistake in '`dtp_gone`|dtp_gone is no name of ours' '`test_gone`|test_gone is no name of ours' '`gone.h`|there is no file gone.h' \
    '`base/gone.h`|there is no base/gone.h' '`model/gone/NAME.c`|there is no model/gone/NAME.c' '`model/gone/`|there is no model/gone/' \
    'tests `layers`, `gone`|there is no test gone' \
    "$(printf 'x%.0s' {1..121})|wider than 120 columns"; do
    page "$good ${mistake%%|*}" >model/base/README.md
    says 1 "model/base/README.md:1: ${mistake#*|}"
done
page "$good" | grep -v Traps >model/base/README.md
says 1 "has no part that begins with **Traps.**"
page "nothing" >model/base/README.md
echo 'Nothing.' >CONTRIBUTING.md
says 1 "hardly anything was checked"
echo "each planted mistake was found"
