#!/usr/bin/env bash
# dtplan sweep as its users call it, and as a hostile world treats it: check_sweep.sh DTPLAN SOURCE_TREE SANITIZERS
#
# Rows are whole whatever happens: a full disk, a kill, a cut file, two writers, hostile names.
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=100 # phrases are looked for in lines

enter "$@"

# expect STATUS ARGUMENTS of sweep: leaves out, err and status behind.
expect() {
    local wanted=$1
    shift
    "$program" sweep "$@" >out 2>err </dev/null
    status=$?
    [[ $status == "$wanted" ]] || failed "exit status $status, not $wanted: dtplan sweep $*: $(head -c 300 err)"
    ! grep -qv '^dtplan: ' err || failed "stderr: $(grep -v '^dtplan: ' err | head -c 300)"
}

small=(--params 1B --gpus 1..8x2 --strategy all --micro-batch "1,2")

# ---- the table ---------------------------------------------------------------------------------------------------------

expect 0 "${small[@]}"
cp out whole.csv
[[ $(wc -l <whole.csv) == 57 ]] || failed "4 x 7 x 2 rows and a header, not $(wc -l <whole.csv)"
head -1 whole.csv | grep -q '^schema,sweep,row,swept,strategy,refused_because,' || failed "header"
head -1 whole.csv | tr , '\n' | sort | uniq -d | grep -q . && failed "a column twice"
expect 0 "${small[@]}" -o file.csv
cmp -s file.csv whole.csv || failed "a file and standard output differ"
grep -q '^file.csv: 56 rows' out || failed "what was done: $(cat out)"
taskset -c 0 "$program" sweep "${small[@]}" 2>/dev/null | cmp -s - whole.csv || failed "one core makes another table"
expect 0 --params 1B --seq 1k..4kx2 --compile=true,false --gpu all --fidelity closed
expect 0 --model gpt2 --gpus 1,2 --strategy ddp,full_shard --fidelity simulated
[[ $(grep -c ',simulated,' out) == 4 ]] || failed "four simulated rows: $(cut -c1-200 out)"
expect 1 --params 1B --gpus 8 --strategy zero2 --runtime torch --micro-batch 1,2
expect 2 "${small[@]}" --gpus 8..4
says 'goes down'
expect 2 "${small[@]}" --gpus 1..100000 --micro-batch 1..100000
says 'combinations'
expect 2 "${small[@]}" --strategy ddp,nonsense
expect 2 --params 1B --json

# ---- resumed -----------------------------------------------------------------------------------------------------------

expect 0 "${small[@]}" -o file.csv
grep -q 'was complete' out || failed "a complete file: $(cat out)"
cmp -s file.csv whole.csv || failed "a complete file was touched"
bytes=$(stat -c %s whole.csv)
for cut in 1 10 500 1000 $((bytes / 3)) $((bytes / 2)) $((bytes - 1)); do
    head -c "$cut" whole.csv >file.csv
    expect 0 "${small[@]}" -o file.csv
    cmp -s file.csv whole.csv || failed "resumed after $cut bytes: another table"
done
expect 0 --micro-batch 1 --seq 1k --params 1B --strategy all -o file2.csv
expect 0 --strategy all --params 1B --seq 1k --micro-batch 1 -o file2.csv
grep -q 'was complete' out || failed "keys in another order are another command: $(cat out)"
expect 2 "${small[@]}" --seq 1k -o file.csv
says 'row of another command'
cmp -s file.csv whole.csv || failed "a refused file was touched"
for content in 'something else' $'a,b\n1,2'; do
    printf '%s\n' "$content" >other.csv
    cp other.csv before.csv
    expect 2 "${small[@]}" -o other.csv
    says 'has not the columns that this version writes'
    cmp -s other.csv before.csv || failed "another file was touched"
done
{ cat whole.csv && tail -1 whole.csv; } >long.csv
expect 2 "${small[@]}" -o long.csv

# ---- killed ------------------------------------------------------------------------------------------------------------

