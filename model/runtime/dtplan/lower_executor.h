/* clang-format off */
/* The step program that our own executor runs (runtime dtplan): a lowering of its own, and the contract with exec/.
 *
 * A program of this lowering says everything that running it takes: each operand has a role and an offset, every
 * workspace is a buffer, nothing is allocated or awaited by the host inside a step, and all device buffers come from
 * one pool, so that dtp_executor_arena places them in one arena whose size is the memory the step needs.
 *
 * Roles by kind. T rows are demand.tokens (of a matmul: m, n, k as in dtp_draft_matmul); shapes are those of the
 * transformer and the plan, which operations say (lower_executor_shapes.c); element types are the buffers'. UPDATE
 * where "+=" may stand.
 *
 *   UPLOAD, DOWNLOAD         INPUT -> RESULT, demand.sent_bytes of them; one of the two is in DTP_SPACE_HOST
 *   EMBEDDING                BATCH, WEIGHT, POSITION (learned positions) -> RESULT [T, h]
 *   NORM                     INPUT [T, h], WEIGHT, BIAS, ADDEND [T, h] -> RESULT [T, h], STATISTICS (fp32: inverse
 *                            deviations [T], then for LayerNorm means [T])
 *   NORM(_BACKWARD), demand.k over the first demand.n of so many columns of INPUT, and of RESIDUAL_GRADIENT, whose
 *                            others stay where it is UPDATE
 *   MATMUL forward           INPUT [m, k], WEIGHT [n, k], BIAS [n], ADDEND [m, n] -> RESULT [m, n]; with AUX: GELU
 *                            epilogue, AUX receives the product with bias
 *   MATMUL input gradient    GRADIENT [m, k], WEIGHT [k, n], ADDEND [m, n] -> INPUT_GRADIENT [m, n]; with AUX: times
 *                            gelu'(AUX); adds where it is UPDATE
 *   MATMUL weight gradient   GRADIENT [k, m], INPUT [k, n] -> WEIGHT_GRADIENT [m, n], BIAS_GRADIENT [m]; adds where
 *                            these are UPDATE
 *   MATMUL, all three        WORKSPACE; which of the three it is is told by the role of its result. In fp8 both
 *                            operands lie by the dimension that is summed over, the input gradient's WEIGHT as [n, k],
 *                            the weight gradient's GRADIENT as [m, k] and INPUT as [n, k]; SCALE of the first,
 *                            OTHER_SCALE of the second (fp32); no BIAS, no AUX. GRADIENT is E5M2, all else E4M3
 *                            forward, RESULT may be UPDATE too. Of the forms "e4m3_rows" and "e4m3_runs" all is E4M3
 *                            and scales lie behind what they are of (fp8_layout.h), rows' or runs', of WEIGHT beside
 *                            runs those of squares. With demand.scale the product is multiplied by that;
 *                            of the form "columns" operands of a row a token are columns, from their offset on, of
 *                            buffers of as many rows: all but WEIGHT and WEIGHT_GRADIENT; of the form "subtracted" the
 *                            product is taken from what is there
 *   QUANTIZE                 INPUT [T, n], AMAX (fp32) -> RESULT [T, n] and TRANSPOSED [n, T], one of which may be
 *                            absent, in fp8 of demand.form, SCALE; where that is READ it was made before, and AMAX,
 *                            if it is there, is raised; of the form "from_history" SCALE of demand.n tensors is made of
 *                            AMAX [n, DTP_EXECUTOR_AMAX_HISTORY], which goes on by one, the first demand.k of them
 *                            E4M3, the others E5M2; of forms whose scales lie behind each result there
 *                            are neither AMAX nor SCALE. With neither result: AMAX UPDATE is raised to that of INPUT
 *   AMAX                     of NORM, NORM_BACKWARD, ACTIVATION, ACTIVATION_BACKWARD: UPDATE, raised to that of what
 *                            they write
 *   ROTARY(_BACKWARD)        RESULT [T, d_q + 2 d_kv] UPDATE, in place; TABLES (fp32: cosines [s, head_dim / 2], then
 *                            sines)
 *   ROTARY with KEYS         of latent attention: INPUT (queries [T, d_q]), SAVED (kv latents [T, demand.k], whose last
 *                            demand.n columns are the keys' part of all heads that rope turns), KEYS (of each head the
 *                            rest of its key and its value), TABLES (of demand.n) -> RESULT (packed, values value_dim
 *                            wide). Backward GRADIENT (packed) -> INPUT_GRADIENT, SAVED (those columns alone), KEYS
 *   QK_NORM                  RESULT [T, d_q + 2 d_kv] UPDATE, in place; WEIGHT [2, head_dim] or none -> SAVED (q and k
 *                            before: [T, d_q + d_kv]), STATISTICS (fp32 [T, heads + kv_heads]); over all heads at
 *                            once, where the model has it so: WEIGHT [d_q + d_kv], STATISTICS [T, 2]
 *   QK_NORM_BACKWARD         RESULT (packed gradient) UPDATE, SAVED, STATISTICS, WEIGHT -> WEIGHT_GRADIENT, WORKSPACE
 *                            (DTP_EXECUTOR_PARTIAL_ROWS floats for each element of WEIGHT)
 *   ATTENTION                INPUT (packed qkv) -> RESULT [T, d_q], STATISTICS (log-sum-exp fp32 [B, heads, s]),
 *                            WORKSPACE
 *   ATTENTION_BACKWARD       INPUT, SAVED (RESULT of forward), STATISTICS, GRADIENT [T, d_q] -> INPUT_GRADIENT
 *                            (packed), WORKSPACE
 *   both, with KEYS          [T, 2 d_kv], what came around a ring: step demand.n of an attention that context parallel
 *                            ranks share, of which the first has none. Which queries and keys it has exec/bind derives
 *                            from the rank. Backward has the merged SAVED and STATISTICS and makes terms apart:
 *                            INPUT_GRADIENT [T, d_q], RESULT [T, 2 d_kv]
 *   COPY_IN, COPY_OUT        INPUT (packed qkv) -> RESULT [T, 2 d_kv]; INPUT [T, 2 d_kv] -> RESULT (packed): +=
 *                            Of tokens exchanged for heads: all rows of INPUT, what demand.n (enum dtp_executor_part)
 *                            says, laid out in RESULT as [chunks of heads, sequences, ranks, tokens, heads], demand.k
 *                            chunks, or the reverse; with TABLES queries and keys are turned, or turned back
 *   MERGE                    INPUT [steps, T, d_q], SAVED (log-sum-exps of the steps) -> RESULT [T, d_q], STATISTICS.
 *                            With INPUT_GRADIENT: GRADIENT [T, d_q], KEYS [T, 2 d_kv], terms of step demand.n ->
 *                            INPUT_GRADIENT (packed): its queries +=, RESULT [T, 2 d_kv], UPDATE adds
 *   ACTIVATION               INPUT [T, up] -> RESULT [T, f]; up is f, or 2 f with the gate first; with SAVED [T, up]:
 *                            INPUT in 8 bits (E4M3, no scale), which INPUT may itself be where RESULT is made again
 *   ACTIVATION_BACKWARD      GRADIENT [T, f], INPUT [T, up] UPDATE: its gradient takes its place, or, of an INPUT in 8
 *                            bits, is INPUT_GRADIENT; RESULT [T, f], over GRADIENT, where forward's is made again
 *   SINKS                    RESULT [T, d_core], STATISTICS (fp32 log-sum-exps) UPDATE, in place; WEIGHT [heads]
 *   SINKS_BACKWARD           SAVED (result), GRADIENT, STATISTICS, WEIGHT -> WEIGHT_GRADIENT; WORKSPACE: partial sums
 *   EXPERT_BIAS              RESULT [T k, n] UPDATE, in place; BIAS [groups, n], ROUTES; STATISTICS: weights [T, k]
 *   EXPERT_BIAS_BACKWARD     GRADIENT [T k, n], ROUTES -> BIAS_GRADIENT; with STATISTICS and BIAS ->
 *                            STATISTICS_GRADIENT [T, k], to which the activation's backward adds
 *   GROUPED_MATMUL           as MATMUL, of rows by experts, demand.tokens of them, of which m, or of a weight's
 *                            gradient k, are an expert's where all have as many, and demand.groups matrices; ROUTES
 *                            (routes_layout.h) say which rows are whose. No BIAS, no AUX, no ADDEND, no WORKSPACE
 *   ROUTER                   INPUT (scores [T, n]) -> STATISTICS (fp32 weights [T, k] of each token's k experts),
 *                            ROUTES; WORKSPACE (DTP_EXECUTOR_ROUTER_CHUNKS n whole numbers of 4 bytes). Of the form
 *                            affinities have, times demand.scale. Where demand.m is not 0, experts stand in
 *                            demand.groups groups, of which a token's experts are of its m best
 *   ROUTER_BACKWARD          INPUT, GRADIENT (of the weights), ROUTES -> INPUT_GRADIENT [T, n]
 *   PERMUTE                  INPUT [T, h], ROUTES -> RESULT [T k, h], rows by experts; with STATISTICS (weights [T, k])
 *                            -> AUX (fp32 [T k], those of each row), and backward STATISTICS (gradients of these) ->
 *                            STATISTICS_GRADIENT [T, k]
 *   PERMUTE_BACKWARD         GRADIENT [T k, h], ROUTES -> INPUT_GRADIENT [T, h] UPDATE
 *   UNPERMUTE                INPUT [T k, h], ROUTES, ADDEND, SAVED (what shared experts return [T, h]), AUX (its score
 *                            [T]) -> RESULT [T, h]
 *   UNPERMUTE_BACKWARD       GRADIENT [T, h], ROUTES -> INPUT_GRADIENT [T k, h]; with AUX: GRADIENT, SAVED, AUX ->
 *                            RESULT (gradient of SAVED), INPUT_GRADIENT (of AUX)
 *   ACTIVATION, with ROUTES  of T k rows by experts, each times its weight: STATISTICS. Backward also makes
 *                            STATISTICS_GRADIENT (fp32 [T, k])
 *   NORM_BACKWARD            GRADIENT, INPUT, STATISTICS, WEIGHT -> RESIDUAL_GRADIENT (UPDATE adds, WRITE overwrites,
 *                            by the sum with ADDEND where there is one), WEIGHT_GRADIENT, BIAS_GRADIENT, WORKSPACE (2
 *                            DTP_EXECUTOR_PARTIAL_ROWS h floats)
 *   LOSS_BACKWARD            RESULT (logits [T, dtp_parameter_head_rows] UPDATE, become their gradient), BATCH
 *                            (targets of these rows) -> STATISTICS (losses of these rows, fp32). The gradient is that
 *                            of the sum of losses over the tokens of the whole step on all ranks, divided by their
 *                            number; with SCALARS: times their loss_scale, which CLIP_SCALE takes out of clip_scale
 *   LOSS_PARTS               INPUT (logits of a tensor parallel rank's part of the vocabulary), BATCH -> STATISTICS
 *                            [T, 3]: largest, sum, target's logit (struct dtp_loss_part). LOSS_BACKWARD then has SAVED,
 *                            those of all ranks one behind the other
 *   LOSS                     STATISTICS [T] -> SCALARS (loss_sum += their sum)
 *   EMBEDDING_BACKWARD       GRADIENT, BATCH -> WEIGHT_GRADIENT (+=, zeroed before), POSITION_GRADIENT (the same)
 *   ZERO                     RESULT, demand.bytes of them
 *   SQUARE_SUM               INPUT -> PARTIALS (DTP_EXECUTOR_SQUARE_SUM_PARTIALS floats of one module, whose number the
 *                            offset tells; experts that ranks divide have the numbers behind all others, in the order
 *                            of layers). Of what tensor parallel ranks have whole the first counts the squares
 *   CLIP_SCALE               PARTIALS (all modules) -> SCALARS UPDATE; clips by plan.clip_norm, 0: not
 *   OPTIMIZER                WEIGHT_GRADIENT, SCALARS, WEIGHT, MASTER (bf16-mixed), MOMENT1, MOMENT2 of one module, or
 *                            of this rank's shard of it. Moments of 8 bits have SCALE and OTHER_SCALE (fp32, of each
 *                            DTP_EXECUTOR_MOMENT_BLOCK elements); without a second or both it is SGD
 *   OPTIMIZER, Muon's        of one matrix; of a run of vectors of a block as above. muon_momentum: WEIGHT_GRADIENT,
 *                            SCALARS, MOMENT1 UPDATE -> RESULT (bf16), PARTIALS. muon_unit: RESULT UPDATE, PARTIALS,
 *                            SCALARS. muon_step: WEIGHT, MASTER, INPUT (bf16), SCALARS
 *   NEWTON_SCHULZ            INPUT X or X X^T -> RESULT, all bf16. gram: X X^T; gram_of_columns: X^T X; polynomial:
 *                            b INPUT + c INPUT^2; from_left: a INPUT + WEIGHT INPUT; from_right: a INPUT + INPUT
 *                            WEIGHT^T. a, b, c: DTP_NEWTON_SCHULZ_A, _B, _C
 *   HOST_OPTIMIZER           as OPTIMIZER, all of it in host memory; SCALARS are those downloaded after CLIP_SCALE, or
 *                            where there is none, those that were uploaded
 *   CAST with SCALE          INPUT (bytes of two NF4 codes), SCALE (fp32, of each 64 numbers) -> RESULT,
 *                            demand.tokens elements
 *   CAST, ACCUMULATE         INPUT -> RESULT (ACCUMULATE: +=), demand.tokens elements
 *   ORTHOGONALIZE            RESULT [T, n] UPDATE (fp32): its rows become orthonormal, of the form "columns" its
 *                            columns
 *   PACK8                    INPUT (demand.tokens elements) -> RESULT, a part of dtp_int8_part_bytes
 *   SUM_PACKED8              INPUT (parts of all replicas) -> RESULT (demand.tokens elements), their sum
 *   SUM_PARTS                INPUT [ranks of the shard group, demand.tokens elements] -> RESULT: their sum; UPDATE adds
 *                            it
 *   collectives              INPUT, RESULT; the same buffer where in place. all_gather: INPUT is this rank's part of
 *                            RESULT; reduce_scatter: RESULT gets this rank's part; sums, no averages. all_to_all: part
 *                            j of INPUT becomes this rank's part of rank j's RESULT, which is another buffer
 *   ranks that divide experts (execution.expert_ranks): all_gather of where each one's ROUTES begin, and a download.
 *                            HOST_WAIT has ROUTES, those of all on the host [ranks, n + 1], and demand.tokens, for so
 *                            many rows is room. ROUTER without STATISTICS: INPUT, the same on the device -> ROUTES of
 *                            the rows that came. all_to_all with ROUTES (on the host): INPUT [T k, h] -> RESULT
 *                            [room, h], SAVED -> STATISTICS, fp32, one of each row; of the form returned the other way.
 *                            Modules from execution.expert_modules on are their experts
 *   packed weights           modules from 2 n - 2 on, the model's block i as i + that many, n as in
 *                            execution.adapter_modules
 *   send, recv               INPUT; RESULT: both ends of a transfer between roles (program_set.h)
 *   SHIFT                    INPUT -> RESULT: to the next rank of the group, from the one before
 *
 * Tensor parallel ranks (execution.tensor_ranks) run the same program. `k` of the tables' and the loss' operations is
 * the model's vocabulary, of which each rank takes its slice (dtp_parameter_vocab_slice); a matmul of form terms has
 * its BIAS added by the first of them alone.
 *
 * An operand with `shard` is this rank's equal part of the buffer (dtp_operand). */
