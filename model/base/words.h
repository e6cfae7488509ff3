/* The words that all folders share: owners of memory, phases of a step, collectives, kinds of operations, streams,
 * roles of operands. Each table is said once here, with the spelling that texts, tables and files have. */
#ifndef DTP_WORDS_H
#define DTP_WORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(enum suffix, key, words for people)
 * GRADS are gradients at rest (buckets, shards, accumulated ones), REDUCE whole gradients on their way to a reduction
 * and its input; WEIGHTS are gathered or autocast copies that matmuls read, GATHER flat all-gather buffers and cast
 * shards; WORKSPACE has library workspaces and the gradients of activations. */
#define DTP_OWNER_TABLE(X)                                                                                             \
    X(PARAMS, "params", "parameters")                                                                                  \
    X(GRADS, "grads", "gradients")                                                                                     \
    X(OPTIMIZER, "optimizer", "optimizer state")                                                                       \
    X(ACTIVATIONS, "activations", "activations")                                                                       \
    X(LOGITS, "logits", "logits and loss")                                                                             \
    X(WEIGHTS, "compute_weights", "weights in compute dtype")                                                          \
    X(GATHER, "gather", "all-gather buffers")                                                                          \
    X(REDUCE, "reduce", "gradient reduction buffers")                                                                  \
    X(WORKSPACE, "workspace", "workspaces and temporaries")
enum dtp_owner {
#define DTP_OWNER_ENUM(suffix, key, words) DTP_OWNER_##suffix,
    DTP_OWNER_TABLE(DTP_OWNER_ENUM)
#undef DTP_OWNER_ENUM
        DTP_OWNER_COUNT
};

/* Instants at which the peak can lie (internals: forward end, loss, early backward, late backward, step). */
#define DTP_PHASE_TABLE(X)                                                                                             \
    X(FORWARD_END, "forward_end", "end of forward")                                                                    \
    X(LOSS, "loss", "loss")                                                                                            \
    X(EARLY_BACKWARD, "early_backward", "first layers of backward")                                                    \
    X(LATE_BACKWARD, "late_backward", "end of backward")                                                               \
    X(STEP, "step", "optimizer step")
enum dtp_phase {
#define DTP_PHASE_ENUM(suffix, key, words) DTP_PHASE_##suffix,
    DTP_PHASE_TABLE(DTP_PHASE_ENUM)
#undef DTP_PHASE_ENUM
        DTP_PHASE_COUNT
};

const char *dtp_owner_key(enum dtp_owner owner);
const char *dtp_owner_words(enum dtp_owner owner);
const char *dtp_phase_key(enum dtp_phase phase);
const char *dtp_phase_words(enum dtp_phase phase);

#define DTP_COLLECTIVE_TABLE(X)                                                                                        \
    X(ALL_GATHER, "all_gather")                                                                                        \
    X(REDUCE_SCATTER, "reduce_scatter")                                                                                \
    X(ALL_REDUCE, "all_reduce")                                                                                        \
    X(SEND_RECV, "send_recv")                                                                                          \
    X(ALL_TO_ALL, "all_to_all")
enum dtp_collective {
#define DTP_COLLECTIVE_ENUM(suffix, text) DTP_##suffix,
    DTP_COLLECTIVE_TABLE(DTP_COLLECTIVE_ENUM)
#undef DTP_COLLECTIVE_ENUM
        DTP_COLLECTIVE_COUNT
};

const char *dtp_collective_text(enum dtp_collective collective);

enum dtp_op_class {
    DTP_CLASS_NONE,
    DTP_CLASS_MATMUL,
    DTP_CLASS_ATTENTION,
    DTP_CLASS_MEMORY,
    DTP_CLASS_COLLECTIVE,
    DTP_CLASS_UPLOAD,
    DTP_CLASS_DOWNLOAD,
    DTP_CLASS_HOST,
    DTP_CLASS_STORAGE
};
enum dtp_op_kind {
#define X(suffix, text, class, words) DTP_OP_##suffix,
#include "base/op_table.def"
#undef X
    DTP_OP_KIND_COUNT
};
/* FLOPs of fused attention's backward over those of its forward: five products for two, as it makes the scores again.
 */
