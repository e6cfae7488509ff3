# the 8B of Megatron-LM's example of fp8
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --use-mcore-models \
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --kv-channels 128 \
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 \
    --position-embedding-type rope --rotary-base 1000000 --rotary-percent 1.0 --vocab-size 128256 \
    --attention-dropout 0.0 --hidden-dropout 0.0 --swiglu --normalization RMSNorm \
    --untie-embeddings-and-output-weights --disable-bias-linear --init-method-std 0.0134 \
    --attention-backend fused --apply-layernorm-1p --micro-batch-size 1 --global-batch-size 128 --bf16 \
    --grad-reduce-in-bf16 --cross-entropy-loss-fusion --calculate-per-token-loss --manual-gc \
    --fp8-format hybrid --fp8-amax-history-len 1024 --fp8-amax-compute-algo max \
    --tensor-model-parallel-size 1 --context-parallel-size 2 --sequence-parallel \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
