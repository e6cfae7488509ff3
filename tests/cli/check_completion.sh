#!/usr/bin/env bash
# Whether completion offers, and the man page documents, what the program takes: check_completion.sh DTPLAN CLI_FOLDER
set -euo pipefail

program=$1
cli=$2
failures=0
PATH=$(dirname -- "$program"):$PATH
# shellcheck source=cli/dtplan.bash
source "$cli/dtplan.bash"

# What Tab offers after the words of a line, the last of which is being typed.
completions() {
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    COMPREPLY=()
    _dtplan
    printf '%s\n' "${COMPREPLY[@]}"
}

# expect WORD LINE...: WORD is among what Tab offers.
expect() {
    local word=$1 offers
    shift
    offers=$(completions "$@") # whole, before grep: a pipe that grep -q closes early fails now and then
    if ! grep -qx -e "$word" <<<"$offers"; then
        echo "not offered after '$*': $word"
        failures=$((failures + 1))
    fi
}

# The man page's keys are compared with the table elsewhere, so this list does not come from what is tested here.
documented=$(sed -n '/" BEGIN KEYS/,/" END KEYS/s/^\.It Fl \(\\-[^ ]*\).*/\1/p' "$cli/dtplan.1" | sed 's/\\-/-/g; s/^/-/')
[[ $(wc -l <<<"$documented") -gt 40 ]] || { echo "the man page lists hardly any keys" && exit 1; }
offered=$(completions dtplan plan --)
for flag in $documented; do
    if ! grep -qx -e "$flag" <<<"$offered"; then
        echo "not offered: $flag"
        failures=$((failures + 1))
    fi
done

expect explain dtplan ex
expect simulate dtplan s
expect --timeline dtplan simulate --ti
expect whatif dtplan w
expect --micro-batch dtplan whatif --mi
expect --micro-batch dtplan --mi
expect sweep dtplan sw
expect --gpus dtplan sweep --gpu
expect --max-gpus dtplan search --max
expect full_shard dtplan --strategy full
expect full_shard dtplan plan --strategy ""
expect all dtplan --strategy a
expect deepspeed dtplan --gpus 8 --runtime d
expect h100-sxm dtplan --gpu h100
expect llama-7b dtplan plan --model llama-7
expect dgx-h100 dtplan --machine dgx-h1
expect "$cli/../tests/data/synthetic_machine.csv" dtplan backtest runs.csv --machine "$cli/../tests/data/syn"
expect machines dtplan catalog m
expect schedule dtplan sch
expect dualpipe dtplan schedule --schedule du
expect --micro-batches dtplan schedule --micro
expect rendezvous dtplan schedule --sends r
expect constants dtplan catalog c
expect micro-batch dtplan chart mic
expect --where dtplan chart --w
expect h100-sxm dtplan catalog gpus h100-s
expect --output dtplan backtest --o
expect --tolerance dtplan validate --to
expect --matmul-choices dtplan probe --matmul

expect cpu dtplan --offload c
expect fp8 dtplan --precision fp
expect --batch-size dtplan whatif --batch
expect --nodes dtplan sweep --nod
# Behind "=", which bash makes a word of its own and zsh and fish do not; and behind a list's comma.
expect full_shard dtplan plan --strategy = full
expect full_shard dtplan plan --strategy =
expect --strategy=full_shard dtplan plan --strategy=full
expect ddp,full_shard dtplan sweep --strategy ddp,full
expect --strategy=ddp,zero1 dtplan sweep --strategy=ddp,z
expect 1f1b,zb-h1 dtplan schedule --schedule 1f1b,zb-h
expect true dtplan plan --compile =
expect --compile=false dtplan plan --compile=f
[[ -z $(completions dtplan plan --strategy=x,y) ]] || { echo "offered for no strategy" && failures=$((failures + 1)); }

# The same in zsh and fish, where they are: what they show of the program's answer, with what it means.
shows() {
    local shell=$1 word=$2
    shift 2
    grep -q -e "$word" <<<"$("$@" 2>&1)" || { echo "$shell does not offer $word: $("$@" 2>&1 | head -3)" && failures=$((failures + 1)); }
}
in_zsh() {
    # shellcheck disable=SC2016,SC2317 # for zsh to expand; called by shows
    zsh -f -c '_describe() { print -l -- "${(@P)2}"; }; _files() { print files; }
        words=("$@"); CURRENT=$#words; source "$0"' "$cli/dtplan.zsh" "$@"
}
if command -v zsh >/dev/null; then
    shows zsh '^--batch-size:' in_zsh dtplan plan --bat
    shows zsh '^h100-sxm:' in_zsh dtplan --gpu h100
    shows zsh '^whatif:' in_zsh dtplan w
    shows zsh '^files$' in_zsh dtplan plan sc
else
    echo "no zsh here: skipped"
fi
in_fish() {
    # shellcheck disable=SC2317 # called by shows
    fish --no-config -c "source '$cli/dtplan.fish'; complete -C '$1'"
}
if command -v fish >/dev/null; then
    shows fish '^--batch-size' in_fish 'dtplan plan --bat'
    shows fish '^h100-sxm' in_fish 'dtplan --gpu h100'
    shows fish '^whatif' in_fish 'dtplan w'
else
    echo "no fish here: skipped"
fi

# Every flag of every command's help stands in the man page.
page=$(sed 's/\\-/-/g' "$cli/dtplan.1")
for command in plan explain simulate whatif sweep search backtest chart report validate probe catalog help; do
    grep -q "^\.It Cm $command" <<<"$page" || { echo "undocumented command: $command" && failures=$((failures + 1)); }
    for flag in $("$program" help "$command" | sed -n 's/^  -\(-[a-z0-9-]*\).*/\1/p'); do
        if ! grep -q -e "^\.It.* Fl $flag\( \|$\)" <<<"$page"; then
            echo "undocumented: dtplan $command -$flag"
            failures=$((failures + 1))
        fi
    done
done
exit $((failures > 0))
