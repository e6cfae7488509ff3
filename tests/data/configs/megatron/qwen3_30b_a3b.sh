# Qwen3-30B-A3B on 32 GPUs, each expert whole on one tensor parallel rank
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \
    --num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 \
    --group-query-attention --num-query-groups 4 --kv-channels 128 --qk-layernorm \
    --normalization RMSNorm --norm-epsilon 1e-6 --swiglu --disable-bias-linear \
    --untie-embeddings-and-output-weights --vocab-size 151936 --make-vocab-size-divisible-by 1187 \
    --position-embedding-type rope --rotary-percent 1.0 --rotary-base 1000000 \
    --seq-length 4096 --max-position-embeddings 40960 --attention-dropout 0.0 --hidden-dropout 0.0 \
    --num-experts 128 --moe-ffn-hidden-size 768 --moe-router-topk 8 --moe-layer-freq 1 \
    --moe-router-score-function softmax --moe-router-load-balancing-type global_aux_loss \
    --moe-aux-loss-coeff 1e-3 --moe-router-dtype fp32 --moe-router-fusion \
    --moe-grouped-gemm --moe-permute-fusion --moe-token-dispatcher-type alltoall \
    --tensor-model-parallel-size 2 --expert-model-parallel-size 8 --expert-tensor-parallel-size 1 \
    --pipeline-model-parallel-size 1 --sequence-parallel --use-distributed-optimizer \
    --recompute-granularity selective --recompute-modules moe_act layernorm \
    --cross-entropy-loss-fusion --cross-entropy-fusion-impl te --attention-backend flash \
    --micro-batch-size 1 --global-batch-size 256 --bf16 --manual-gc --train-iters 100
