#!/usr/bin/env bash
# Configuration files of frameworks on the command line: check_from.sh DTPLAN SOURCE_TREE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"
export COLUMNS=200 # phrases are looked for in lines

enter "$@"
cp -- "$source"/tests/data/configs/deepspeed/zero3_auto.json "$source"/tests/data/configs/torchtitan/llama3_8b.toml \
    "$source"/tests/data/configs/torchtitan/refused.toml .

# What nobody says is asked for, with the flags that say it.
expect 2 plan --from zero3_auto.json
says 'add --model NAME|config.json --seq N --gpus N --gpu NAME'
says 'zero3_auto.json:3: bf16.enabled = auto: the program that reads the file fills it in; give --precision'
deepspeed=(--from zero3_auto.json --model llama-2-7b --gpu a100-80-sxm --gpus 8 --seq 2k --precision bf16-mixed
    --micro-batch 1 --accumulate 2)
expect 0 plan "${deepspeed[@]}"
says 'FROM  zero3_auto.json' out
says 'without effect on memory and time' out

# The same job by flags alone has the same prediction.
expect 0 plan --from llama3_8b.toml --gpu h100-sxm --gpus 8 --csv
says '0 replaced, 24 without effect on memory and time'
mv out by_file
expect 0 plan --model llama-3-8b --gpu h100-sxm --gpus 8 --seq 8k --compile --checkpointing selective --wrap-ends \
    --expandable-segments --clip-norm 1 --csv
cmp -s out by_file || failed "the plan of a file is another than that of the same words"

# What is typed comes first, and that is said.
expect 0 plan --from llama3_8b.toml --gpu h100-sxm --gpus 8 --micro-batch 2
says 'the line says' out
says 'micro batch 2' out

# A scenario beside it comes first as well.
printf '[plan]\nmicro_batch = 3\n' >job.ini
expect 0 plan --from llama3_8b.toml job.ini --gpu h100-sxm --gpus 8
says 'job.ini:2 says 3' out

# JSON has the list.
expect 0 plan --from llama3_8b.toml --gpu h100-sxm --gpus 8 --json
python3 - <<'END' || failed "no list in JSON"
import json
d = json.load(open("out"))
(f,) = d["from"]
assert f["file"] == "llama3_8b.toml" and f["format"] == "torchtitan"
fates = {s["setting"]: s["fate"] for s in f["settings"]}
assert fates["model.flavor"] == "used" and fates["metrics.log_freq"] == "no effect", fates
assert all(s["line"] > 0 for s in f["settings"])
END

# Wherever a scenario may stand.
for command in simulate whatif explain; do
    expect 0 "$command" --from llama3_8b.toml --gpu h100-sxm --gpus 8
    says 'FROM  llama3_8b.toml' out
done
expect 0 sweep --from llama3_8b.toml --gpu h100-sxm --gpus 8,16 -o rows.csv
[[ $(wc -l <rows.csv) == 3 ]] || failed "a sweep of two has $(wc -l <rows.csv) lines"
says 'FROM  llama3_8b.toml' out
expect 0 search --from llama3_8b.toml --gpu h100-sxm --max-gpus 8 --tokens 1B
expect 2 validate --from llama3_8b.toml
says 'not a flag of'

# What is not modelled is named, all of it at once; nothing is written over what is read.
expect 2 plan --from refused.toml --gpu h100-sxm --gpus 8
says 'refused.toml:8: training.deterministic = true: not modelled'
says 'refused.toml:16: activation_checkpoint.mode = memory_budget'
expect 2 report --from llama3_8b.toml --gpu h100-sxm --gpus 8 -o llama3_8b.toml
says 'would write over'
expect 2 plan --from missing.toml
says 'missing.toml: cannot open'
printf '[plan]\nstrategy = zero1\n' >own.ini
expect 2 plan --from own.ini

# ---- launch: the other way ---------------------------------------------------------------------------------------------