/* clang-format on */
#ifndef DTP_LOWER_EXECUTOR_H
#define DTP_LOWER_EXECUTOR_H

#include "net/parameter_layout.h"
#include "program/placement.h"
#include "plan/plan.h"
#include "plan/runtime_sizes.h"

/* What kernels/kernels.h asks for; exec/ asserts that they agree. */
#define DTP_EXECUTOR_PARTIAL_ROWS 264u
#define DTP_EXECUTOR_MOMENT_BLOCK 256u
#define DTP_EXECUTOR_AMAX_HISTORY 1024u
#define DTP_EXECUTOR_MOST_RUNS 5u /* of vectors between the matrices of a block */
#define DTP_EXECUTOR_SQUARE_SUM_PARTIALS 512u
#define DTP_EXECUTOR_LOSS_PART_BYTES 12u /* of a row, what a part of the vocabulary says of its loss: three floats */
#define DTP_EXECUTOR_SCALARS_BYTES 64u   /* at least sizeof(struct dtp_step_scalars) */

/* State over steps, of each module: the embedding is 0, blocks follow, the head is the last. In the program a buffer of
 * enum dtp_content, in this order, in DTP_SPACE_HOST where the plan offloads it; whoever fills, saves or reads it finds
 * it by dtp_executor_find. X(suffix, name for people, behind "embedding " and "head "). */
