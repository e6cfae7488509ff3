#!/usr/bin/env bash
# Whether the pages of the folders are there and say what is so: check_pages.sh SOURCE_TREE
#
# Each folder of folders.cmake, each folder that holds some of them, scenarios/ and tests/ has a README.md where more than five
# files or folders are in it, and so has every other folder of more than five files, with the four parts that all these pages
# have. A folder without a source of its own, data alone, is described on the page of a folder above it, which names it.
# What the pages and CONTRIBUTING.md name in backticks exists: files and folders; names of ours in C (dtp_..., DTP_...) and other
# words with an underscore (functions, fields, keys, constants), somewhere in the sources; tests (test_NAME, a program or a
# function of one; behind the word test or tests what ctest calls it). Of `name`, `name` in `FILE` the file has each name. In a
# path NAME, FOLDER and * stand for anything. Names of files without a folder are looked for everywhere if they end as sources
# do; of other endings (plans.csv) many are only examples. What is built (build/...) is not looked for. Comments of C name nothing
# of ours (dtp_..., DTP_..., test_..., bench_...) that no code has.
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

# Other folders by how many files are in each, and whether one of them is a source.
declare -A held programmed
while read -r path; do
    folder=${path%/*}
    held[$folder]=$((${held[$folder]-0} + 1))
    case $path in
        */data/* | */corpus/* | */fixtures/*) ;;
        *.c | *.h | *.cu | *.cuh | *.def | *.py | *.sh | *.gp | *.js | .ci/*) programmed[$folder]=1 ;;
    esac
done < <(find . \( -name 'build*' -o -name .git -o -name __pycache__ \) -prune -o -type f -path './*/*' ! -name README.md -printf '%P\n')

# named_above FOLDER: the page of a folder above it has its name, or that of the folder it is in, with /NAME behind.
named_above() {
    local above=$1 parent=${1%/*}
    while [[ $above == */* ]]; do
        above=${above%/*}
        if [[ -e $above/README.md ]] && grep -qF -e "${1##*/}" -e "${parent##*/}/NAME" "$above/README.md"; then
            return 0
        fi
    done
    return 1
}

for folder in "${!held[@]}"; do
    if [[ " ${folders[*]} " != *" $folder "* ]] && ((held[$folder] > 5)); then
        if [[ -e $folder/README.md || -v programmed[$folder] ]]; then
            folders+=("$folder")
        else
            named_above "$folder" || failed "$folder holds ${held[$folder]} files of data, and no page above names it"
        fi
    fi
done

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
        done < <([[ $folder == reports/h200 ]] || grep -n '.\{121,\}' "$page" | cut -d : -f 1) # whose tables are wide
    elif ((count > 5)); then
        failed "$folder holds $count files and folders and has no README.md, which says what its idea is"
    fi
done

# ---- what they name --------------------------------------------------------------------------------------------------------

# Names in the sources and programs of tests, names of tests for ctest, files by their names alone with where they are, and
# words with an underscore in whatever is a source.
declare -A names tests files words
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
while IFS=/ read -r name path; do
    files[$name]+="$path "
done < <(find . -name 'build*' -prune -o -name .git -prune -o -type f ! -name '* *' -printf '%f/%P\n')
while read -r name; do
    words[$name]=1
done < <({
    find . \( -name 'build*' -o -name .git -o -name README.md -o -name corpus -o -name golden -o -name validate \) -prune -o -type f \
        -regex '.*\.\(c\|h\|cu\|cuh\|def\|py\|sh\|gp\|js\|cmake\|csv\|json\|jsonl\|map\|txt\)' -print0 |
        LC_ALL=C xargs -0 grep -ohE '[A-Za-z0-9]+(_[A-Za-z0-9]+)+' | LC_ALL=C sort -u
    find tests -name 'fuzz_*.c' -printf 'replay_%f\n' -o -name '*_*.c' -printf '%f\n' | sed 's/\.c$//'
} | sort -u)

# there FOLDER PATH: it exists below the page's folder, below the tree, or below the folders that includes begin in.
there() {
    local path=${2%/} top found
    path=${path//NAME/*}
    path=${path//FOLDER/*}
    for top in "$1/" "" model/ exec/ reports/ tests/; do
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
                [[ $word =~ ^[A-Za-z0-9_.*/+-]+$ && ! $word =~ ^[A-Z]+\.py$ ]] || continue
                if [[ $word == */* ]]; then
                    there "$folder" "$word" || failed "$page:$line: there is no $word"
                elif [[ $word != *NAME* && $word != *\** ]]; then
                    [[ -v files[$word] ]] || failed "$page:$line: there is no file $word"
                fi
                ;;
            *_*) # records of measurements name kernels of libraries
                [[ $folder != reports/h200* && $word =~ ^[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)+$ && $word != *NAME* && $word != FOLDER_* ]] || continue
                [[ -v words[$word] || -v tests[$word] ]] || failed "$page:$line: no source has $word"
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

# found FOLDER PATH: the files that a page of that folder means, in `sources`.
found() {
    local top
    sources=
    if [[ $2 != */* && ! -e $1/$2 ]]; then
        sources=${files[$2]-}
        return
    fi
    for top in "$1/" "" model/ exec/ reports/ tests/; do
        if [[ -z $sources && -e $top$2 ]]; then
            sources=$top$2
        fi
    done
}

# Of `name`, `name` in `FILE`, over the ends of lines, a line a name: PAGE|PATH|NAME|FILES. Of a file that is not there was said
# above.
pairs() {
    local page path line word
    for page in CONTRIBUTING.md "${pages[@]}"; do
        while IFS='|' read -r line path; do
            found "${page%/*}" "$path"
            for word in $line; do
                printf '%s|%s|%s|%s\n' "$page" "$path" "$word" "$sources"
            done
        done < <(tr '\n' ' ' <"$page" |
            { grep -oE '`[A-Za-z0-9_]+`((, | and )`[A-Za-z0-9_]+`)* +in +`[A-Za-z0-9_./-]+\.(c|h|cu|cuh|def|py|sh|gp)`' || true; } |
            sed -E 's/` +in +`([^`]*)`$/|\1/; s/`|,| and / /g')
    done
}

while IFS= read -r line; do
    case $line in
        checked*) checked=$((checked + ${line#checked })) ;;
        *) failed "$line" ;;
    esac
done < <(pairs | awk -F '|' '
    function has(file, word,    line, n, i, words) {
        if (!(file in have)) {
            have[file] = 1
            while ((getline line < file) > 0) {
                n = split(line, words, /[^A-Za-z0-9_]+/)
                for (i = 1; i <= n; i++) seen[file, words[i]] = 1
            }
            close(file)
        }
        return (file, word) in seen
    }
    $4 != "" {
        n = split($4, file, " ")
        holds = 0
        for (i = 1; i <= n; i++) if (has(file[i], $3)) holds = 1
        if (!holds) print $1 ": " $2 " has no " $3
        count++
    }
    END { print "checked " count + 0 }')
if ((checked < ${#pages[@]})); then
    failed "$checked names in ${#pages[@]} pages: hardly anything was checked"
fi

# ---- what comments name -----------------------------------------------------------------------------------------------------

while IFS= read -r line; do
    failed "$line"
done < <(find . \( -name 'build*' -o -name .git \) -prune -o -type f -regex '.*\.\(c\|h\|cu\|cuh\|def\)' -printf '%P\0' |
    sort -z | xargs -0 -r awk '
    function ours(word) { return word ~ /^(dtp|DTP|test|bench)_.*[A-Za-z0-9]$/ && word !~ /NAME/ }
    FNR == 1 {
        inside = 0
        n = split(FILENAME, path, /[\/.]/)
        have[path[n - 1]] = 1
    }
    {
        code = said = ""
        for (line = $0; line != ""; line = rest) {
            at = index(line, inside ? "*/" : "/*")
            part = at ? substr(line, 1, at - 1) : line
            rest = at ? substr(line, at + 2) : ""
            if (inside) said = said " " part; else code = code " " part
            if (at) inside = !inside
        }
        n = split(code, words, /[^A-Za-z0-9_]+/)
        for (i = 1; i <= n; i++) if (ours(words[i])) have[words[i]] = 1
        n = split(said, words, /[^A-Za-z0-9_]+/)
        for (i = 1; i <= n; i++) if (ours(words[i]) && !(words[i] in place)) place[words[i]] = FILENAME ":" FNR
    }
    END { for (word in place) if (!(word in have)) print place[word] ": a comment names " word ", which no code has" }')
if ((failures)); then
    echo "$failures faults in pages; what a page says of a folder changes with the folder"
    exit 1
fi
echo "${#pages[@]} pages of folders and CONTRIBUTING.md: $checked names of files, functions and tests exist"
