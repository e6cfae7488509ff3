#!/usr/bin/env bash
# dtplan probe as its users call it, on the host device: check_probe.sh DTPLAN SOURCE_TREE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=200 # phrases are looked for in lines

enter "$@"
verb=(probe)

host=(--device host --threads 1 --seconds 1)

# rows FILE MEASUREMENT [WHAT]: how many there are.
rows() {
    awk -F, -v measurement="$2" -v what="${3:-}" \
        'NR > 1 && $1 == measurement && (what == "" || $2 == what) { n++ } END { print n + 0 }' "$1"
}

# ---- one rank, into the file that is meant without -o --------------------------------------------------------------------

expect 0 "${host[@]}" --gpus 1
[[ -s machine.csv ]] || failed "no machine.csv"
for measurement in about matmul attention kernel copy host_adam; do
    [[ $(rows machine.csv "$measurement") -gt 0 ]] || failed "no row of $measurement"
done
for measurement in collective contention; do
    [[ $(rows machine.csv "$measurement") == 0 ]] || failed "$measurement of one rank"
done
for what in forward input_gradient weight_gradient weight_gradient_sum; do
    [[ $(rows machine.csv matmul "$what") -gt 0 ]] || failed "no matmul row of $what"
done
[[ $(rows machine.csv about gpu_key) == 1 ]] || failed "not one gpu_key"
says 'about,gpu_key,,,,,,,,,,,,,,,,,,host' machine.csv
says 'Use it: dtplan --machine machine.csv' out

head -n -1 machine.csv >cut.csv
[[ $(sed -n 2p machine.csv) == "about,rows,,,,,,,,,,,,,,,,,,$(($(wc -l <machine.csv) - 1))" ]] || failed "it does not say its rows: $(sed -n 2p machine.csv)"
"$program" catalog measured machine.csv >out 2>err || failed "it does not read what it wrote: $(cat err)"
"$program" --params 1e9 --gpus 1 --machine cut.csv >out 2>err
status=$?
[[ $status == 2 ]] || failed "a machine file that was cut: exit status $status"
says 'cut.csv: holds '

# What a row is of, twice: each is one row, with as many samples.
cut -d, -f1-15 machine.csv | sort | uniq -d >twice
[[ ! -s twice ]] || failed "rows that occur twice: $(head -n 3 twice)"
awk -F, 'NR > 1 && $1 != "about" && !($16 > 0 && $17 <= $16 && $16 <= $18 && $19 >= 1)' machine.csv >odd
[[ ! -s odd ]] || failed "a median outside its quartiles: $(head -n 3 odd)"

# ---- two ranks and the shapes of a job ------------------------------------------------------------------------------------

cat >job.ini <<'END'
[model]
layers = 5
hidden = 96
heads = 2
ffn = 160
vocab = 272
[cluster]
gpus = 64
[plan]
strategy = full_shard
micro_batch = 3
seq = 16
precision = fp32
END
expect 0 "${host[@]}" --gpus 2 job.ini -o two.csv
for collective in all_gather reduce_scatter all_reduce send_recv shift all_to_all all_to_all_uneven; do
    [[ $(rows two.csv collective "$collective") -ge 2 ]] || failed "hardly any row of $collective"
done
says 'matmul,forward,fp32,48,320,96,' two.csv # gate and up: 3 x 16 tokens, two times 160 columns, 96 deep
for ranks in 1 2; do
    grep -q "^copy,upload,.*,$ranks,,,[0-9]" two.csv || failed "no upload of $ranks at once"
done
says 'about,gpus,,,,,,,,,,,,,,,,,,2' two.csv
says 'COLLECTIVES' out
for measurement in matmul attention kernel; do # ranks share the cores, so each row says how many did
    for ranks in 1 2; do
        grep -q "^$measurement,.*,$ranks,,,[0-9]" two.csv || failed "no $measurement of $ranks at once"
    done
done
for dtype in fp32 bf16; do
    grep -q "^kernel,norm,$dtype," two.csv || failed "no norm in $dtype"
    grep -q "^collective,all_reduce,$dtype," two.csv || failed "no all_reduce in $dtype"
done
"$program" catalog measured two.csv >out 2>err || failed "it does not read what it wrote: $(cat err)"
"$program" --layers 2 --hidden 64 --heads 4 --ffn 192 --vocab 256 --gpus 2 --machine two.csv --runtime dtplan >out 2>err || failed "no plan by it: $(cat err)"
says '2 × cores of this machine' out
"$program" --layers 2 --hidden 64 --heads 4 --ffn 192 --vocab 256 --gpus 4 --machine two.csv --runtime dtplan >out 2>err
says 'two.csv measured 2; probe with --gpus 4'
"$program" --layers 2 --hidden 64 --heads 4 --ffn 192 --vocab 256 --gpu host --runtime dtplan >out 2>err
says 'dtplan probe --device host -o here.csv'

# A file of before that says nothing of a ring's steps is read, and the plan says what it lacks.
grep -v '^about,rows\|^collective,shift' two.csv >older.csv
for machine in two older; do
    "$program" --layers 2 --hidden 64 --heads 4 --ffn 192 --vocab 256 --seq 64 --gpus 2 --cp 2 --strategy ddp --machine "$machine.csv" --runtime dtplan >"$machine.txt" 2>err ||
        failed "no plan by $machine.csv: $(cat err)"
