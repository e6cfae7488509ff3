# shellcheck shell=bash
# Bash completion of dtplan. Flags, keys and their choices are read from `dtplan help COMMAND`, names from
# `dtplan catalog`, at the moment they are asked for: there is no second list that could go stale.

# The command of the line, plan where none is named.
_dtplan_command() {
    local word
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case $word in
            plan | explain | simulate | whatif | sweep | search | backtest | chart | report | run | validate | probe | catalog | help)
                printf '%s\n' "$word"
                return
                ;;
        esac
    done
    echo plan
}

# What may follow one flag of a command: its choices, one a line, or the kind of value it takes (NAME, FILE, N, ...).
_dtplan_values() {
    "$1" help "$2" 2>/dev/null | sed -n "s/^  $3 \([^ ]*\).*/\1/p" | sed -n 1p | tr '|' '\n'
}

_dtplan_names() {
    local table=$2
    "$1" catalog "$table" --csv 2>/dev/null | sed '1d;s/,.*//' | sort -u
}

_dtplan() {
    local program=${COMP_WORDS[0]} current=${COMP_WORDS[COMP_CWORD]} previous='' command words=''
    ((COMP_CWORD > 0)) && previous=${COMP_WORDS[COMP_CWORD - 1]}
    command=$(_dtplan_command)
    COMPREPLY=()
    case $previous in
        --gpu) words=$(_dtplan_names "$program" gpus) ;;
        --machine) # a machine file, or where one is planned a name
            words=$(compgen -G "$current*.csv")
            [[ $command == backtest ]] || words+=" $(_dtplan_names "$program" machines)"
            ;;
        --model) words=$(_dtplan_names "$program" models) ;;
        --catalog | --output | -o | --trace | --timeline | --memory | --data | --log | --checkpoint | --matmul-choices | --chart | --refit) ;; # a file: bash's own completion
        --strategy) words="all $(_dtplan_values "$program" "$command" --strategy)" ;;
        --*[!a-z0-9-]*) ;; # no flag of ours
        --*) words=$(_dtplan_values "$program" "$command" "$previous" | grep -v '[A-Z]') ;;
        chart) [[ $current == -* ]] || words=$("$program" help chart 2>/dev/null | sed -n '/^KINDS/,/^OPTIONS/s/^  \([a-z-]*\) .*/\1/p') ;;
        catalog) words="gpus machines models measured" ;;
        help) words="plan explain simulate whatif sweep search backtest chart report run validate probe catalog" ;;
        gpus | machines | models) words=$(_dtplan_names "$program" "$previous") ;;
    esac
    if [[ -z $words && $current == -* ]]; then
        words=$("$program" help "$command" 2>/dev/null | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p')
    elif [[ -z $words && $COMP_CWORD == 1 ]]; then
        words="plan explain simulate whatif sweep search backtest chart report run validate probe catalog help --help --version"
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}

# Where no word of ours fits, files do: scenarios, config.json, tables.
complete -o bashdefault -o default -F _dtplan dtplan
