#!/usr/bin/env bash
# What dtplan doctor says of machines that lack something: check_doctor.sh DTPLAN SOURCE_TREE
#
# The machines are made up: a copy of dtplan beside a dtplan-exec of a few lines, and a PATH with nothing but stubs.
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=150 # phrases are looked for in lines

enter "$@"
unset NO_COLOR LD_LIBRARY_PATH
bash=$(command -v bash)

# expect STATUS ARGUMENTS: leaves out and err behind.
expect() {
    local wanted=$1 status=0
    shift
    PATH=$scratch/stubs "$scratch/dtplan" doctor "$@" >out 2>err </dev/null || status=$?
    [[ $status == "$wanted" ]] || failed "exit status $status, not $wanted: dtplan doctor $*: $(head -c 300 err)"
}

shows() {
    grep -qE -- "$1" out || failed "no line of doctor is $1: $(cat out)"
}

# stub FILE LINE...: a program.
stub() {
    local file=$1
    shift
    { printf '#!%s\n' "$bash" && printf '%s\n' "$@"; } >"$file"
    chmod +x "$file"
}

mkdir stubs
cp -- "$program" dtplan

# A laptop with nothing: predicting is ready, running is not, and what is missing is an answer.
expect 0
shows '^  plan, .*ready'
shows '^  run, validate, probe  *not on this machine: dtplan-exec'
shows '^  gnuplot  *MISSING'
grep -q 'gnuplot-nox' out || failed "no way to have gnuplot"
expect 0 plan sweep
[[ ! -s err ]] || failed "plan needs something: $(cat err)"
expect 3 run --device host
grep -q '^dtplan: dtplan-exec is missing' err || failed "no word of dtplan-exec: $(cat err)"
expect 0 chart # draws without gnuplot: data and script
# Commands that need nothing but dtplan are answered for where they are named, without a table of nothing.
expect 0 doctor help
shows '^  doctor, help  *ready'
! grep -q '^NEEDS' out || failed "needs of commands without any: $(cat out)"

# An executor for the cores alone.
stub dtplan-exec 'echo host'
expect 0
shows '^  run.*ready on cores'
expect 0 run --device host
expect 3 run
grep -q 'dtplan-exec with CUDA is missing' err || failed "no word of CUDA: $(cat err)"
! grep -q '^dtplan: gnuplot' err || failed "gnuplot stops a run"

# With CUDA, and a library that the loader does not find.
stub dtplan-exec 'echo "dtplan-exec: error while loading shared libraries: libnccl.so.2: cannot open shared object file" >&2' 'exit 127'
expect 3 run
shows '^  dtplan-exec  *MISSING  *.*libnccl.so.2'
stub dtplan-exec 'echo "host, cuda with cuBLASLt, cuDNN and NCCL"'
stub stubs/ldconfig 'printf "\tlibnccl.so.2 (libc6,x86-64) => /opt/nccl/libnccl.so.2\n\tlibcublasLt.so.12 (libc6) => /opt/cuda/libcublasLt.so.12\n"'
expect 3 run
shows '^  libnccl.so.2  *found  */opt/nccl/libnccl.so.2'
shows '^  libcublasLt.so.13  *found  */opt/cuda/libcublasLt.so.12' # another version of it
shows '^  libcudnn.so.9  *MISSING'
mkdir libraries && touch libraries/libcudnn.so.9
LD_LIBRARY_PATH=:/nowhere:$scratch/libraries expect 3 run
shows "^  libcudnn.so.9  *found  *$scratch/libraries/libcudnn.so.9"
stub stubs/gnuplot 'exit 0'
stub stubs/python3 'echo 2.9.1'
expect 0
shows "^  gnuplot  *found  *$scratch/stubs/gnuplot"
shows '^  torch  *found  *2.9.1'

# A program that never ends its answer is cut off; one that prints control characters moves no cursor.
stub dtplan-exec 'printf "host\033[2J\n"'
expect 0 run --device host
! grep -q "$(printf '\033')" out || failed "control characters reach the terminal"

# Words that are none.
expect 2 rnu
grep -q "did you mean 'run'" err || failed "no hint: $(cat err)"
expect 2 run --device tpu
expect 2 run --gpus 8
DTPLAN_DATA=$scratch expect 3
grep -q 'catalogues is missing: DTPLAN_DATA' err || failed "no word of the catalogues: $(cat err)"
expect 0 --json
grep -q '"schema": "dtplan.doctor/1"' out || failed "no JSON"
exit $((failures > 0))