#define DTP_EXECUTOR_STATE_TABLE(X)                                                                                    \
    X(WEIGHTS, "weights")                                                                                              \
    X(MASTER, "master")                                                                                                \
    X(MOMENT1, "moment1")                                                                                              \
    X(MOMENT2, "moment2")                                                                                              \
    X(SCALES1, "scales of moment1")                                                                                    \
    X(SCALES2, "scales of moment2")                                                                                    \
    X(LOST, "what was lost") X(FACTOR_Q, "Q of gradients") X(AMAX, "amax of earlier steps")
enum dtp_executor_state {
#define DTP_EXECUTOR_STATE_ENUM(suffix, text) DTP_EXECUTOR_##suffix,
    DTP_EXECUTOR_STATE_TABLE(DTP_EXECUTOR_STATE_ENUM)
#undef DTP_EXECUTOR_STATE_ENUM
        DTP_EXECUTOR_STATE_COUNT
};
static inline enum dtp_content dtp_executor_content(enum dtp_executor_state state)
{
    return (enum dtp_content)((int)DTP_CONTENT_WEIGHTS + (int)state);
}
/* Where every rank finds the buffers of a sealed program of this lowering. `module` has an item for each up to the last
 * that a buffer or tensor is of. DTP_NO_INDEX where the plan has none of it. HOST_BATCH has one buffer for each
 * micro-step, BATCH one for each parity; `host_batch` is the first of them, they follow each other; the same for
 * `batch`. */
