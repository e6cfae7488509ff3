#!/usr/bin/env bash
# Charts as a user meets them, drawn and not drawn, and tables that want to be more than tables: check_chart.sh DTPLAN SOURCE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=100 # phrases are looked for in lines

enter "$@"

is_picture() {
    case $1 in
        *.png) [[ $(head -c 4 -- "$1" | tail -c 3) == PNG ]] ;;
        *.pdf) [[ $(head -c 4 -- "$1") == %PDF ]] ;;
        *.svg) tail -n 3 -- "$1" | grep -q '</svg>' ;;
        *.txt) [[ $(wc -l <"$1") -ge 8 ]] ;;
    esac
}

job=(--model gpt2 --gpu a100-80-sxm)
expect 0 sweep "${job[@]}" --gpus 8..64x2 --strategy ddp,full_shard -o scaling.csv
expect 0 sweep "${job[@]}" --gpus 8 --strategy ddp,full_shard --micro-batch 1..16x2 -o micro-batch.csv
expect 0 sweep "${job[@]}" --gpus 8 --strategy ddp,full_shard,shard_grad_op -o strategies.csv
cp strategies.csv step.csv
cp scaling.csv pareto.csv
expect 0 backtest "$source/scenarios/h200_torch_runs.csv" -o backtest.csv
expect 0 backtest "$source/tests/data/sweep.csv" -o decisions.csv
expect 0 simulate "${job[@]}" --gpus 8 --memory memory.csv --timeline timeline.csv
grep -v ',2,tcp' "$source/scenarios/h200_collectives.csv" | grep '^[#g]\|^4,' >bandwidth.csv
"$program" catalog measured "$source/tests/data/synthetic_machine.csv" --csv >machine-residuals.csv
expect 0 schedule --stages 4 --micro-batches 8 --schedule dualpipe --passes schedule.csv
kinds=(schedule memory timeline strategies step micro-batch scaling pareto backtest decisions bandwidth machine-residuals)

# Without gnuplot: data and script are there, and a sentence says what to do with them.
for kind in "${kinds[@]}"; do
    env PATH=/nonexistent "$program" chart "$kind" "$kind.csv" -o "alone-$kind.png" >out 2>err </dev/null ||
        failed "chart $kind without gnuplot: exit status $?"
    grep -q 'there is no gnuplot here' out || failed "chart $kind without gnuplot says: $(cat out)"
    [[ -s alone-$kind.gp && ! -e alone-$kind.png ]] || failed "chart $kind without gnuplot: no script"
    env PATH=/nonexistent "$program" chart "$kind" "$kind.csv" >out 2>err </dev/null || failed "$kind as text, no gnuplot"
    case $kind in
        memory | timeline | strategies | step) # areas of letters, which take no gnuplot
            [[ $(wc -l <out) -ge 8 ]] || failed "chart $kind as text without gnuplot: $(cat out)" ;;
        *) grep -q 'there is no gnuplot here' out || failed "chart $kind as text without gnuplot says: $(cat out)" ;;
    esac
done

# What is no chart, no table, no figure.
expect 2 chart
expect 2 chart pie scaling.csv
grep -q 'the charts are memory' err || failed "an unknown chart: $(cat err)"
expect 2 chart scaling scaling.csv -o scaling.gif
expect 2 chart scaling bandwidth.csv
expect 0 backtest "$source/tests/data/runs.csv" -o no-sweep.csv
expect 2 chart decisions no-sweep.csv
grep -q 'no row is of a sweep' err || failed "decisions of a table without sweeps: $(cat err)"
expect 2 chart memory timeline.csv
# Of a pipeline each rank has its lanes, busy for no longer than the step; of many ranks what they compute is shown.
expect 0 simulate --model gpt2 --gpu h100-sxm --gpus 4 --pp 4 --tied-head=false --accumulate 8 --strategy ddp --timeline ranks.csv
expect 0 chart timeline ranks.csv
if [[ $(grep -c 'rank [0-3] compute |' out) != 4 ]] || ! grep -q 'rank 1 receive_back |' out; then failed "lanes: $(cat out)"; fi
[[ $(sed -n 's/.*| \([0-9]*\) %$/\1/p' out | sort -n | tail -1) -le 100 ]] || failed "busy for longer than the step: $(cat out)"
expect 0 chart timeline ranks.csv --where 'role=pipeline rank 2'
if ! grep -q '^ *compute |' out || grep -q rank out; then failed "one rank's lanes: $(cat out)"; fi
expect 2 chart timeline ranks.csv --where role=1
grep -q "^dtplan: --where: ranks.csv has no role '1'; it has 'pipeline rank 0', 'pipeline rank 1'" err || failed "a role that is none: $(cat err)"
expect 2 chart timeline ranks.csv --where start_s=0.000000000 --where 'role=pipeline rank 2'
# A row that is no row of a step is named by its line, and is not left out of the figure.
for cells in nan,1 soon,1 ,1 -5,1 2,1 0,1e300; do
    awk -F, -v OFS=, -v cells="$cells" 'NR == 5 { split(cells, c, ","); $9 = c[1]; $10 = c[2] } { print }' timeline.csv >broken.csv
    expect 2 chart timeline broken.csv
    grep -q '^dtplan: broken.csv:5: start_s' err || failed "start_s,end_s $cells: $(cat err)"
