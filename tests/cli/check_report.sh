#!/usr/bin/env bash
# Pages of dtplan report: complete in themselves, of any input, and in a browser where there is one:
# check_report.sh DTPLAN SOURCE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=100 # phrases are looked for in lines

enter "$@"

# What loads something, or is markup that came from a name.
is_closed() {
    ! grep -Eqi '(src|href)="[^#"]|url\(|@import|<(link|img|iframe|object|embed|base|form)\b|https?://[^ <]*"' "$1" ||
        failed "$1 loads: $(grep -Eio '(src|href)="[^#"][^"]*|url\([^)]*|<(link|img|iframe|object)[^>]*' "$1" | head -3)"
    [[ $(grep -c '<script' "$1") == 1 ]] || failed "$1: not one script"
    [[ $(tail -n 2 "$1") == '</html>'$'\n''<!-- made by dtplan, digest '* ]] || failed "$1 is cut off"
}

job=(--model llama-2-7b --gpus 8 --strategy full_shard)
env PATH=/nonexistent "$program" report "${job[@]}" -o job.html >out 2>err </dev/null || failed "report: $(cat err)"
is_closed job.html
[[ $(grep -c 'role="img"' job.html) -ge 7 ]] || failed "a report without gnuplot lacks charts"
for words in 'It fits' 'What can go wrong' 'Constants that were fitted' 'measured runs' 'dtplan plan --model llama-2-7b --gpus 8'; do
    grep -q -e "$words" job.html || failed "the report lacks '$words'"
done
# What it says is what the command that it names says.
gib=$("$program" plan "${job[@]}" --json |
    awk -F': ' '/"device_peak_bytes"/ && !gib { gib = sprintf("%.1f", $2 / 2^30) } END { print gib }')
grep -q "It fits: $gib of" job.html || failed "the report says $(grep -o 'It fits: [^<]*' job.html), dtplan plan $gib GiB"
rate=$("$program" plan "${job[@]}" | sed -n 's,^  tokens  *\([0-9\,]*\) tokens/s.*,\1,p')
grep -q "<b>$rate tokens/s</b>" job.html || failed "the report says $(grep -o '<b>[^<]*tokens/s' job.html), dtplan plan $rate"
! grep -q 'are to spare' job.html || failed "the report's room is said as what is to spare"
# Of a narrow screen: what is wider scrolls, with a shadow, and says so.
for words in 'scroll.wide::before' 'toggle("wide"'; do
    grep -q -e "$words" job.html || failed "nothing shows that charts scroll: no $words"
done
expect 0 sweep --params 1B --gpus 8..1024x2 --strategy ddp -o scaling.csv
expect 0 report scaling.csv -o scaling.html
grep -q '>1024</text>' scaling.html || failed "1024 GPUs are not named as such"
! grep -q '1\.02k' scaling.html || failed "1024 GPUs are 1.02k"
expect 2 report "${job[@]}" -o page.pdf
says 'a report is a page of HTML'
[[ ! -e page.pdf ]] || failed "a page of HTML under a name that ends in .pdf"
expect 0 report "${job[@]}"
cmp -s out job.html || failed "a report differs from one call to the next"
expect 1 report --params 70e9 --gpus 8 --strategy ddp -o oom.html
grep -q 'It does not fit' oom.html || failed "the report of a plan that does not fit"
expect 0 report "$source/scenarios/gpt2-124m-1xrtx4090.ini" -o scenario.html
expect 0 sweep --params 7B --gpus 8..64x2 --strategy all --gpu h100-sxm,a100-80-sxm --micro-batch 1..4x2 -o sweep.csv
expect 0 report sweep.csv -o sweep.html
"$program" search --params 1B --gpus 2 --gpu a10,a100-80-sxm --tokens 200M --csv >search.csv || failed "search"
expect 0 report search.csv -o search.html
is_closed search.html
grep -q '<pre>dtplan plan ' search.html || failed "the report of a search recommends nothing"
expect 0 report --model llama-2-7b --gpus 8 --runtime megatron --strategy zero1 --pp 4 --accumulate 8 -o pipeline.html
is_closed pipeline.html
passes=$(sed -n '/<figure class="pipeline">/,/<\/figure>/p' pipeline.html | grep -c '<rect class="f[17]" x=')
[[ $passes == 64 ]] || failed "4 ranks x 8 micro-batches, forward and backward, are drawn as $passes boxes"
grep -q '0, most memory' pipeline.html || failed "the page names no rank as the one with most memory"
! grep -q 'id="pipeline"' job.html || failed "a job without a pipeline has a section on it"
expect 0 report "${job[@]}" --tokens 1T -o training.html
grep -q 'in 95 of 100 runs' training.html || failed "the report of a training lacks its time"
is_closed sweep.html
is_closed scenario.html

expect 2 report "$source/scenarios/h200_torch_runs.csv"
expect 2 report nowhere.csv
expect 2 report sweep.csv --gpus 8
expect 2 report --gpus 0 -o none.html
expect 2 report --json "${job[@]}"
[[ ! -e none.html ]] || failed "a refused report leaves a page"
expect 3 report "${job[@]}" -o /nonexistent/x.html
! compgen -G '*.tmp*' || failed "temporary files are left"

# Names, cells and paths that would like to be markup or commands.
# shellcheck disable=SC2016
hostile='</title><script>x</script><img src=x> "&'\'' $(touch pwned) `id`'
expect 0 report "${job[@]}" --name "$hostile" -o hostile.html
is_closed hostile.html
grep -q '&lt;script&gt;x' hostile.html || failed "the name is not shown as it is"
! grep -q '<img' hostile.html || failed "markup of a name is markup of the page"
# The commands of the page are what a shell reads as the name.
line=$(sed -n 's/.*<pre>dtplan plan //p' hostile.html | sed 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&#39;/'\''/g; s/&amp;/\&/g')
words=()
eval "words=($line)"
[[ ${words[6]-} == --name && ${words[7]-} == "$hostile" && ! -e pwned ]] || failed "a command of the page reads: ${words[*]}"
printf '%s\n' 'gpu_key,quantity,value,unit,kind,source' 'h100-sxm,power_w,700,w,measured,"<script>x</script>, ""b"" & c"' >catalog.csv
expect 0 report "${job[@]}" --catalog catalog.csv -o catalog.html
is_closed catalog.html
grep -q '&lt;script&gt;x' catalog.html || failed "the source of a figure is not shown as it is"
sed "2s|,llama-like 7.0B,|,\"<script>alert(1)</script>\"\"'\",|" sweep.csv >"\$(touch pwned) <b>.csv"
expect 0 report "\$(touch pwned) <b>.csv" -o cells.html
is_closed cells.html
! grep -q '<b>.csv\|<script>alert' cells.html || failed "markup of a cell is markup of the page"
[[ ! -e pwned ]] || failed "a name was run as a command"

# ---- in a browser ------------------------------------------------------------------------------------------------------

browser=
for name in chromium chromium-browser google-chrome; do
    browser=${browser:-$(command -v "$name")}
done
if [[ -z $browser ]]; then
    echo "no Chromium here: pages are not looked at in a browser"
    exit $((failures > 0))
fi
# All pages at once, each in a frame as wide as a telephone or a desk's screen, light or dark; each tells the page around it
# what it found.
frames=(job:390:light job:1440:dark sweep:390:dark sweep:1440:light oom:390:dark search:390:dark training:1440:dark hostile:1440:light pipeline:390:dark pipeline:1440:light cells:390:light)
{
    echo '<script>window.problems = [];'
    echo 'addEventListener("error", event => problems.push("error: " + event.message));'
    echo 'addEventListener("securitypolicyviolation", event => problems.push("loads: " + event.blockedURI));'
    echo 'for (const kind of ["error", "warn", "log"]) console[kind] = (...words) => problems.push("console: " + words);'
    cat -- "$source/tests/cli/report_in_browser.js"
    echo '</script>'
} >probe
{
    echo '<!DOCTYPE html><meta name="color-scheme" content="light dark"><body><script>'
    echo 'addEventListener("message", event => { const p = document.createElement("pre"); p.textContent = event.data; document.body.append(p); });'
    echo '</script>'
    for frame in "${frames[@]}"; do
        IFS=: read -r page width scheme <<<"$frame"
        sed '/^<head>$/r probe' "$page.html" >"looked-at-$page.html"
        echo "<iframe src=\"looked-at-$page.html#$page\" width=\"$width\" height=\"900\" style=\"border: 0; color-scheme: $scheme\"></iframe>"
    done
} >frames.html
HOME=$scratch timeout 900 "$browser" --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --window-size=1600,1000 \
    --user-data-dir="$scratch/profile" --virtual-time-budget=20000 --dump-dom "file://$scratch/frames.html" 2>chromium.log >seen
for frame in "${frames[@]}"; do
    IFS=: read -r page width scheme <<<"$frame"
    if ! grep -q "<pre>$page $scheme $width: ok</pre>" seen; then
        failed "in a browser: $page.html, $width pixels, $scheme: $(sed -n "/<pre>$page $scheme $width/,/<\/pre>/p" seen | head -12)"
        [[ -s seen ]] || tail -n 3 chromium.log
    fi
done
exit $((failures > 0))
