#!/usr/bin/env bash
# The fifteen questions that people ask of experts, long sequences, pipelines and adapters, each with the command that
# answers it and figures that the answer must have: check_questions.sh DTPLAN SOURCE_TREE
set -uo pipefail
# shellcheck source=tests/cli/says.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/says.sh"

program=$1
export DTPLAN_DATA=$2/scenarios LC_ALL=C.UTF-8 COLUMNS=160
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
cd -- "$scratch" || exit 1

# answers QUESTION STATUS PATTERN ARGUMENTS: what it prints (its message, where it refuses) has a line like that.
answers() {
    local question=$1 wanted=$2 pattern=$3 status
    shift 3
    timeout 300 "$program" "$@" >out 2>err </dev/null
    status=$?
    [[ $status == "$wanted" ]] || failed "question $question: exit status $status: dtplan $*: $(head -c 400 err)"
    grep -qE -e "$pattern" out err || failed "question $question: no '$pattern': dtplan $*"
}
# also QUESTION PATTERN: the last answer has a line like that too.
also() {
    grep -qE -e "$2" out || failed "question $1: no '$2': $(head -c 400 out)"
}
mixtral=(--model mixtral-8x7b --runtime megatron --gpu h100 --seq 4k)
sixteen=(--gpus 16 --strategy zero1 --ep 8 --checkpointing full)
eight=(--model llama-3-8b --gpu h100 --seq 8k)

# 1. Which tp, pp, ep and cp fit and are fastest? 13. And without ep?
answers 1 0 '^ +plan +.*ep [0-9]+, zero1, megatron' search "${mixtral[@]}" --gpus 16 --tokens 10B --tp 1,2 --pp 1,2 --cp 1 --virtual-stages 1 \
    --precision bf16-mixed --strategy zero1 --offload none --checkpointing none,full --accumulate 8 --micro-batch 1
also 1 '^ +money +\$'
answers 13 0 '^ +plan +tp 1 pp [48], zero1, megatron' search "${mixtral[@]}" --gpus 32 --tokens 10B --ep 1 --tp 1 --pp 4,8 --cp 1 --virtual-stages 1 \
    --precision bf16-mixed --strategy zero1 --offload none --checkpointing none,full --accumulate 8 --micro-batch 1
# 2. Does LoRA or QLoRA fit, on each GPU, under DDP and FSDP? 3. Why is that not 4 bits a parameter?
answers 2 0 'FITS' plan --model llama-3.1-8b --lora 16 --base nf4 --gpu rtx-4090
also 2 '^ +activations +[0-9.]+ GiB'
answers 2 0 'full_shard' sweep --model llama-3.1-8b --lora 16 --strategy ddp,full_shard --gpu rtx-4090 --gpus 4
also 2 'ddp'
answers 3 0 'parameters: frozen +[0-9.]+ GiB' explain --model llama-3.1-8b --lora 16 --base nf4 --gpu rtx-4090
also 3 'activations: norm 1 +[0-9.]+ GiB'
# 4. It fits at first and dies in the optimizer's step: peaks by phase.
answers 4 0 'allocated by phase, GiB: ' plan "${eight[@]}" --gpus 8
also 4 'optimizer step [0-9.]+'
# 5. Where does the time of experts go? 6. What does imbalance cost? 7. What do dispatchers and overlap buy?
answers 5 0 'all_to_all|all-to-all' explain "${mixtral[@]}" "${sixteen[@]}"
answers 6 0 'expert_imbalance=3' sweep "${mixtral[@]}" "${sixteen[@]}" --expert-imbalance 1,1.5,3
answers 7 0 'flex_dispatcher=true,' sweep "${mixtral[@]}" "${sixteen[@]}" --flex-dispatcher=true,false
answers 7 0 'exposed communication [0-9.]+ -> [0-9.]+ ms' whatif "${mixtral[@]}" "${sixteen[@]}"
# 8. Which schedule? 9. Why so many micro-batches? 10. How to cut the layers?
answers 8 0 'zb-h1' sweep "${eight[@]}" --runtime megatron --strategy zero1 --gpus 8 --pp 4 --accumulate 16 --schedule 1f1b,zb-h1
answers 9 0 '^rank 3 +F0B0' schedule --stages 4 --micro-batches 8 --schedule 1f1b
also 9 'bubble [0-9.]+'
answers 10 0 'counted' sweep "${eight[@]}" --runtime megatron --strategy zero1 --gpus 8 --pp 4 --accumulate 16 --stages even,counted
# 11. The longest sequence, by how keys and values are exchanged.
answers 11 0 'longest sequence that fits: [0-9]{4,}' plan --model llama-3-8b --gpu h100 --gpus 8 --runtime megatron --strategy zero1 \
    --cp 8 --cp-comm a2a --checkpointing full --max-seq