# The command that it prints gives the plan that was asked for, in each program's files.
launches() {
    expect 0 launch "$@" --gpu h100-sxm --gpus 16 --seq 4k -o "run $2"
    for file in "run $2"/*; do
        says "$file" out
    done
    bash -n "run $2/launch.sh" || failed "launch.sh of $2"
    [[ -x "run $2/launch.sh" ]] || failed "launch.sh of $2 cannot be started"
    sed -n '/^dtplan plan/,$p' out | tr -d '\\\n' >"command"
    expect 0 plan "${@:3}" --gpu h100-sxm --gpus 16 --seq 4k --csv
    mv out asked
    eval "\"$program\" $(sed 's/^dtplan//' command) --csv" >again 2>err || failed "read back: $(cat err) $(cat command)"
    sed -i 's/llama-3-8b\|qwen3-30b-a3b\|custom//g' asked again # what a shape is called
    cmp -s asked again || failed "the plan that was read back is another: $(cat command)"
}
launches --to torchtitan --model llama-3-8b --compile --checkpointing selective
launches --to accelerate --model llama-2-7b --reduce-dtype bf16 --checkpointing full --fsdp1
launches --to deepspeed --model llama-2-7b --runtime deepspeed --strategy zero2 --accumulate 4
launches --to megatron --model llama-3-8b --runtime megatron --strategy zero1 --tp 2 --pp 2 --accumulate 8
launches --to bridge --model qwen3-30b-a3b --runtime megatron --strategy zero1 --ep 8 --checkpointing none
launches --to nemo --model llama-3-8b --runtime megatron --strategy zero1 --tp 2 --precision fp8-delayed
launches --to nanotron --model llama-3-8b --runtime nanotron --strategy zero1 --tp 2
launches --to torchtune --model llama-3.1-8b --strategy full_shard --precision bf16-pure --lora 16 --lora-alpha 32 --base nf4 --checkpointing full
launches --to axolotl --model llama-2-7b --strategy ddp --precision bf16-mixed --lora 16 --lora-alpha 32 --lora-dtype fp32 --runtime peft --checkpointing full
launches --to peft --model llama-2-7b --strategy ddp --precision bf16-mixed --lora 16 --lora-alpha 32 --lora-dtype fp32 --runtime peft --checkpointing full

# Without Slurm the nodes are Open MPI's.
mkdir -p stubs
printf '#!/bin/sh\necho "$@"\n' >stubs/mpirun
chmod +x stubs/mpirun
PATH=$PWD/stubs:$PATH BY=mpirun HOSTFILE=nodes 'run megatron/launch.sh' >out 2>err || failed "launch.sh by mpirun: $(cat err)"
says '-np 2 --map-by ppr:1:node --hostfile nodes -x MASTER_ADDR' out
says '-x CUDA_DEVICE_MAX_CONNECTIONS' out
PATH=$PWD/stubs:$PATH BY=ssh 'run megatron/launch.sh' >out 2>err && failed "launch.sh by what there is not"
says 'BY=ssh is neither srun nor mpirun'

# A folder is no file, and none of dtplan's own failures.
for text in '[[[' '[1, 2]'; do # JSON by its name, for tables of TOML begin alike
    printf '%s\n' "$text" >array.json
    expect 2 plan --from array.json --gpu h100
    says 'dtplan: array.json:'
    ! grep -q TOML err || failed "a .json is called TOML: $(cat err)"
done
expect 2 plan --from . --gpu h100
says '.: is a folder; name the file in it'

# Nothing of others is written over, nor what is read; without a folder it is printed.
expect 2 launch --model llama-3-8b --gpu h100-sxm --gpus 16 --seq 4k -o 'run torchtitan'
says 'is there already; --force replaces it'
expect 0 launch --model llama-3-8b --gpu h100-sxm --gpus 16 --seq 4k -o 'run torchtitan' --force
expect 2 launch --from 'run torchtitan/torchtitan.toml' --gpu h100-sxm -o 'run torchtitan' --force
says 'would write over'
expect 0 launch --from 'run torchtitan/torchtitan.toml' --gpu h100-sxm
says '---- torchtitan.toml ----' out
expect 2 launch --model llama-2-7b --gpu h100-sxm --gpus 8 --loss chunked
says 'loss = chunked: what torchtitan reads cannot say it, there it is eager; give --loss eager'
expect 2 launch --model gpt-2 --gpu h100-sxm --gpus 8 --runtime dtplan --strategy ddp
says 'runtime dtplan is started by dtplan run'
expect 2 launch --to peft --model gpt-2 --gpu h100-sxm --gpus 1 --runtime peft --strategy ddp
says 'the plan has none; give --lora N'
expect 2 launch --model llama-2-7b --gpu h100-sxm --gpus 8 --to megatron
says 'starts runtime megatron'
[[ $failures == 0 ]] || exit 1
