# shellcheck shell=bash
# Bash completion of dtplan. The program itself says what may stand at the cursor (`dtplan __complete WORD...`), so that
# there is no second list that could go stale.
_dtplan() {
    mapfile -t COMPREPLY < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null | cut -f 1)
}

# Where no word of ours fits, files do: scenarios, config.json, tables.
complete -o bashdefault -o default -F _dtplan dtplan
