/* A hand-made training step in the manner of FSDP, for tests and benchmarks of what reads programs.
 *
 * `layers` layers, `micro_steps` micro-steps, `kernels` operations per layer and direction. Weights of the next layer
 * are gathered while one computes; a gathered buffer is copied out and its memory reused by the next gather; gradients
 * go through one reduce-scatter in flight; the optimizer reads the sums. Every dependency is needed but where said. */
#ifndef STEP_PROGRAM_H
#define STEP_PROGRAM_H

#include "program/program.h"

#define STEP_MAX_LAYERS 128
#define STEP_MAX_KERNELS 64

struct step {
    struct dtp_program *program;
    uint32_t layers, kernels, group;
    uint16_t micro_step;
    dtp_buffer_id shard[STEP_MAX_LAYERS], gradient[STEP_MAX_LAYERS], state[STEP_MAX_LAYERS];
    dtp_buffer_id gathered[STEP_MAX_LAYERS], weights[STEP_MAX_LAYERS]; /* of the pass under way */
    dtp_buffer_id saved[STEP_MAX_LAYERS][STEP_MAX_KERNELS];
    dtp_op_id gather[STEP_MAX_LAYERS];
    dtp_op_id copied_out, reduced, accumulated; /* last ones; DTP_NO_INDEX before the first */
    dtp_buffer_id reduce_input;
};

static inline dtp_buffer_id step_buffer(struct step *s, const char *name, uint64_t bytes, enum dtp_owner owner,
                                        enum dtp_stream pool, uint32_t layer, bool persistent)
{
    return dtp_program_add_buffer(s->program, &(struct dtp_buffer){.name = name,
                                                                   .bytes = bytes,
                                                                   .owner = owner,
                                                                   .pool = pool,
                                                                   .layer = (uint16_t)layer,
                                                                   .micro_step = s->micro_step,
                                                                   .persistent = persistent});
}

static inline dtp_op_id step_op(struct step *s, enum dtp_op_kind kind, enum dtp_stream stream, uint32_t layer,
                                const char *name, size_t operand_count, const struct dtp_operand *operands)
{
    struct dtp_new_op op = {.kind = kind,
                            .stream = stream,
                            .layer = (uint16_t)layer,
                            .micro_step = s->micro_step,
                            .name = name,
                            .group = s->group};
    op.demand.bytes = 4096;
    op.demand.kernels = 1;
    return dtp_program_add_op(s->program, &op, operands, operand_count);
}

static inline void step_gather(struct step *s, uint32_t l)
{
    s->gathered[l] = step_buffer(s, "gathered", 8000000, DTP_OWNER_GATHER, DTP_STREAM_GATHER, l, false);
    s->gather[l] = step_op(s, DTP_OP_ALL_GATHER, DTP_STREAM_GATHER, l, "", 2,
                           (struct dtp_operand[]){dtp_operand_of(s->shard[l], DTP_READ),
                                                  dtp_operand_of(s->gathered[l], DTP_ALLOC | DTP_WRITE)});
    dtp_program_depend(s->program, s->gather[l], s->copied_out);
}

static inline void step_copy_out(struct step *s, uint32_t l)
{
    s->weights[l] = step_buffer(s, "weights", 8000000, DTP_OWNER_WEIGHTS, DTP_STREAM_COMPUTE, l, false);
    s->copied_out = step_op(s, DTP_OP_COPY_OUT, DTP_STREAM_COMPUTE, l, "", 2,
                            (struct dtp_operand[]){dtp_operand_of(s->gathered[l], DTP_READ | DTP_FREE),
                                                   dtp_operand_of(s->weights[l], DTP_ALLOC | DTP_WRITE)});
    dtp_program_depend(s->program, s->copied_out, s->gather[l]);
}

static inline void step_forward(struct step *s, uint32_t l)
{
    step_copy_out(s, l);
    if (l + 1 < s->layers)
        step_gather(s, l + 1);
    for (uint32_t i = 0; i < s->kernels; i++) {
        bool last = i + 1 == s->kernels;
        dtp_buffer_id before = i ? s->saved[l][i - 1] : l ? s->saved[l - 1][s->kernels - 1] : s->shard[0];
        s->saved[l][i] =
            step_buffer(s, "x", 1000000 + 37777 * (uint64_t)i, DTP_OWNER_ACTIVATIONS, DTP_STREAM_COMPUTE, l, false);
        step_op(s, i % 4 ? DTP_OP_ACTIVATION : DTP_OP_MATMUL, DTP_STREAM_COMPUTE, l, "forward", 3,
                (struct dtp_operand[]){dtp_operand_of(before, DTP_READ),
                                       dtp_operand_of(s->weights[l], last ? DTP_READ | DTP_FREE : DTP_READ),
                                       dtp_operand_of(s->saved[l][i], DTP_ALLOC | DTP_WRITE)});
    }
}

/* The gradients of a layer are summed over ranks and added to those of earlier micro-steps. Its input waits in the
 * buffer until the next layer's is there. */