answers 11 0 'longest sequence that fits' plan --model mixtral-8x7b --runtime megatron --gpu h100 "${sixteen[@]}" --max-seq
answers 11 0 'largest micro batch that fits: [0-9]+' plan --model llama-3.1-8b --lora 16 --base nf4 --gpu rtx-4090 --seq 512 \
    --max-micro-batch
answers 11 0 'fewest GPUs that fit: [0-9]+' plan "${mixtral[@]}" --strategy zero1 --ep 8 --checkpointing full --min-gpus
answers 11 0 'fewest GPUs that fit: [0-9]+' plan --model llama-3-70b --runtime megatron --gpu h100 --strategy zero1 --tp 8 --seq 4k \
    --checkpointing full --min-gpus
# 12. Latent attention and experts' groups; what is not modelled says so.
answers 12 0 '15,706,484,224' plan --model deepseek-v2-lite --runtime megatron --strategy zero1 --gpu h100 --gpus 8 --ep 8 --seq 4k
answers 12 0 'tensor parallel 2' plan --model deepseek-v2-lite --runtime megatron --strategy zero1 --gpu h100 --gpus 8 --ep 8 --tp 2 --seq 4k
answers 12 2 'cp: with latent attention is not modelled' plan --model deepseek-v2-lite --runtime megatron --strategy zero1 --gpu h100 \
    --gpus 8 --ep 4 --cp 2 --seq 4k
# 14. DeepSpeed's way or Megatron's?
answers 14 0 'megatron' sweep "${eight[@]}" --gpus 8 --strategy zero1 --runtime deepspeed,megatron --checkpointing full
answers 14 2 'expert' plan --model mixtral-8x7b --runtime deepspeed --strategy zero3 --gpu h100 --gpus 16
answers 14 0 'experts divided among 8' plan --model mixtral-8x7b --runtime deepspeed --strategy zero2 --ep 8 --gpu h200 --gpus 16
# 15. Is fp8 worth it?
answers 15 0 'precision=fp8-tensorwise' sweep "${eight[@]}" --gpus 8 --compile --precision bf16-mixed,fp8-tensorwise,fp8-rowwise
# What if: the same questions as single changes of one plan, each predicted.
answers 'of adapters' 0 '^ +--lora 8 +' whatif --model llama-3.1-8b --lora 16 --base nf4 --gpu rtx-4090 --runtime peft
also 'of adapters' '^ +--lora 64 +'
also 'of adapters' '^ +--base nf4-double +'
also 'of adapters' '^ +--seq 1024 --micro-batch 2 +'
also 'of adapters' '^ +--optimizer adam8bit +'
answers 'of experts' 0 '^ +--ep 4 +' whatif "${mixtral[@]}" "${sixteen[@]}"
also 'of experts' '^ +--expert-imbalance 1.5 +'
also 'of experts' '^ +--recompute-modules moe_act --checkpointing none'
also 'of experts' '^ +--flex-dispatcher +'
also 'of experts' '^ +--cuda-graph-modules attn +'
also 'of experts' '^ +--runtime torch --strategy full_shard'
answers 'of stages' 0 '^ +--schedule zb-h1 +' whatif "${eight[@]}" --runtime megatron --strategy zero1 --gpus 8 --pp 4 --accumulate 16
also 'of stages' '^ +--stages counted +'
also 'of stages' '^ +--runtime deepspeed --strategy zero1'
answers 'of formats' 0 '^ +--precision fp8-tensorwise +' whatif "${eight[@]}" --gpus 8 --compile
# A word behind a switch, Muon of adapters: the message is the last one, not what leads to another.
answers 'of a switch' 2 'router-norm softmax: is a switch' plan "${mixtral[@]}" --router-norm softmax
answers 'of Muon' 2 'muon of adapters is not modelled; use adamw' plan "${eight[@]}" --gpus 8 --optimizer muon --lora 8
[[ $failures == 0 ]] || exit 1
