#!/usr/bin/env bash
# What the folders' libraries call: check_symbols.sh TABLE
#
# TABLE has a line for each folder, low to high: its name, its static library, and the folders that it may use, with spaces
# between these and tabs between the three. Every symbol that a library leaves undefined and another defines must lie in a folder that the first may use. A
# function that is declared by hand, or in a header of somewhere else, gets past the check of includes, not past this one.
set -euo pipefail
table=$1
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

while IFS=$'\t' read -r folder library _; do
    # "folder defines symbol" and "folder object uses symbol"
    (cd -- "${library%/*}" && nm -A -P -- "${library##*/}") | awk -v folder="$folder" '
        { sub(/^.*\[/, "", $1); sub(/\].*$/, "", $1) }
        $3 == "U" { print folder, $1, "uses", $2; next }
        $3 ~ /^[TDRBC]$/ { print folder, $1, "defines", $2 }'
done <"$table" >"$scratch/symbols"

awk '
    FILENAME == ARGV[1] {
        split($0, column, "\t")
        n = split(column[3], lower, " ")
        for (i = 1; i <= n; i++)
            may[column[1], lower[i]] = 1
        may[column[1], column[1]] = 1
        next
    }
    $3 == "defines" { home[$4] = $1; file[$4] = $2; next }
    $3 == "uses" { use[$1 " " $2 " " $4] = 1 }
    END {
        for (u in use) {
            split(u, part, " ")
            if ((part[3] in home) && !((part[1], home[part[3]]) in may))
                print part[1] "/" part[2] " uses " part[3] " of " home[part[3]] "/" file[part[3]]
        }
    }' "$table" "$scratch/symbols" | sort >"$scratch/upward"
if [[ -s $scratch/upward ]]; then
    cat -- "$scratch/upward"
    echo "$(wc -l <"$scratch/upward") uses of folders that stand higher or aside; the map is folders.cmake"
    exit 1
fi
if [[ $(grep -c defines "$scratch/symbols") -lt 100 ]]; then
    echo "hardly any symbol found: nothing was checked"
    exit 1
fi
echo "no library uses a folder that stands higher or aside"