done
expect 0 simulate --model gpt2 --gpu h100-sxm --gpus 12 --gpus-per-node 4 --pp 12 --tied-head=false --accumulate 4 --strategy ddp --timeline twelve.csv
expect 0 chart timeline twelve.csv
if [[ $(grep -c 'rank [0-9]* |' out) != 12 ]] || ! grep -q 'what each rank computes' out; then failed "twelve ranks: $(cat out)"; fi
expect 2 chart timeline scaling.csv
expect 2 chart scaling nowhere.csv
expect 2 chart scaling scaling.csv --where gpus
expect 2 chart scaling scaling.csv --where nothing=8
expect 2 chart memory memory.csv --where op=8
expect 3 chart scaling scaling.csv -o /nonexistent/x.png

if ! command -v gnuplot >/dev/null; then
    echo "no gnuplot here: charts are not drawn"
    exit $((failures > 0))
fi
for kind in "${kinds[@]}"; do
    for ending in png svg pdf txt; do
        expect 0 chart "$kind" "$kind.csv" -o "$kind.$ending"
        is_picture "$kind.$ending" || failed "chart $kind: $kind.$ending is no picture"
    done
    [[ ! -s err ]] || failed "chart $kind: gnuplot says $(cat err)"
    expect 0 chart "$kind" "$kind.csv"
    [[ $(wc -l <out) -ge 8 ]] || failed "chart $kind as text: $(cat out)"
    ! grep -qi 'warning\|undefined' out || failed "chart $kind as text: $(grep -i warning out)"
done
! grep -q '<script' ./*.svg || failed "a figure holds a script"
# As text, names of passes stand apart.
expect 0 schedule --stages 4 --micro-batches 8 --schedule looped-bfs --passes looped.csv
expect 0 chart schedule looped.csv
grep -q '[^a-z ]backward (odd)$' out || failed "the legend of a chart as text: $(tail -3 out)"
# The file of a probe has more groups of GPUs than anybody tells apart: the largest are drawn.
expect 0 chart bandwidth "$source/tests/data/synthetic_machine.csv" -o probed.png
grep -q 'all_reduce on 4 GPUs' probed.data.csv || failed "the chart of a probe lacks its largest groups"
! grep -q 'on 2 GPUs' probed.data.csv || failed "the chart of a probe shows more than its largest groups"
expect 0 chart bandwidth "$source/tests/data/synthetic_machine.csv" --where ranks=2 --where stride=1 -o probed.png
grep -q '^all_gather on 2 GPUs,131072,' probed.data.csv || failed "65536 bytes sent by each of two are no 131072: $(cat probed.data.csv)"
# Lines that lie on each other are one, under both names.
expect 0 sweep "${job[@]}" --gpus 8 --strategy zero3,full_shard,ddp --micro-batch 1..4x2 -o same.csv
expect 0 chart micro-batch same.csv -o same.png
grep -q '^zero3 and full_shard,' same.data.csv || failed "equal lines hide each other: $(cat same.data.csv)"
# No two ticks of money read alike, and as text a name's line is drawn by characters of its own, in both halves of a figure.
expect 0 sweep "${job[@]}" --gpus 8..64x2 --strategy ddp,full_shard --tokens 3e12 -o money.csv
expect 0 chart pareto money.csv
ticks=$(sed -nE 's/^ *([0-9.]+[a-zA-Z]?) \+-.*/\1/p' out)
[[ $(wc -l <<<"$ticks") -ge 4 && -z $(sort <<<"$ticks" | uniq -d) ]] || failed "ticks of money: $ticks"
expect 0 chart bandwidth bandwidth.csv
lines=$(grep -oE '[^A-Za-z0-9 ]{6}(all_[a-z]+|reduce_scatter) on 4 GPUs, fitted' out | cut -c1 | sort)
[[ $(wc -l <<<"$lines") == 3 && -z $(uniq -d <<<"$lines") ]] || failed "lines of the bandwidth chart as text: $(cat out)"
grep -v full_shard scaling.csv >one.csv
expect 0 chart scaling one.csv
[[ $(grep -cE '\|.*\|\*{8}' out) == 1 ]] || failed "the ideal efficiency is no line of its own: $(cat out)"
# The command that is printed draws the figure again.
expect 0 chart scaling scaling.csv -o again.png
rm again.png
again=$(sed -n 's/.*; again: //p' out)
[[ $again == gnuplot\ * ]] || failed "no command to draw again: $(cat out)"
eval "$again"
is_picture again.png || failed "does not draw again: $again"
! compgen -G '*.tmp*' || failed "temporary files are left"

