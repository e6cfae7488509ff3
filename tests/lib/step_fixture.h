/* Small step programs written out by hand, for tests of what reads a program. */
#ifndef TEST_STEP_FIXTURE_H
#define TEST_STEP_FIXTURE_H

#include "program/program.h"

static inline struct dtp_program *step_begin(void)
{
    struct dtp_program *program;
    assert_int_equal(dtp_program_create(0, &program, NULL), DTP_OK);
    return program;
}

/* A kernel that moves `bytes`; with `kernels` 0 it costs neither launches nor gaps. */
static inline dtp_op_id step_kernel(struct dtp_program *program, enum dtp_stream stream, double bytes, uint32_t kernels)
{
    struct dtp_new_op op = {.kind = DTP_OP_CAST, .stream = stream, .demand = {.bytes = bytes, .kernels = kernels}};
    return dtp_program_add_op(program, &op, NULL, 0);
}

static inline dtp_op_id step_matmul(struct dtp_program *program, double m, double n, double k)
{
    struct dtp_new_op op = {.kind = DTP_OP_MATMUL,
                            .stream = DTP_STREAM_COMPUTE,
                            .demand = {.flops = 2 * m * n * k, .m = m, .n = n, .k = k, .dtype = DTP_BF16}};
    return dtp_program_add_op(program, &op, NULL, 0);
}

static inline dtp_op_id step_collective(struct dtp_program *program, enum dtp_op_kind kind, enum dtp_stream stream,
                                        uint32_t group, double sent_bytes)
{
    struct dtp_new_op op = {.kind = kind, .stream = stream, .group = group, .demand = {.sent_bytes = sent_bytes}};
    return dtp_program_add_op(program, &op, NULL, 0);
}

static inline dtp_op_id step_copy(struct dtp_program *program, enum dtp_op_kind kind, double bytes)
{
    struct dtp_new_op op = {.kind = kind,
                            .stream = kind == DTP_OP_UPLOAD ? DTP_STREAM_UPLOAD : DTP_STREAM_DOWNLOAD,
                            .demand = {.sent_bytes = bytes}};
    return dtp_program_add_op(program, &op, NULL, 0);
}

static inline dtp_op_id step_event(struct dtp_program *program, enum dtp_op_kind kind, enum dtp_stream stream)
{
    return dtp_program_add_op(program, &(struct dtp_new_op){.kind = kind, .stream = stream}, NULL, 0);
}

static inline void step_seal(struct dtp_program *program)
{
    static struct dtp_faults faults;
    if (dtp_program_seal(program, &faults) != DTP_OK)
        fail_msg("%s", faults.text[0]);
}

#endif