#define DTP_ATTENTION_BACKWARD_FLOPS 2.5
const char *dtp_op_kind_text(enum dtp_op_kind kind);
bool dtp_op_kind_parse(const char *text, enum dtp_op_kind *out);
/* On the device, of the optimizer's step. */
static inline bool dtp_op_kind_updates(enum dtp_op_kind kind)
{
    return kind == DTP_OP_OPTIMIZER || kind == DTP_OP_NEWTON_SCHULZ || kind == DTP_OP_PROJECTION;
}
static inline enum dtp_op_class dtp_op_kind_class(enum dtp_op_kind kind)
{
    static const uint8_t classes[] = {
#define X(suffix, text, class, words) DTP_CLASS_##class,
#include "base/op_table.def"
#undef X
    };
    return (enum dtp_op_class)classes[kind];
}
/* A send or a receive: one end of a transfer between two roles of a program set. */
static inline bool dtp_op_kind_is_transfer(enum dtp_op_kind kind)
{
    return kind == DTP_OP_SEND || kind == DTP_OP_RECV;
}
/* The collective of a DTP_CLASS_COLLECTIVE kind; of a transfer and a shift SEND_RECV. */
enum dtp_collective dtp_op_kind_collective(enum dtp_op_kind kind);

/* X(suffix, spelling). Each is a FIFO. GATHER and REDUCE issue into the same communicator unless the groups differ.
 * Transfers between stages of a pipeline have a stream for each way, activations forward, gradients back, so that none
 * waits for one that goes the other way; sends one for each neighbour, the others where micro-batches go from the last
 * rank to the first. */
#define DTP_STREAM_TABLE(X)                                                                                            \
    X(COMPUTE, "compute")                                                                                              \
    X(COPY, "copy")                                                                                                    \
    X(GATHER, "gather")                                                                                                \
    X(REDUCE, "reduce")                                                                                                \
    X(REPLICATE, "replicate")                                                                                          \
    X(UPLOAD, "upload")                                                                                                \
    X(DOWNLOAD, "download")                                                                                            \
    X(HOST, "host")                                                                                                    \
    X(STORAGE, "storage")                                                                                              \
    X(WEIGHT_GRADIENT, "gradient")                                                                                     \
    X(TENSOR, "tensor")                                                                                                \
    X(CONTEXT, "context")                                                                                              \
    X(SEND, "send")                                                                                                    \
    X(SEND_OTHER, "send_other")                                                                                        \
    X(RECEIVE, "receive")                                                                                              \
    X(SEND_BACK, "send_back")                                                                                          \
    X(SEND_BACK_OTHER, "send_back_other")                                                                              \
    X(RECEIVE_BACK, "receive_back")                                                                                    \
    X(EXPERT, "expert")
enum dtp_stream {
#define DTP_STREAM_ENUM(suffix, text) DTP_STREAM_##suffix,
    DTP_STREAM_TABLE(DTP_STREAM_ENUM)
#undef DTP_STREAM_ENUM
        DTP_STREAM_COUNT
};
/* What carries transfers between stages and nothing else: it never keeps those who issue from going on. */
static inline bool dtp_stream_transfers(enum dtp_stream stream)
{
    return stream >= DTP_STREAM_SEND && stream <= DTP_STREAM_RECEIVE_BACK;
}
const char *dtp_stream_text(enum dtp_stream stream);
bool dtp_stream_parse(const char *text, enum dtp_stream *out);

/* X(suffix, spelling): what an operand is to its operation, for whoever runs it. Programs that are only simulated leave
 * NONE. lower_executor.h lists the roles of each kind. */
