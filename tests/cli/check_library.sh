#!/usr/bin/env bash
# libdtplan as it is installed: check_library.sh BUILD_FOLDER SOURCE_TREE
#
# The tree is installed, moved, and the example program compiled against it by nothing but pkg-config; its symbols are
# those of the map, and all of them are functions of the header.
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

build=$1
source=$2
unset DTPLAN_DATA LD_LIBRARY_PATH
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd -- "$scratch" || exit 1

cmake --install "$build" --prefix "$scratch/first" >log 2>&1 || { cat log && exit 1; }
mv first "a moved tree"
tree="$scratch/a moved tree"
library=$(find "$tree" -name 'libdtplan.so.0' -print -quit)
[[ -n $library ]] || { failed "no libdtplan.so.0 is installed" && exit 1; }
folder=${library%/*}
header=$tree/include/dtplan.h
export PKG_CONFIG_PATH=$folder/pkgconfig LD_LIBRARY_PATH=$folder

[[ $(pkg-config --modversion dtplan) == "$("$tree/bin/dtplan" --version | cut -d ' ' -f 2)" ]] || failed "another version"
words=()
eval "words=($(pkg-config --cflags --libs dtplan))" # whose spaces within paths are escaped as for a shell
cc -std=c11 -Wall -Wextra -Werror "$source/cli/library/examples/plan.c" "${words[@]}" -o plan || failed "the example does not compile"
./plan llama-2-7b 8 >out || failed "the example ends with $?"
grep -qE '^  1 sequences: +[0-9.]+ GiB, +[1-9][0-9]+ tokens/s$' out || failed "no figures: $(cat out)"
grep -q 'does not fit$' out || failed "nothing is too large: $(cat out)"
./plan llama-9 8 >out 2>err && failed "an unknown model is planned"
grep -q 'llama' err || failed "no hint: $(cat err)"
"$tree/bin/dtplan" plan --model llama-2-7b --gpus 8 --strategy full_shard --seq 2048 --fidelity bounds --json >json
grep -q "\"tokens_per_s\": $(awk '/ 1 seq/ { print $5 }' <(./plan llama-2-7b 8) | cut -c 1-4)" json || failed "the program says otherwise"

# Catalogues beside the library, and a word where they are not.
rm "$tree/share/dtplan/models.csv"
./plan llama-2-7b 8 >out 2>err && failed "another tree's catalogues are read"
grep -q "models.csv" err || failed "no word of the catalogue: $(cat err)"

touch troff
# A page of the manual for each command, which troff takes without a word.
for name in $("$tree/bin/dtplan" __complete "" | cut -f 1); do
    page=$tree/share/man/man1/dtplan-$name.1
    [[ -s $page ]] || { failed "no page of $name" && continue; }
    [[ $name == help ]] || grep -q '^dtplan' "$page" || failed "no example on the page of $name"
    ! command -v groff >/dev/null || groff -man -ww -z -Tutf8 -rLL=100n "$page" 2>troff || failed "troff on the page of $name"
    ! grep -v "can't break line" troff || failed "words of troff on the page of $name"
done
"$tree/bin/dtplan" __man nonsense 2>/dev/null && failed "a page of no command"

# The header alone, also in C++; what is shown is what the map names and the header declares.
printf '#include <dtplan.h>\nint main(void) { return dtplan_version() ? 0 : 1; }\n' | tee version.c >version.cc
cc -std=c99 -Wall -Wextra -Wpedantic -Werror version.c "${words[@]}" -o version || failed "the header in C99"
./version || failed "no version"
if command -v c++ >/dev/null; then
    c++ -Wall -Wextra -Wpedantic -Werror version.cc "${words[@]}" -o version++ || failed "the header in C++"
    ./version++ || failed "no version in C++"
fi
nm -D --defined-only "$library" | awk '$2 == "T" { print $3 }' | sort >shown
sed -n 's/^        \(dtplan_[a-z]*\);/\1@@DTPLAN_0.2/p' "$source/cli/library/libdtplan.map" | sort >named
diff -u named shown || failed "the symbols are not those of the map"
[[ $(nm -D --defined-only "$library" | awk '$2 != "A"' | wc -l) == $(wc -l <named) ]] || failed "more is shown than functions"
sed 's/@.*//' named | while read -r name; do
    grep -q "[ *]$name(" "$header" || echo "$name"
done >undeclared
[[ ! -s undeclared ]] || failed "not declared: $(cat undeclared)"
readelf -d "$library" | grep -q 'SONAME.*\[libdtplan.so.0\]' || failed "the soname"
exit $((failures > 0))
