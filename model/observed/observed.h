/* What other tools recorded of a run: memory at its peak, the time of a step, figures of a log. README.md. */
#ifndef DTP_OBSERVED_H
#define DTP_OBSERVED_H

#include "base/status.h"

#include <stdint.h>

/* X(suffix, words) of kernels. */
#define DTP_OBSERVED_KIND_TABLE(X)                                                                                     \
    X(MATMUL, "matmul")                                                                                                \
    X(ATTENTION, "attention")                                                                                          \
    X(ELEMENTWISE, "elementwise, norms and loss")                                                                      \
    X(OPTIMIZER, "optimizer")                                                                                          \
    X(ALL_GATHER, "all_gather")                                                                                        \
    X(REDUCE_SCATTER, "reduce_scatter")                                                                                \
    X(ALL_REDUCE, "all_reduce")                                                                                        \
    X(SEND_RECV, "send_recv")                                                                                          \
    X(ALL_TO_ALL, "all_to_all")                                                                                        \
    X(COPY, "copies")
enum dtp_observed_kind {
#define DTP_OBSERVED_KIND_ENUM(suffix, words) DTP_OBSERVED_##suffix,
    DTP_OBSERVED_KIND_TABLE(DTP_OBSERVED_KIND_ENUM)
#undef DTP_OBSERVED_KIND_ENUM
        DTP_OBSERVED_KIND_COUNT
};
const char *dtp_observed_kind_words(enum dtp_observed_kind kind);
static inline bool dtp_observed_is_collective(enum dtp_observed_kind kind)
{
    return kind >= DTP_OBSERVED_ALL_GATHER && kind <= DTP_OBSERVED_ALL_TO_ALL;
}

/* Of memory at its peak. */
#define DTP_OBSERVED_PART_TABLE(X)                                                                                     \
    X(BEFORE, "from before the history began")                                                                         \
    X(WEIGHTS, "parameters and what else came before the first forward")                                               \
    X(OPTIMIZER_STATE, "optimizer state")                                                                              \
    X(FORWARD, "activations, logits and loss")                                                                         \
    X(BACKWARD, "gradients and what backward makes")
enum dtp_observed_part {
#define DTP_OBSERVED_PART_ENUM(suffix, words) DTP_OBSERVED_PART_##suffix,
    DTP_OBSERVED_PART_TABLE(DTP_OBSERVED_PART_ENUM)
#undef DTP_OBSERVED_PART_ENUM
        DTP_OBSERVED_PART_COUNT
};
const char *dtp_observed_part_words(enum dtp_observed_part part);

/* Of one step, the mean over those that were recorded. */
struct dtp_observed_time {
    uint32_t steps;
    double step_s;
    double kind_s[DTP_OBSERVED_KIND_COUNT], kind_count[DTP_OBSERVED_KIND_COUNT]; /* sums; kernels */
    double exposed_s[DTP_OBSERVED_KIND_COUNT]; /* of collectives and copies: beside which no kernel computes */
    double idle_s;                             /* nothing runs on the GPU */
    double host_gap_s; /* and for a millisecond or longer (on_host: 25) the host does nothing either that PyTorch knows;
                          0 where the host was not recorded */
    double loader_s;   /* of host_gap_s, inside PyTorch's DataLoader */
    bool host_known;
    bool on_host; /* no GPU was there: kernels are operators that the host computed, idle is the host, and formats of
                     matmuls are not known */
    double wide_matmul_s, wide_matmuls, matmuls;               /* in fp32 or tf32; how many; of how many */
    double attention_forwards, attention_backwards, softmaxes; /* fused kernels; softmax without a logarithm */
    double attention_forward_s;                                /* of the sum, in fused kernels forward */
    double fused_optimizers, compiled, flash2_forwards;        /* kernels: of a fused optimizer, torch.compile's,
                                                                  FlashAttention 2's forward */
};

#define DTP_OBSERVED_MOST_SIZES 512

struct dtp_observed_memory {
    uint64_t peak_bytes, part_bytes[DTP_OBSERVED_PART_COUNT]; /* of tensors */
    uint64_t reserved_bytes;                                  /* segments, at the end */
    struct dtp_observed_size {                                /* tensors of one size that are alive at the peak */
        uint64_t bytes, count, forward_count;                 /* forward_count: made in forward or loss */
    } sizes[DTP_OBSERVED_MOST_SIZES];                         /* the largest; the rest in none */
    size_t size_count;
    struct dtp_observed_leak { /* of one place of the program, made again and again and never freed */
        uint64_t bytes, count;
        char where[192]; /* "micro_step (plants.py:52)" */
    } leak;              /* the largest; count 0: none */
    uint64_t events;
};

struct dtp_observed_log {
    uint32_t steps;
    double step_s,
        tokens_per_s;    /* medians behind the first two; 0: not said. tokens_per_s: of one GPU in torchtitan's */
    uint64_t peak_bytes; /* largest that it says; 0: not said */
};

enum dtp_observed_what { DTP_OBSERVED_MEMORY, DTP_OBSERVED_TIME, DTP_OBSERVED_LOG };

struct dtp_observed {
    const char *path; /* borrowed */
    const char *tool; /* "PyTorch's history of memory", ... */
    enum dtp_observed_what what;
    struct dtp_observed_time time;
    struct dtp_observed_memory memory;
    struct dtp_observed_log log;
};

/* The file, told by its content. DTP_BAD_INPUT: it is of no such kind, or broken, with its place. */
enum dtp_status dtp_observed_read(const char *path, struct dtp_observed *out, struct dtp_faults *faults);
/* The same of bytes. They must end in a zero, which is not counted. */
enum dtp_status dtp_observed_parse(const char *path, const char *text, size_t bytes, struct dtp_observed *out,
                                   struct dtp_faults *faults);

/* ---- the readers of each kind of file, for observed.c ------------------------------------------------------------ */

/* A Chrome trace, as PyTorch's profiler (Kineto) writes it. */
enum dtp_status dtp_read_kineto(const char *path, const char *text, size_t bytes, struct dtp_observed *out,
                                struct dtp_faults *faults);
/* `nsys stats --report cuda_gpu_trace --format csv`. */
enum dtp_status dtp_read_nsys(const char *path, const char *text, struct dtp_observed *out, struct dtp_faults *faults);
/* nsys' own database, `nsys export --type sqlite`; refused by name where dtplan was built without libsqlite3. */
enum dtp_status dtp_read_nsys_database(const char *path, const char *bytes, size_t count, struct dtp_observed *out,
                                       struct dtp_faults *faults);
/* torch.cuda.memory._dump_snapshot. */
enum dtp_status dtp_read_snapshot(const char *path, const char *bytes, size_t count, struct dtp_observed *out,
                                  struct dtp_faults *faults);
/* Lines of torchtitan and Megatron-LM. */
bool dtp_is_train_log(const char *text);
enum dtp_status dtp_read_train_log(const char *path, const char *text, struct dtp_observed *out,
                                   struct dtp_faults *faults);

#endif
