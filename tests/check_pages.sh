#!/usr/bin/env bash
# Whether the pages of the folders are there and say what is so: check_pages.sh SOURCE_TREE
#
# Each folder of folders.cmake, each folder that holds some of them, scenarios/ and tests/ has a README.md where more than five
# files or folders are in it, with the four parts that all these pages have. What they and CONTRIBUTING.md name in backticks
# exists: files and folders; names of ours in C (dtp_..., DTP_...); tests (test_NAME, a program or a function of one; behind the
# word test or tests what ctest calls it). In a path NAME, FOLDER and * stand for anything. Names of files without a folder are
# looked for everywhere if they end as sources do; of other endings (plans.csv) many are only examples. What is built
# (build/...) is not looked for.
# shellcheck disable=SC2016 # backticks are those of pages
set -euo pipefail
cd -- "$1"
shopt -s nullglob
failures=0

failed() {
    printf '%s\n' "$*"
    failures=$((failures + 1))
}

# ---- which pages there are -------------------------------------------------------------------------------------------------

mapfile -t named < <(sed -n 's/^dtp_folder(\([^ )]*\).*/\1/p' folders.cmake)
folders=(scenarios tests)
for folder in "${named[@]}"; do
    while folders+=("$folder") && [[ $folder == */* ]]; do
        folder=${folder%/*}
    done
done
mapfile -t folders < <(printf '%s\n' "${folders[@]}" | sort -u)

pages=()
for folder in "${folders[@]}"; do
    inside=("$folder"/*)
    count=${#inside[@]}
    page=$folder/README.md
    [[ ! -e $page ]] || count=$((count - 1))
    if [[ -e $page ]]; then
        pages+=("$page")
        for part in Idea "Data flow" Invariants Traps; do
            grep -q "^\*\*$part\.\*\*" "$page" || failed "$page: has no part that begins with **$part.**"
        done
        while IFS= read -r line; do
            failed "$page:$line: wider than 120 columns"
        done < <(grep -n '.\{121,\}' "$page" | cut -d : -f 1)
    elif ((count > 5)); then
        failed "$folder holds $count files and folders and has no README.md, which says what its idea is"
    fi
done

# ---- what they name --------------------------------------------------------------------------------------------------------

# Three sets: names in the sources and programs of tests, names of tests for ctest, files by their names alone.
declare -A names tests files
while read -r name; do
    names[$name]=1
done < <(
    grep -rohE --include='*.[ch]' --include='*.cu' --include='*.cuh' --include='*.def' --include=CMakeLists.txt \
        '\<(dtp|DTP|test)_[A-Za-z0-9_]+\>' "${folders[@]}" CMakeLists.txt | sort -u
    find tests -name 'test_*.c' -printf '%f\n' | sed 's/\.c$//'
)
while read -r name; do
    tests[$name]=1
done < <(sed -n 's/.*add_test(NAME \([a-z_]*\) .*/\1/p' tests/CMakeLists.txt)
while read -r name; do
    files[$name]=1
done < <(find . -name 'build*' -prune -o -name .git -prune -o -type f -printf '%f\n')

# there FOLDER PATH: it exists below the page's folder, below the tree, or below the folders that includes begin in.
there() {
    local path=${2%/} top found
    path=${path//NAME/*}
    path=${path//FOLDER/*}
    for top in "$1/" "" model/ exec/ reports/; do
        # shellcheck disable=SC2206 # patterns are meant
        found=($top$path)
        if [[ ${#found[@]} -gt 0 && -e ${found[0]} ]]; then
            return 0
        fi
    done
    return 1
}

checked=0
for page in CONTRIBUTING.md "${pages[@]}"; do
    folder=$(dirname -- "$page")
    while IFS=: read -r line word; do
        case $word in
            build/* | build-* | /* | ../* | *:*) continue ;;
            dtp_* | DTP_* | test_*)
                [[ $word =~ ^[A-Za-z0-9_]+$ ]] || continue
                [[ -v names[$word] ]] || failed "$page:$line: $word is no name of ours"
                ;;
            *.c | *.h | *.cu | *.cuh | *.def | *.cmake | *.sh | *.gp | *.css | *.js | *.py | *.golden | */*)
                [[ $word =~ ^[A-Za-z0-9_.*/+-]+$ ]] || continue
                if [[ $word == */* ]]; then
                    there "$folder" "$word" || failed "$page:$line: there is no $word"
                elif [[ $word != *NAME* && $word != *\** ]]; then
                    [[ -v files[$word] ]] || failed "$page:$line: there is no file $word"
                fi
                ;;
            *) continue ;;
        esac
        checked=$((checked + 1))
    done < <(grep -noE '`[^`]+`' "$page" | tr -d '`' | awk -F : '{ n = $1; sub(/^[0-9]+:/, ""); k = split($0, w, /[ ,;()]+/)
        for (i = 1; i <= k; i++) if (w[i] != "") print n ":" w[i] }')
done
while IFS=: read -r page line name; do
    [[ $name == *NAME* ]] || [[ -v tests[$name] || -v names[$name] ]] || failed "$page:$line: there is no test $name"
    checked=$((checked + 1))
done < <(grep -HnoE '\<tests? `[A-Za-z_]+`(, `[A-Za-z_]+`)*' CONTRIBUTING.md "${pages[@]}" |
    awk -F : '{ k = split($3, w, "`"); for (i = 2; i <= k; i += 2) print $1 ":" $2 ":" w[i] }')
if ((checked < ${#pages[@]})); then
    failed "$checked names in ${#pages[@]} pages: hardly anything was checked"
fi
if ((failures)); then
    echo "$failures faults in pages; what a page says of a folder changes with the folder"
    exit 1
fi
echo "${#pages[@]} pages of folders and CONTRIBUTING.md: $checked names of files, functions and tests exist"
