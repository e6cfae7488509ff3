#compdef dtplan
# Zsh completion of dtplan. The program itself says what may stand at the cursor (`dtplan __complete WORD...`), so that
# there is no second list that could go stale.
_dtplan() {
    local line
    local -a offers
    for line in ${(f)"$("$words[1]" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)"}; do
        offers+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
    done
    # Where no word of ours fits, files do: scenarios, config.json, tables.
    if (($#offers)); then
        _describe dtplan offers
    else
        _files
    fi
}

_dtplan "$@"