done
says 'the machine file has no row of shift' older.txt
grep -q 'has no row of' two.txt && failed "it misses what was measured"

# ---- what is refused -----------------------------------------------------------------------------------------------------

expect 2 "${host[@]}" --gpu h200-sxm --gpus 1 -o none.csv
says '--gpu: --device host measures the cores of this machine'
expect 2 "${host[@]}" --gpus 2 --machine machine.csv -o none.csv
says '--machine: --device host measures the cores of this machine'
[[ $(wc -l <err) == 1 ]] || failed "not one line: $(head -c 900 err)"
expect 2 "${host[@]}" --gpus 4 --gpus-per-node 2 --pretend-nodes -o none.csv
says 'probe without it'
expect 2 "${host[@]}" --json
expect 2 "${host[@]}" --micro-batch 0
expect 3 "${host[@]}" --gpus 1 -o nowhere/machine.csv
says 'nowhere/machine.csv'
[[ ! -e none.csv ]] || failed "a refused probe left a file"

# What is wrong for all ranks alike is said once.
said_once() {
    says "$1"
    [[ $(wc -l <err) == 1 ]] || failed "not one line: $(head -c 900 err)"
    [[ ! -e none.csv ]] || failed "a refused probe left a file"
}
expect 2 "${host[@]}" --gpus 2000 -o none.csv
said_once '2000 ranks, the host device has at most 1024'
expect 2 "${host[@]}" --gpus 4 --gpus-per-node 3 -o none.csv
said_once '--gpus-per-node: 4 ranks on one machine are measured as one node, not as nodes of 3; leave it out'
expect 2 "${host[@]}" --gpus 4 --gpus-per-node 2 -o none.csv
said_once 'not as nodes of 2'

cp two.csv kept.csv
expect 2 "${host[@]}" --gpus 1 -o two.csv
says 'two.csv: is there already; --force replaces it'
cmp -s two.csv kept.csv || failed "a machine file was touched without --force"
mkdir folder.csv
expect 3 "${host[@]}" --gpus 1 -o folder.csv
says 'folder.csv: cannot be written'

# Where there is no GPU, or none of this build's.
CUDA_VISIBLE_DEVICES='' expect 3 --gpus 1 -o none.csv
says '--device'
[[ ! -e none.csv ]] || failed "a probe without a GPU left a file"

# A figure that no core reaches, whoever says it, is no row: here an executor says that a norm took 0.5 ns.
mkdir bin
cp -- "$program" bin/dtplan
cat >bin/dtplan-exec <<END
#!/usr/bin/env bash
for ((i = 1; i < \$#; i++)); do
    [[ \${!i} == --events ]] && next=\$((i + 1)) && events=\${!next}
done
echo '{"event":"row","measurement":"kernel","what":"norm","dtype":"fp16","bytes":4096,"seconds":5e-10}' >&"\$events"
exec '$(dirname -- "$program")/dtplan-exec' "\$@"
END
chmod +x bin/dtplan-exec
own=$program
program=bin/dtplan
expect 0 "${host[@]}" --gpus 1 -o fast.csv
program=$own
says 'rows: left out, for no such machine is as fast: first kernel norm of 4096 bytes in 0.'
says ' ns, the least is 5 ns; end what else'
grep -q '^kernel,norm,fp16' fast.csv && failed "a norm in 0.5 ns became a row"

# ---- interrupted ---------------------------------------------------------------------------------------------------------

printf 'as it was\n' >kept.csv
"$program" probe "${host[@]}" --gpus 2 -o kept.csv --force >out 2>err &
probe=$!
ranks_listen() { # both ranks, children of dtplan's child, catch SIGINT
    local child rank ranks count=0
    read -r child <"/proc/$probe/task/$probe/children"
    read -ra ranks <"/proc/$child/task/$child/children"
    for rank in "${ranks[@]}"; do
        grep -q '^SigCgt:.*[2367abef]$' "/proc/$rank/status" && count=$((count + 1))
    done
    ((count == 2))
}
for _ in {1..600}; do
    ranks_listen 2>/dev/null && break
    sleep 0.05
done
kill -INT "$probe"
wait "$probe"
status=$?
[[ $status == 3 ]] || failed "an interrupted probe ends with $status, not 3: $(head -c 500 err)"
says 'dtplan: stopped after '
# On a machine that others keep busy it may have said how far it is before it was asked to stop, and which times no machine
# can have.
[[ $(grep -cvE '^dtplan: ([0-9]* %: |warning: .*: left out, )' err) == 2 ]] || failed "an interrupted probe says more than it should: $(cat err)"
says 'kept.csv was not written'
[[ $(cat kept.csv) == 'as it was' ]] || failed "an interrupted probe wrote its file"
[[ -z $(find . -name 'kept.csv?*') ]] || failed "an interrupted probe left a file behind: $(ls)"

((failures == 0)) && echo "dtplan probe: all as it should be"
exit $((failures > 0))