static inline void step_reduce(struct step *s, uint32_t l, dtp_buffer_id whole)
{
    dtp_buffer_id input = step_buffer(s, "reduce_input", 8000000, DTP_OWNER_REDUCE, DTP_STREAM_COMPUTE, l, false);
    dtp_buffer_id output = step_buffer(s, "reduce_output", 1000000, DTP_OWNER_REDUCE, DTP_STREAM_REDUCE, l, false);
    bool first = s->reduced.index == DTP_NO_INDEX;
    dtp_op_id copied_in = step_op(s, DTP_OP_COPY_IN, DTP_STREAM_COMPUTE, l, "", first ? 2 : 3,
                                  (struct dtp_operand[]){dtp_operand_of(whole, DTP_READ | DTP_FREE),
                                                         dtp_operand_of(input, DTP_ALLOC | DTP_WRITE),
                                                         dtp_operand_of(s->reduce_input, DTP_FREE)});
    dtp_program_depend(s->program, copied_in, s->reduced);
    s->reduced =
        step_op(s, DTP_OP_REDUCE_SCATTER, DTP_STREAM_REDUCE, l, "", 2,
                (struct dtp_operand[]){dtp_operand_of(input, DTP_READ), dtp_operand_of(output, DTP_ALLOC | DTP_WRITE)});
    dtp_program_depend(s->program, s->reduced, copied_in);
    s->accumulated = step_op(s, DTP_OP_ACCUMULATE, DTP_STREAM_REDUCE, l, "", 2,
                             (struct dtp_operand[]){dtp_operand_of(output, DTP_READ | DTP_FREE),
                                                    dtp_operand_of(s->gradient[l], DTP_UPDATE)});
    s->reduce_input = input;
}

static inline void step_backward(struct step *s, uint32_t l)
{
    step_copy_out(s, l);
    if (l)
        step_gather(s, l - 1);
    dtp_buffer_id whole = step_buffer(s, "gradients", 8000000, DTP_OWNER_GRADS, DTP_STREAM_COMPUTE, l, false);
    for (uint32_t left = s->kernels; left > 0; left--) {
        uint32_t i = left - 1;
        bool first = left == s->kernels;
        step_op(s, i % 4 ? DTP_OP_ACTIVATION_BACKWARD : DTP_OP_MATMUL, DTP_STREAM_COMPUTE, l, "backward", 3,
                (struct dtp_operand[]){dtp_operand_of(s->saved[l][i], DTP_READ | DTP_FREE),
                                       dtp_operand_of(s->weights[l], i ? DTP_READ : DTP_READ | DTP_FREE),
                                       dtp_operand_of(whole, first ? DTP_ALLOC | DTP_WRITE : DTP_UPDATE)});
    }
    step_reduce(s, l, whole);
}

static inline void step_optimizer(struct step *s)
{
    dtp_op_id waits = step_op(s, DTP_OP_FREE, DTP_STREAM_COMPUTE, DTP_NO_LAYER, "", 1,
                              (struct dtp_operand[]){dtp_operand_of(s->reduce_input, DTP_FREE)});
    dtp_program_depend(s->program, waits, s->accumulated);
    for (uint32_t l = 0; l < s->layers; l++)
        step_op(s, DTP_OP_OPTIMIZER, DTP_STREAM_COMPUTE, l, "", 3,
                (struct dtp_operand[]){dtp_operand_of(s->gradient[l], DTP_READ),
                                       dtp_operand_of(s->state[l], DTP_UPDATE),
                                       dtp_operand_of(s->shard[l], DTP_UPDATE)});
}

/* Caller destroys *out; NULL on failure. */
static inline enum dtp_status step_program_make(uint32_t layers, uint16_t micro_steps, uint32_t kernels,
                                                struct dtp_program **out, struct dtp_faults *faults)
{
    struct step s = {.layers = layers, .kernels = kernels, .copied_out = {DTP_NO_INDEX}, .reduced = {DTP_NO_INDEX}};
    *out = NULL;
    enum dtp_status status = dtp_program_create(0, &s.program, faults);
    if (status != DTP_OK)
        return status;
    s.group = dtp_program_add_group(s.program, (struct dtp_program_group){8, 1});
    for (uint32_t l = 0; l < layers; l++) {
        s.shard[l] = step_buffer(&s, "shard", 2000000, DTP_OWNER_PARAMS, DTP_STREAM_COMPUTE, l, true);
        s.gradient[l] = step_buffer(&s, "gradient", 2000000, DTP_OWNER_GRADS, DTP_STREAM_COMPUTE, l, true);
        s.state[l] = step_buffer(&s, "moments", 4000000, DTP_OWNER_OPTIMIZER, DTP_STREAM_COMPUTE, l, true);
    }
    for (; s.micro_step < micro_steps; s.micro_step++) {
        step_gather(&s, 0);
        for (uint32_t l = 0; l < layers; l++)
            step_forward(&s, l);
        step_gather(&s, layers - 1);
        for (uint32_t left = layers; left > 0; left--)
            step_backward(&s, left - 1);
    }
    step_optimizer(&s);
    status = dtp_program_seal(s.program, faults);
    if (status == DTP_OK)
        *out = s.program;
    else
        dtp_program_destroy(s.program);
    return status;
}

/* The same; NULL: no memory. */
static inline struct dtp_program *step_program(uint32_t layers, uint16_t micro_steps, uint32_t kernels)
{
    struct dtp_program *program;
    step_program_make(layers, micro_steps, kernels, &program, NULL);
    return program;
}

#endif
