#!/usr/bin/env bash
# The paths of users, walked: check_paths.sh DTPLAN SOURCE_TREE
#
# Runs each command of reports/paths.md in its order, in one folder with the configurations that the page speaks of. A command
# may answer no (exit status 1); what stands behind "#>" below it is in what it printed.
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

enter "$@"
export COLUMNS=160
configs=$source/tests/data/configs
cp -- "$configs/torchtitan/llama3_8b.toml" train.toml
cp -- "$configs/deepspeed/zero3_auto.json" ds_config.json
cp -- "$configs/megatron/llama3_8b.sh" pretrain.sh
commands=0
answers=0

: >out
while IFS= read -r line; do
    text=${line#"${line%%[! ]*}"}
    [[ $line == '    '* ]] || continue
    if [[ $text == 'dtplan '* ]]; then
        command=$text
        commands=$((commands + 1))
        read -ra words <<<"${text#dtplan }" # the page has no quotes
        "$program" "${words[@]}" >out 2>err </dev/null
        status=$?
        ((status <= 1)) || failed "$command: exit status $status: $(head -c 400 err)"
        [[ -s out || $command == *' -o '* ]] || failed "$command: prints nothing"
    elif [[ $text == '#> '* ]]; then
        answers=$((answers + 1))
        grep -qF -- "${text#\#> }" out || failed "$command: does not print ${text#\#> }"
    fi
done <"$source/reports/paths.md"
((commands >= 15 && answers >= 15)) || failed "only $commands commands and $answers answers on the page"
exit $((failures > 0))