#define DTP_ROLE_TABLE(X)                                                                                              \
    X(NONE, "")                                                                                                        \
    X(INPUT, "input")                                                                                                  \
    X(RESULT, "result")                                                                                                \
    X(WEIGHT, "weight")                                                                                                \
    X(BIAS, "bias")                                                                                                    \
    X(ADDEND, "addend")                                                                                                \
    X(AUX, "aux")                                                                                                      \
    X(GRADIENT, "gradient")                                                                                            \
    X(INPUT_GRADIENT, "input_gradient")                                                                                \
    X(RESIDUAL_GRADIENT, "residual_gradient")                                                                          \
    X(WEIGHT_GRADIENT, "weight_gradient")                                                                              \
    X(BIAS_GRADIENT, "bias_gradient")                                                                                  \
    X(POSITION, "position")                                                                                            \
    X(POSITION_GRADIENT, "position_gradient")                                                                          \
    X(BATCH, "batch")                                                                                                  \
    X(TABLES, "tables")                                                                                                \
    X(STATISTICS, "statistics")                                                                                        \
    X(SAVED, "saved")                                                                                                  \
    X(PARTIALS, "partials")                                                                                            \
    X(SCALARS, "scalars")                                                                                              \
    X(MASTER, "master")                                                                                                \
    X(MOMENT1, "moment1")                                                                                              \
    X(MOMENT2, "moment2")                                                                                              \
    X(WORKSPACE, "workspace")                                                                                          \
    X(AMAX, "amax")                                                                                                    \
    X(SCALE, "scale")                                                                                                  \
    X(OTHER_SCALE, "other_scale")                                                                                      \
    X(TRANSPOSED, "transposed")                                                                                        \
    X(KEYS, "keys")                                                                                                    \
    X(ROUTES, "routes")                                                                                                \
    X(STATISTICS_GRADIENT, "statistics_gradient")
enum dtp_role {
#define DTP_ROLE_ENUM(suffix, text) DTP_ROLE_##suffix,
    DTP_ROLE_TABLE(DTP_ROLE_ENUM)
#undef DTP_ROLE_ENUM
        DTP_ROLE_COUNT
};
/* Which of its forms a kernel computes: X(suffix, text). Activations of the MLP, of experts also of what was weighed
 * before; norms by mean and deviation or by the
 * root mean square, whose weights multiply as they are or with 1 added; the two formats of fp8; their scales made
 * of what was largest in earlier steps; E4M3 with scales of rows, of rows but all alike, of runs of 128 and of squares
 * of 128; a matmul whose operands of a row a token are some of the columns of wider ones; of a matmul, terms of a sum
 * over tensor parallel ranks, of which the first alone adds the bias; Muon's products (a matrix by itself, by rows or
 * columns; a polynomial of that; that times the matrix, from either side) and its passes over the matrix; a product
 * that is subtracted; rows that go back from experts to the ranks that sent them. */
#define DTP_FORM_TABLE(X)                                                                                              \
    X(NONE, "")                                                                                                        \
    X(SWIGLU, "swiglu")                                                                                                \
    X(GEGLU, "geglu")                                                                                                  \
    X(SWIGLU_CLAMPED, "swiglu_clamped")                                                                                \
    X(SWIGLU_WEIGHED, "swiglu_weighed")                                                                                \
    X(GELU, "gelu")                                                                                                    \
    X(RELU, "relu")                                                                                                    \
    X(LAYER_NORM, "layer_norm")                                                                                        \
    X(LAYER_NORM_PLUS_ONE, "layer_norm_plus_one")                                                                      \
    X(RMS_NORM, "rms_norm")                                                                                            \
    X(RMS_NORM_PLUS_ONE, "rms_norm_plus_one")                                                                          \
    X(E4M3, "e4m3")                                                                                                    \
    X(E5M2, "e5m2")                                                                                                    \
    X(FROM_HISTORY, "from_history")                                                                                    \
    X(E4M3_ROWS, "e4m3_rows")                                                                                          \
    X(E4M3_ALIKE, "e4m3_alike")                                                                                        \
    X(E4M3_RUNS, "e4m3_runs")                                                                                          \
    X(E4M3_SQUARES, "e4m3_squares")                                                                                    \
    X(COLUMNS, "columns")                                                                                              \
    X(TERMS, "terms")                                                                                                  \
    X(GRAM, "gram")                                                                                                    \
    X(GRAM_OF_COLUMNS, "gram_of_columns")                                                                              \
    X(POLYNOMIAL, "polynomial")                                                                                        \
    X(FROM_LEFT, "from_left")                                                                                          \
    X(FROM_RIGHT, "from_right")                                                                                        \
    X(MUON_MOMENTUM, "muon_momentum")                                                                                  \
    X(MUON_UNIT, "muon_unit")                                                                                          \
    X(MUON_STEP, "muon_step")                                                                                          \
    X(SUBTRACTED, "subtracted")                                                                                        \
    X(RETURNED, "returned")                                                                                            \
    X(SOFTMAX, "softmax")                                                                                              \
    X(SOFTMAX_NORMALISED, "softmax_normalised")                                                                        \
    X(SIGMOID, "sigmoid")                                                                                              \
    X(SIGMOID_NORMALISED, "sigmoid_normalised")
