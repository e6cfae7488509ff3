/* A micro-batch under way through lowering: which of its buffers exist between its forward and the end of its
 * backward. */
#ifndef DTP_FLIGHT_H
#define DTP_FLIGHT_H

#include "net/layer_kind.h"
#include "program/program.h"

/* A copy on the host (lower_carried.h). */
struct dtp_host_rows {
    dtp_buffer_id copy;
    dtp_op_id by; /* that made it */
};
/* A micro-batch on its way: what exists of it from its forward to the end of its backward. A pipeline has several under
 * way at once, one after the other needs one of these alone. */
struct dtp_flight_module {
    dtp_buffer_id tensor[DTP_TENSOR_COUNT];
    uint64_t alive;      /* tensors that exist now, as bits */
    uint64_t gathered;   /* of these, which stand here whole and not as the rows of a tensor parallel rank */
    dtp_buffer_id terms; /* of the last matmul, where a checkpoint keeps them: terms_kept */
    dtp_buffer_id casts[DTP_LAYER_MATRICES];   /* dtp_lower_casts_apart: what each matrix cast for itself, kept */
    dtp_buffer_id weights[DTP_LAYER_MATRICES]; /* casts of weights, where each micro-batch has its own */
    dtp_buffer_id columns[DTP_LAYER_MATRICES]; /* copies of fp8 matrices by columns, kept for backward; or none */
    /* With adapters, of each matrix: x A^T; what A reads of dropout, and the mask; unpacked weights kept for backward;
     * what B made, where a compiler or DoRA's magnitudes read it there, and what they read beside it. */
    dtp_buffer_id low[DTP_LAYER_MATRICES], dropped[DTP_LAYER_MATRICES], unpacked[DTP_LAYER_MATRICES];
    dtp_buffer_id wide[DTP_LAYER_MATRICES], base[DTP_LAYER_MATRICES];
    dtp_buffer_id folded[DTP_LAYER_MATRICES],
        factors[DTP_LAYER_MATRICES]; /* lower_folded.c: W + B A; A, B in its dtype */
    struct dtp_host_rows carried;    /* lower_carried.h: the checkpoint on the host */
};
/* The gradient of a weight that is left for a pass of its own: of a matrix, or of the norm of a tensor. */
#define DTP_DEFERRED_NORM 0x8000u
struct dtp_deferred_gradient {
    dtp_buffer_id output_gradient;
    uint16_t layer, matrix;
};
/* Of a module that predicts further ahead: rows of the following tokens, what the norms of its two inputs keep, what
 * its projection reads; the model's end while the module's is at hand, or the other way round (lower_ahead.c); the
 * table's gradient by it, until that by the embedding is there. */
enum { DTP_END_TENSORS = 8 };
struct dtp_flight_ahead {
    dtp_buffer_id rows, rows_statistics, hidden_statistics, sides, table_gradient;
    dtp_buffer_id other_end[DTP_END_TENSORS];
    bool at_hand; /* the module's end stands in the flight */
};
struct dtp_flight {
    struct dtp_deferred_gradient *deferred; /* room for all matrices of the chunk, and two norms a layer */
    uint32_t deferred_count;
    struct dtp_flight_module *module;             /* of each layer */
    dtp_buffer_id embedded, embedding_statistics; /* tensor before an embedding norm, and what that keeps */
    dtp_buffer_id replayed;                       /* result of the block whose backward runs, made again; else none */
    dtp_buffer_id final_input, final_norm, final_statistics, final_wide; /* input of the final norm, and so on */
    dtp_buffer_id logits, loss_state, capped, logits_gradient;
    dtp_buffer_id gradient; /* of the residual stream, updated in place from the head down to x0 */
    dtp_buffer_id taken;    /* of it, what came from another stage and is not to be written; or none */
    dtp_buffer_id result;   /* what left the chunk and is held until its backward is through; or none */
    dtp_buffer_id received; /* of what came, the copy that is kept until its gradient is sent; or none */
    bool head_deferred;     /* the gradient of the head's weight is left for a pass of its own */
    struct dtp_flight_ahead ahead;
    struct dtp_host_rows carried; /* what the final norm read, on the host */
};

/* Rows of the residual stream, or their gradient, on their way to a pass. */
struct dtp_handed {
    dtp_buffer_id rows;
    dtp_op_id received; /* DTP_NO_OP: they were made on this rank; of what is held: what sent them */
};

/* What was sent, with its send, until the pass begins that shows that it was taken. */
struct dtp_lower_sent {
    dtp_buffer_id rows;
    dtp_op_id sent;
    uint32_t until;
};

#endif
