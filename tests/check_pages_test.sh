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
good='`dtp_a` in `a.h` `base/b.h` `net/NAME.h` `model/base/` `test_a` `test_by_hand` `build/x` test `layers`'
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
    'tests `layers`, `gone`|there is no test gone' '`gone_word`|no source has gone_word' \
    "$(printf 'x%.0s' {1..121})|wider than 120 columns"; do
    page "$good ${mistake%%|*}" >model/base/README.md
    says 1 "model/base/README.md:1: ${mistake#*|}"
done
page "$good"', `dtp_a`, `dtp_b` in `b.h`' >model/base/README.md
says 1 "model/base/README.md: b.h has no dtp_a"
page "$good" >model/base/README.md
mkdir -p tests/many tests/rows/made
touch tests/many/{a,b,c,d,e,f}.c tests/rows/made/{a,b,c,d,e,f}.csv
says 1 "tests/many holds 6 files and folders and has no README.md" "tests/rows/made holds 6 files of data, and no page above names it"
page 'Data: `rows/made`' >tests/README.md
page 'Many.' >tests/many/README.md
says 0 "3 pages of folders"
rm -r tests/many tests/rows tests/README.md
printf '/* As dtp_a,\n * not dtp_gone. */\nint dtp_c(void); /* test_a */\n' >model/base/c.h
says 1 "model/base/c.h:2: a comment names dtp_gone, which no code has"
echo 'int dtp_c(void);' >model/base/c.h
page "$good" | grep -v Traps >model/base/README.md
says 1 "has no part that begins with **Traps.**"
page "nothing" >model/base/README.md
echo 'Nothing.' >CONTRIBUTING.md
says 1 "hardly anything was checked"
echo "each planted mistake was found"