struct dtp_executor_map {
    dtp_buffer_id (*module)[DTP_EXECUTOR_STATE_COUNT];
    uint64_t module_count;
    dtp_buffer_id buffer[DTP_CONTENT_COUNT]; /* the first of that content; of state: of no module in particular */
    /* What the host gives a step and hears of it, as operations say; 0: none says. */
    uint64_t rows, sequence, vocab; /* of a micro-batch: tokens, tokens of a sequence; the tables' tokens */
    uint32_t micro_steps;           /* that take a batch */
    double step_tokens;             /* of the loss: of all ranks' micro-batches */
    bool gradient_norm;             /* it is computed */
};
/* Caller releases. DTP_BAD_INPUT: two operations differ in what a step has once, or batches have no room for it.
 * DTP_ENVIRONMENT: no memory. */
enum dtp_status dtp_executor_find(const struct dtp_program *program, struct dtp_executor_map *out,
                                  struct dtp_faults *faults);
void dtp_executor_map_release(struct dtp_executor_map *map);

/* Of host buffers, as of device ones. */
#define DTP_EXECUTOR_HOST_ALIGNMENT DTP_PLACEMENT_ALIGNMENT

/* Addresses: offsets of all buffers, device ones in the device arena, host ones in the pinned arena. UINT64_MAX for a
 * buffer that the step never uses. */
