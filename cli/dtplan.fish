# Fish completion of dtplan. The program itself says what may stand at the cursor (`dtplan __complete WORD...`), so that
# there is no second list that could go stale. Where no word of ours fits, fish offers files.
function __dtplan_offers
    set -l words (commandline -opc) (commandline -ct)
    $words[1] __complete $words[2..-1] 2>/dev/null
end

complete -c dtplan -a '(__dtplan_offers)'
