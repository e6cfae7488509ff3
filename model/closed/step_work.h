/* The work of a step as a runtime counts it that does not run blocks as block_work.h has them. */
#ifndef DTP_STEP_WORK_H
#define DTP_STEP_WORK_H

struct dtp_step_work {
    /* Of one micro-step. */
    double matmul_flops, attention_flops; /* without what is recomputed */
    double recompute_matmul_flops, recompute_attention_flops;
    double forward_bytes, backward_bytes, loss_bytes, recompute_bytes; /* memory-bound kernels */
    double kernels;
    /* Of the whole step: zeros, sums of gradients, norm, update. */
    double gradient_bytes, update_bytes, step_kernels;
    double product_flops, product_bytes; /* matmuls that gradients go through before they are summed, and their bytes */
    double update_matmul_flops;          /* of the optimizer */
    double host_update_bytes;            /* of host memory, where the optimizer is offloaded */
    /* Head and loss run in chunks of so many tokens, the last with what is left; columns of the logits. */
    double head_rows, head_columns;
};

#endif