enum dtp_form {
#define DTP_FORM_ENUM(suffix, text) DTP_FORM_##suffix,
    DTP_FORM_TABLE(DTP_FORM_ENUM)
#undef DTP_FORM_ENUM
        DTP_FORM_COUNT
};
const char *dtp_form_text(enum dtp_form form);
/* Of the table but NONE. */
bool dtp_form_parse(const char *text, enum dtp_form *out);

/* How the host issues the kernels of an operation: one after the other, from the Python of a layer; a loop of a library
 * that launches the same kernel for one tensor after the other, of which the first alone pays for the layer's Python;
 * or not at all, for a captured graph replays them. X(suffix, text) */
#define DTP_ISSUE_TABLE(X) X(APART, "") X(LOOPED, "looped") X(REPLAYED, "replayed")
enum dtp_issue {
#define DTP_ISSUE_ENUM(suffix, text) DTP_ISSUE_##suffix,
    DTP_ISSUE_TABLE(DTP_ISSUE_ENUM)
#undef DTP_ISSUE_ENUM
        DTP_ISSUE_COUNT
};
const char *dtp_issue_text(enum dtp_issue issue);
/* Of the table but APART. */
bool dtp_issue_parse(const char *text, enum dtp_issue *out);

const char *dtp_role_text(enum dtp_role role);
bool dtp_role_parse(const char *text, enum dtp_role *out);

/* X(suffix, spelling): what a buffer is to whoever runs the program step after step: state of one module that stays,
 * the first nine, or what passes between the host and a step. Programs that are only simulated leave NONE. */
#define DTP_CONTENT_TABLE(X)                                                                                           \
    X(NONE, "")                                                                                                        \
    X(WEIGHTS, "weights")                                                                                              \
    X(MASTER, "master")                                                                                                \
    X(MOMENT1, "moment1")                                                                                              \
    X(MOMENT2, "moment2")                                                                                              \
    X(SCALES1, "scales1")                                                                                              \
    X(SCALES2, "scales2")                                                                                              \
    X(LOST, "lost")                                                                                                    \
    X(FACTOR_Q, "factor_q")                                                                                            \
    X(AMAX, "amax")                                                                                                    \
    X(BATCH, "batch")                                                                                                  \
    X(HOST_BATCH, "host_batch")                                                                                        \
    X(SCALARS, "scalars")                                                                                              \
    X(HOST_SCALARS, "host_scalars")                                                                                    \
    X(HOST_RESULTS, "host_results")                                                                                    \
    X(TABLES, "tables")                                                                                                \
    X(PARTIALS, "partials")                                                                                            \
    X(ROUTES, "routes")
enum dtp_content {
#define DTP_CONTENT_ENUM(suffix, text) DTP_CONTENT_##suffix,
    DTP_CONTENT_TABLE(DTP_CONTENT_ENUM)
#undef DTP_CONTENT_ENUM
        DTP_CONTENT_COUNT
};
static inline bool dtp_content_is_state(enum dtp_content content)
{
    return content >= DTP_CONTENT_WEIGHTS && content <= DTP_CONTENT_AMAX;
}
const char *dtp_content_text(enum dtp_content content);
bool dtp_content_parse(const char *text, enum dtp_content *out);

#endif