struct dtp_executor_arena {
    uint64_t *offset_bytes; /* per buffer */
    uint64_t device_bytes, host_bytes;
};
/* Proves the program first (dtp_program_verify, 0.1 us an operation), for addresses are what makes a missing dependency
 * overwrite something: what is executed is proven. Caller releases. Fails as that and dtp_program_place do. */
enum dtp_status dtp_executor_arena_make(const struct dtp_program *program, struct dtp_executor_arena *out,
                                        struct dtp_faults *faults);
void dtp_executor_arena_release(struct dtp_executor_arena *arena);

/* Element types and sizes that follow from the plan; the closed form shares them. */
struct dtp_executor_rules {
    enum dtp_dtype compute; /* activations, weights, and gradients of activations */
    enum dtp_dtype moments;
    uint32_t moment_count;        /* that the optimizer keeps: Adam's two, a momentum, none */
    bool orthogonal;              /* blocks' matrices by Muon: they have the first alone */
    bool master;                  /* fp32 copy of the weights in the optimizer */
    enum dtp_dtype gradient;      /* of a module whose gradients are made by one operation each */
    enum dtp_dtype head_gradient; /* of the module that has the head's matrix: chunks, and a tied embedding, add up */
    uint32_t exchange_chunks;     /* of a rank's heads, where ranks exchange tokens for heads */
    bool exchanges;               /* gradients of shards, N > 1, are exchanged by copies and added up by a kernel */
    bool wide_sums;               /* shards of gradients are fp32 sums, whatever was exchanged */
    uint64_t tokens;              /* T: rows of a micro-step */
    uint64_t tensor_ranks;        /* that divide matrices, and the rows of what lies between them */
    uint64_t stream_tokens;       /* T / tensor_ranks */
    uint32_t tensor_chunks;       /* of rows on their way to or from all ranks: dtp_executor_tensor_chunks */
    uint64_t vocab_stride;        /* columns of the logits: dtp_parameter_head_rows */
    uint64_t sequence;            /* tokens of a sequence that the rank has: context parallel ranks share it */
    uint64_t chunk_tokens, chunk_count; /* of head and loss; the last chunk may have fewer rows */
    uint64_t statistics_bytes;          /* of a norm, for a row */
    uint64_t attention_workspace_bytes, attention_backward_workspace_bytes;
    uint64_t shard_ranks, replicas; /* N ranks share a copy of what is sharded; R copies */
    bool sharded;             /* weights rest as shards and are gathered block by block: N > 1 under full_shard, zero3,
                                 hybrid_shard with resharding */
    bool gathers_once;        /* weights rest whole, their shards updated here: gathered once, at the step's begin */
    bool reduces_always;      /* gradients are reduced in every micro-step */
    uint64_t ring;            /* gathered blocks that exist at once: prefetch depth + 1 */
    bool host_optimizer;      /* master and moments in host memory, updated there; weights too under offload params: */
    bool host_params;         /* uploaded whenever they are gathered, into two staging shards or the ring itself */
    bool updates_in_backward; /* a block's optimizer stands right behind its reduction, or on one rank its backward */
    bool streams_gradients;   /* of blocks, sharded: through two shards on the device, to the host or into that */
    bool gradient_norm;       /* square sums and clip_scale are in the program */
    enum dtp_comm_hook hook;  /* of what replicas sum, where there are any */
    enum dtp_dtype wire;      /* in which they do, of a hook that casts */
    bool scales_loss;         /* fp16: the loss' gradient is multiplied by a scale that changes from step to step */
};
void dtp_executor_rules(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                        const struct dtp_plan *plan, struct dtp_executor_rules *out);
/* Chunks of rows that tensor parallel ranks gather and scatter one by one (key tp_chunks); 1: whole. */
static inline uint32_t dtp_executor_tensor_chunks(const struct dtp_plan *plan)
{
    return plan->tp > 1 && plan->tp_overlap && plan->executor.tp_chunks ? plan->executor.tp_chunks : 1;
}