large=(--params 7B --gpus 8..1024x2 --micro-batch 1..60 --checkpointing all "--compile=true,false")
"$program" sweep "${large[@]}" >large.csv 2>/dev/null
for signal in TERM INT KILL; do
    rm -f killed.csv
    setsid "$program" sweep "${large[@]}" -o killed.csv >/dev/null 2>err &
    pid=$!
    while [[ ! -s killed.csv ]] && kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
    kill "-$signal" "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    status=$?
    [[ $signal == KILL || $status == 3 || $status == 0 ]] || failed "SIG$signal: exit status $status"
    [[ $status != 3 ]] || says 'the same command goes on'
    rows=$(wc -l <killed.csv)
    head -n "$rows" large.csv | head -c "$(stat -c %s killed.csv)" | cmp -s - <(head -n "$rows" killed.csv) ||
        failed "SIG$signal left other than whole rows"
    expect 0 "${large[@]}" -o killed.csv
    cmp -s killed.csv large.csv || failed "resumed after SIG$signal: another table"
done

# ---- output that cannot be written ----------------------------------------------------------------------------------------

(
    ulimit -f 200 # of 1024 bytes: the disk is full in the middle of a row
    "$program" sweep "${large[@]}" -o full.csv >out 2>err
    echo $? >status
)
[[ $(cat status) == 3 ]] || failed "full disk: exit status $(cat status)"
says 'cannot be written'
[[ $(tail -c 1 full.csv | od -An -c) == *'\n'* ]] || failed "full disk: the last row is cut"
expect 0 "${large[@]}" -o full.csv
cmp -s full.csv large.csv || failed "resumed after a full disk: another table"
if [[ -w /dev/full ]]; then
    expect 3 "${small[@]}" -o /dev/full
    "$program" sweep "${small[@]}" >/dev/full 2>err
    [[ $? == 3 ]] || failed "standard output full"
fi
expect 3 "${small[@]}" -o missing/rows.csv
expect 3 "${small[@]}" -o .
exec 7>>locked.csv
if flock -n 7; then
    expect 3 "${small[@]}" -o locked.csv
    says 'another process is writing it'
fi
exec 7>&-
"$program" sweep "${small[@]}" 2>err | head -1 >/dev/null
grep -q Segmentation err && failed "closed pipe"

# ---- hostile names ---------------------------------------------------------------------------------------------------------

expect 0 --params 1B --name '=cmd|"/c calc"!A1,x' --micro-batch 1,2
[[ $(grep -c '"=cmd|""/c calc""!A1,x"' out) == 2 ]] || failed "a name is not quoted: $(cut -c1-300 out)"
expect 2 --params 1B --name $'a\nb' --micro-batch 1,2
expect 0 "${small[@]}" -o './;touch pwned;.csv'
[[ ! -e pwned ]] || failed "a name was run as a command"
# shellcheck disable=SC2016 # not to be expanded is the point
expect 2 --params 1B --micro-batch '1..$(touch pwned)'
expect 2 --params 1e400 --micro-batch 1..3
expect 2 --params 1B --gpus 1..18446744073709551616x2

# ---- memory ------------------------------------------------------------------------------------------------------------------

# 20,000 rows are 20 MB of text; none of it stays.
if command -v /usr/bin/time >/dev/null; then
    /usr/bin/time -f '%M' "$program" sweep --params 7B --gpus 8..1600+8 --micro-batch 1..100 -o many.csv >/dev/null 2>kib
    [[ $(wc -l <many.csv) == 20001 ]] || failed "20,000 rows"
    kib=$(tail -n 1 kib) # behind what is said of progress where that takes long
    [[ ${3:-} || $kib -lt 20000 ]] || failed "20,000 rows took $kib KiB of memory"
fi

# ---- progress ----------------------------------------------------------------------------------------------------------------

# Where stderr is no terminal long work says how far it is, every five seconds; short work nothing.
"$program" sweep --params 7B --gpus 8..8000+8 --micro-batch 1..10000 -o endless.csv >/dev/null 2>progress </dev/null &
sleep 7
kill -INT $! 2>/dev/null
wait $!
grep -qE '^dtplan: [0-9]+ %: [0-9,]+ of 10,000,000 rows, .* left$' progress || failed "no progress: $(cat progress)"
! grep -q $'\r' progress || failed "a line that moves, in a file"
[[ $(grep -c ' left$' progress) -le 2 ]] || failed "too much of it: $(cat progress)"
exit $((failures > 0))
