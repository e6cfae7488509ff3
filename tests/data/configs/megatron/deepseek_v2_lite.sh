# DeepSeek-V2-Lite on one node: latent attention, the first layer without experts
MLA_ARGS=(
    --multi-latent-attention
    --kv-lora-rank 512
    --qk-head-dim 128
    --qk-pos-emb-head-dim 64
    --v-head-dim 128
    --qk-layernorm
    --rotary-scaling-factor 40
    --mscale 0.707
    --mscale-all-dim 0.707
)
MOE_ARGS="
    --num-experts 64
    --moe-layer-freq [0]+[1]*26
    --moe-ffn-hidden-size 1408
    --moe-router-topk 6
    --moe-router-pre-softmax
    --moe-shared-expert-intermediate-size 2816
    --moe-router-load-balancing-type seq_aux_loss
    --moe-router-topk-scaling-factor 1.0
    --moe-router-dtype fp32
    --moe-aux-loss-coeff 1e-3
    --moe-grouped-gemm
    --moe-permute-fusion
    --moe-token-dispatcher-type alltoall
    --expert-model-parallel-size 8
"
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 27 --hidden-size 2048 --ffn-hidden-size 10944 \
    --num-attention-heads 16 --kv-channels 16 --normalization RMSNorm --norm-epsilon 1e-6 --swiglu \
    --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 10000 \
    --seq-length 4096 --max-position-embeddings 163840 --vocab-size 102400 --attention-dropout 0 --hidden-dropout 0 \
    --micro-batch-size 1 --global-batch-size 64 --bf16 --use-distributed-optimizer ${MLA_ARGS[@]} $MOE_ARGS
