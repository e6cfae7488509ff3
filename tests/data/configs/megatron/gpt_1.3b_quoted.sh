#!/bin/bash
GPUS_PER_NODE=8
DATA_PATH=/data/text_document
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes 2
"
GPT_ARGS="
    --num-layers 24 \
    --hidden-size 2048 \
    --num-attention-heads 16 \
    --seq-length 2048 \
    --max-position-embeddings 2048 \
    --micro-batch-size 4 \
    --global-batch-size 256 \
    --lr 2.0e-4 \
    --fp16 \
    --initial-loss-scale 65536
"
DATA_ARGS="
    --data-path $DATA_PATH \
    --vocab-file gpt2-vocab.json \
    --merge-file gpt2-merges.txt \
    --split 949,50,1
"
torchrun $DISTRIBUTED_ARGS pretrain_gpt.py $GPT_ARGS $DATA_ARGS --distributed-backend nccl --optimizer adam