# Cells, columns and names that would like to be commands, markup or formats.
mkdir hostile
cd hostile || exit 1
# shellcheck disable=SC2016
cells=('"; system("touch pwned"); "' '`touch pwned`' '$(touch pwned)' "'; system('touch pwned'); '" '<script>alert(1)</script>'
    $'two\nlines' '%s%n%d' '{/=99 x}' '@macro' '\" . system(\"touch pwned\") . \"' '"|touch pwned"' '<touch pwned')
write_cell() {
    printf '"%s"' "${1//\"/\"\"}"
}
{
    echo model,strategy,gpus_count,gpu,verdict,refused_because,tokens_per_s,scaling_efficiency_fraction,usd_per_billion_tokens
    for cell in "${cells[@]:0:6}"; do
        for gpus in 8 16; do
            write_cell "$cell"
            echo ",ddp,$gpus,h100,fits,,${gpus}000,0.9,3"
        done
    done
} >scaling.csv
{
    echo id,source,measured_tokens_per_s_per_gpu,predicted_tokens_per_s_per_gpu
    for cell in "${cells[@]:6:6}"; do
        write_cell "$cell"
        printf ','
        write_cell "$cell"
        echo ,1000,1100
    done
} >backtest.csv
for kind in scaling pareto backtest; do
    [[ $kind != pareto ]] || cp scaling.csv pareto.csv
    for ending in png svg txt; do
        "$program" chart "$kind" "$kind.csv" -o "$kind.$ending" >out 2>err </dev/null ||
            failed "chart $kind.$ending of hostile cells: $(cat err)"
        is_picture "$kind.$ending" || failed "chart $kind.$ending of hostile cells is no picture"
    done
done
# shellcheck disable=SC2016
for name in '`touch pwned`.png' '$(touch pwned).svg' '|touch pwned.png' "';touch pwned;'.txt" '-o.png' $'a\nb.png'; do
    "$program" chart scaling scaling.csv "--output=$name" >out 2>err </dev/null || failed "figure $name: $(cat err)"
    is_picture "./$name" || failed "no figure $name"
done
# Sizes that no card and no step has: they are none, and no bar is drawn with them.
{
    head -n 1 ../strategies.csv
    sed -n 2p ../strategies.csv | sed -E 's/,[0-9]{4,}/,1e308/g; s/,0\.[0-9]+/,1e-308/g'
    sed -n 3p ../strategies.csv
} >beyond.csv
for kind in strategies step; do
    expect 0 chart "$kind" beyond.csv
done
! grep -q '<script' ./*.svg || failed "markup of a cell is markup in a figure"
[[ -z $(find .. -name 'pwned*') ]] || failed "a cell was run as a command"
exit $((failures > 0))