/* How often a step gathers blocks of a kind: where weights are sharded once for each pass of theirs, but for those that
 * are still in the ring (traffic_executor.c). */
uint64_t dtp_executor_block_gathers(const struct dtp_transformer *transformer, const struct dtp_executor_rules *rules,
                                    uint64_t steps, const struct dtp_parameter_alike *blocks);
/* Where ranks divide experts: ranks that share a copy of a block's, and copies of it. */
uint64_t dtp_executor_expert_shards(const struct dtp_plan *plan, const struct dtp_executor_rules *rules);
uint64_t dtp_executor_expert_copies(const struct dtp_plan *plan, const struct dtp_executor_rules *rules);

/* Of an element's moments, both read and written by the optimizer. */
double dtp_executor_moment_bytes(const struct dtp_executor_rules *rules);
/* How often the cross entropy's kernel moves a row of logits of so many bytes: it reads it for the sum, keeps of it
 * what fits into shared memory, reads the rest again, and writes the gradient. `summed`: the sum was made before, by
 * tensor parallel ranks. */
double dtp_executor_loss_passes(double row_bytes, bool summed);

/* What gradients of a module are made and reduced in, and what the optimizer reads: the reduced shard, or the whole
 * ones where there are no shards. Modules: the embedding is 0, blocks follow, the head is the last. */
struct dtp_gradient_dtypes {
    enum dtp_dtype whole, shard;
};
struct dtp_gradient_dtypes dtp_executor_gradient_dtypes(const struct dtp_transformer *transformer,
                                                        const struct dtp_executor_rules *rules, uint64_t module);
/* Whether a hook casts what replicas sum to 16 bits: before, and back behind. */
static inline bool dtp_executor_casts_sums(const struct dtp_executor_rules *rules)
{
    return rules->hook == DTP_COMM_HOOK_FP16 || rules->hook == DTP_COMM_HOOK_BF16;
}

/* lower_executor_tensor.c: of a module's tensors from *next on, the next run of those whose gradients tensor parallel
 * ranks sum, `returned` elements from *begin on; 0: none is left. */
uint64_t dtp_executor_summed_run(const struct dtp_parameter_module *layout, int *next, uint64_t *begin);

/* What a copy around all-to-alls moves: packed queries, keys and values, or attention's results. */
enum dtp_executor_part { DTP_EXECUTOR_PACKED, DTP_EXECUTOR_RESULT };

/* Name of the buffers that hold reduced shards of gradients. */
#define DTP_EXECUTOR_GRADIENT_SHARD "gradient shard"

/* Refuses what the executor cannot run, all faults at once, each with a reason. */
enum dtp_status dtp_executor_check(const struct dtp_transformer *transformer, const struct dtp_cluster *cluster,
                                   const struct dtp_plan *plan, struct dtp_faults *faults);

#endif
