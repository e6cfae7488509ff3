/* A row of a measured machine file: the words, columns and keys that `dtplan probe` writes and `--machine FILE.csv`
 * reads.
 *
 * The file is one CSV (table.h) of all columns below, in any order. A row says what was measured (measurement, what),
 * of which shape (dtype, m .. nodes: together with the first two its key, which occurs once), and what came out:
 * seconds of one kernel, collective or copy (median, quartiles, number of samples), or a value. An empty cell does not
 * apply. */
#ifndef DTP_MEASURED_ROW_H
#define DTP_MEASURED_ROW_H

#include "base/dtype.h"
#include "base/status.h"
#include "base/words.h"

#include <stdio.h>

/* X(field, column): numbers. Those up to NODES are of the key.
 *   m, n, k        matmul: as in struct dtp_demand; of a grouped one of each group, on average. m: sequences of an
 *                  attention
 *   groups         of a grouped matmul
 *   bytes          kernel, host_adam: demand.bytes; collective: SENT by a rank (ring accounting, demand.sent_bytes);
 *                  copy: bytes
 *   ranks, stride, nodes  collective, contention: of the group, and nodes that one of its instances spans; copy,
 *                  host_adam: ranks of one host that do it at the same time; so too, where these are the cores of a
 *                  host, matmul, attention and kernel, for ranks share the cores */
#define DTP_MEASURED_SHAPE_TABLE(X)                                                                                    \
    X(m, "m")                                                                                                          \
    X(n, "n")                                                                                                          \
    X(k, "k")                                                                                                          \
    X(groups, "groups")                                                                                                \
    X(sequence, "sequence")                                                                                            \
    X(heads, "heads")                                                                                                  \
    X(kv_heads, "kv_heads")                                                                                            \
    X(head_dim, "head_dim")                                                                                            \
    X(bytes, "bytes")                                                                                                  \
    X(ranks, "ranks")                                                                                                  \
    X(stride, "stride")                                                                                                \
    X(nodes, "nodes")
#define DTP_MEASURED_RESULT_TABLE(X)                                                                                   \
    X(seconds, "seconds")                                                                                              \
    X(low_s, "low_s")                                                                                                  \
    X(high_s, "high_s")                                                                                                \
    X(samples, "samples")                                                                                              \
    X(value, "value")
#define DTP_MEASURED_NUMBER_TABLE(X) DTP_MEASURED_SHAPE_TABLE(X) DTP_MEASURED_RESULT_TABLE(X)

/* Of ranks, nodes and whatever else is counted: a file that says more is broken, and counts fit into 32 bits. */
#define DTP_MEASURED_MOST_COUNT 1000000

enum dtp_measured_column {
#define DTP_MEASURED_ENUM(field, column) DTP_MEASURED_##field,
    DTP_MEASURED_NUMBER_TABLE(DTP_MEASURED_ENUM)
#undef DTP_MEASURED_ENUM
        DTP_MEASURED_COLUMN_COUNT
};

/* X(suffix, spelling, columns a row needs; a row fills no others but low_s, high_s and samples)
 *   about        what: a word of DTP_MEASURED_ABOUT_TABLE; its value is text
 *   matmul       one kernel inside a running step on one GPU
 *   grouped_matmul  the same, of rows by experts: all groups in one kernel, as uneven as the router makes them
 *   attention, kernel  the same; what of a kernel: dtp_op_kind_text, or of a framework's a word of
 *                DTP_MEASURED_PASS_TABLE
 *   step         seconds a kernel of a step adds: gap_live and gap_graph between two on the device, launch on the host
 *                thread, launch_pytorch there where PyTorch launches one after the other what programs count
 *   collective   alone, nothing else on the device; what: enum dtp_collective's words and those of DTP_CARRIED_TABLE
 *   copy         between pinned host memory and the device: upload, download, both at once (bytes each way)
 *   host_adam    AdamW on the cores of one rank
 * Where the device is a host a kernel and a sum of gradients have a dtype too: its processor computes, and what it
 * computes on depends on the format, where a GPU is bound by bytes.
 *   contention   what NAME: seconds that kernels take longer for each second that the collective runs beside them.
 *                NAME_slowdown: the collective's time beside kernels over its time alone */
#define DTP_MEASUREMENT_TABLE(X)                                                                                       \
    X(ABOUT, "about", 0)                                                                                               \
    X(MATMUL, "matmul", DTP_NEEDS(m) | DTP_NEEDS(n) | DTP_NEEDS(k) | DTP_NEEDS(seconds))                               \
    X(GROUPED_MATMUL, "grouped_matmul",                                                                                \
      DTP_NEEDS(m) | DTP_NEEDS(n) | DTP_NEEDS(k) | DTP_NEEDS(groups) | DTP_NEEDS(seconds))                             \
    X(ATTENTION, "attention",                                                                                          \
      DTP_NEEDS(m) | DTP_NEEDS(sequence) | DTP_NEEDS(heads) | DTP_NEEDS(kv_heads) | DTP_NEEDS(head_dim) |              \
          DTP_NEEDS(seconds))                                                                                          \
    X(KERNEL, "kernel", DTP_NEEDS(bytes) | DTP_NEEDS(seconds))                                                         \
    X(STEP, "step", DTP_NEEDS(seconds))                                                                                \
    X(COLLECTIVE, "collective",                                                                                        \
      DTP_NEEDS(bytes) | DTP_NEEDS(ranks) | DTP_NEEDS(stride) | DTP_NEEDS(nodes) | DTP_NEEDS(seconds))                 \
    X(COPY, "copy", DTP_NEEDS(bytes) | DTP_NEEDS(ranks) | DTP_NEEDS(seconds))                                          \
    X(HOST_ADAM, "host_adam", DTP_NEEDS(bytes) | DTP_NEEDS(ranks) | DTP_NEEDS(seconds))                                \
    X(CONTENTION, "contention", DTP_NEEDS(ranks) | DTP_NEEDS(stride) | DTP_NEEDS(nodes) | DTP_NEEDS(value))
#define DTP_NEEDS(field) (1u << DTP_MEASURED_##field)

enum dtp_measurement {
#define DTP_MEASUREMENT_ENUM(suffix, text, needs) DTP_MEASUREMENT_##suffix,
    DTP_MEASUREMENT_TABLE(DTP_MEASUREMENT_ENUM)
#undef DTP_MEASUREMENT_ENUM
        DTP_MEASUREMENT_COUNT
};
const char *dtp_measurement_text(enum dtp_measurement measurement);
bool dtp_measurement_parse(const char *text, enum dtp_measurement *out);

/* X(suffix, spelling). gpu_key is needed: the catalogue row that the file refines. rows: how many the file has, this
 * one and others of about counted, so that one that was cut at a line's end is not taken for whole; older files have
 * none. */
#define DTP_MEASURED_ABOUT_TABLE(X)                                                                                    \
    X(ROWS, DTP_MEASURED_ROWS)                                                                                         \
    X(GPU_KEY, "gpu_key")                                                                                              \
    X(MACHINE_KEY, "machine_key")                                                                                      \
    X(GPU, "gpu")                                                                                                      \
    X(GPUS, "gpus")                                                                                                    \
    X(GPUS_PER_NODE, "gpus_per_node")                                                                                  \
    X(GPU_MEMORY_BYTES, "gpu_memory_bytes")                                                                            \
    X(DATE, "date")                                                                                                    \
    X(DTPLAN, "dtplan")                                                                                                \
    X(DEVICE, "device")                                                                                                \
    X(DRIVER, "driver")                                                                                                \
    X(LIBRARIES, "libraries")                                                                                          \
    X(COMMUNICATOR, "communicator")                                                                                    \
    X(HOST_CPU, "host_cpu")                                                                                            \
    X(HOST_CORES, "host_cores")                                                                                        \
    X(PROBE_SECONDS, "probe_seconds")                                                                                  \
    X(KERNELS_OF, "kernels_of")                                                                                        \
    X(RUNTIME, "runtime")                                                                                              \
    X(POWER, "power")
#define DTP_MEASURED_ROWS "rows"
/* `runtime`: whose kernels they are where a framework's program or a trace told of them; absent in the executor's own
 * probes. `kernels_of`: the file or trace that rows of kernels were taken over from, whoever's they are. */
#define DTP_MEASURED_OWN_RUNTIME "dtplan"
/* `power`: the one word that it has. Matmul rows are then of the rate at which the GPU multiplies with nothing beside
 * it, and a step whose other kernels draw less power has them faster (dtp_matmul_speedup); without it they are as in a
 * step. */
#define DTP_MEASURED_SUSTAINED "sustained"
/* Of a step: seconds of a fixed loop on a host's core at its best, by which steps of runs are compared (pace.h). */
#define DTP_MEASURED_PACE "pace"
/* Words of matmul and grouped_matmul: what its kernel computes. SUM adds to a gradient that stands there, GELU has it
 * in the epilogue. */
#define DTP_MEASURED_MATMUL_TABLE(X)                                                                                   \
    X(FORWARD, "forward")                                                                                              \
    X(FORWARD_GELU, "forward_gelu")                                                                                    \
    X(INPUT_GRADIENT, "input_gradient")                                                                                \
    X(INPUT_GRADIENT_GELU, "input_gradient_gelu")                                                                      \
    X(WEIGHT_GRADIENT, "weight_gradient")                                                                              \
    X(WEIGHT_GRADIENT_SUM, "weight_gradient_sum")
enum dtp_measured_matmul {
#define DTP_MEASURED_MATMUL_ENUM(suffix, text) DTP_MEASURED_MATMUL_##suffix,
    DTP_MEASURED_MATMUL_TABLE(DTP_MEASURED_MATMUL_ENUM)
#undef DTP_MEASURED_MATMUL_ENUM
        DTP_MEASURED_MATMUL_COUNT
};
const char *dtp_measured_matmul_text(enum dtp_measured_matmul matmul);
/* COUNT where `what` is no such word. */
enum dtp_measured_matmul dtp_measured_matmul_of(const char *what);
/* True for weights' gradients, whose k counts tokens; m does in the others. */
static inline bool dtp_measured_matmul_of_weights(enum dtp_measured_matmul matmul)
{
    return matmul == DTP_MEASURED_MATMUL_WEIGHT_GRADIENT || matmul == DTP_MEASURED_MATMUL_WEIGHT_GRADIENT_SUM;
}
/* Words of kernels that a framework has in place of ours, by how they pass over memory and not by what they compute:
 * op_cost.h's kinds. */
#define DTP_MEASURED_PASS_TABLE(X)                                                                                     \
    X(EAGER, "eager")                                                                                                  \
    X(FUSED, "fused")                                                                                                  \
    X(STREAMING, "streaming")                                                                                          \
    X(NARROW_UPDATE, "narrow_update")
enum dtp_measured_pass {
#define DTP_MEASURED_PASS_ENUM(suffix, text) DTP_MEASURED_PASS_##suffix,
    DTP_MEASURED_PASS_TABLE(DTP_MEASURED_PASS_ENUM)
#undef DTP_MEASURED_PASS_ENUM
        DTP_MEASURED_PASS_COUNT
};
const char *dtp_measured_pass_text(enum dtp_measured_pass pass);
/* Words of attention's core. ATOMIC: the library may add up dQ by atomics (plan.executor.atomic_attention). */
#define DTP_MEASURED_ATTENTION_TABLE(X)                                                                                \
    X(FORWARD, "forward")                                                                                              \
    X(BACKWARD, "backward")                                                                                            \
    X(BACKWARD_ATOMIC, "backward_atomic")
enum dtp_measured_attention {
#define DTP_MEASURED_ATTENTION_ENUM(suffix, text) DTP_MEASURED_ATTENTION_##suffix,
    DTP_MEASURED_ATTENTION_TABLE(DTP_MEASURED_ATTENTION_ENUM)
#undef DTP_MEASURED_ATTENTION_ENUM
};
const char *dtp_measured_attention_text(enum dtp_measured_attention attention);
/* Under which of its words a kernel's time stands; `atomic` as of struct dtp_attention_shape. */
enum dtp_measured_attention dtp_measured_attention_of(bool atomic, bool backward);
/* How a collective is carried that goes two ways: X(suffix, collective, word of its rows).
 *   AROUND  a send_recv of all ranks of a group, each to the next and from the one before at once: a ring's step. A
 *           plain one is of neighbours, one way
 *   UNEVEN  an all_to_all of rows of which one rank gets twice as many as each other, whose bytes are those that this
 *           one gets of others: what routers of experts make */
#define DTP_CARRIED_TABLE(X)                                                                                           \
    X(AROUND, DTP_SEND_RECV, "shift")                                                                                  \
    X(UNEVEN, DTP_ALL_TO_ALL, "all_to_all_uneven")
enum dtp_carried {
    DTP_CARRIED_PLAIN,
#define DTP_CARRIED_ENUM(suffix, collective, text) DTP_CARRIED_##suffix,
    DTP_CARRIED_TABLE(DTP_CARRIED_ENUM)
#undef DTP_CARRIED_ENUM
        DTP_CARRIED_COUNT
};
/* Of a collective that is not carried so, its own word. */
const char *dtp_measured_collective_text(enum dtp_collective collective, enum dtp_carried carried);
/* Of the first `length` bytes. False: no such word. */
bool dtp_measured_collective_parse(const char *text, size_t length, enum dtp_collective *out,
                                   enum dtp_carried *carried);
/* The one word of AdamW on the host. */
#define DTP_MEASURED_HOST_ADAM "update"

#define DTP_MEASURED_WHAT_BYTES 32
#define DTP_MEASURED_TEXT_BYTES 256
struct dtp_measured_row {
    enum dtp_measurement measurement;
    char what[DTP_MEASURED_WHAT_BYTES];
    enum dtp_dtype dtype;                     /* DTP_DTYPE_COUNT: empty; matmuls and attention have one */
    double number[DTP_MEASURED_COLUMN_COUNT]; /* NAN: empty */
    char text[DTP_MEASURED_TEXT_BYTES];       /* value of ABOUT; else "" */
};
/* All cells empty. */
struct dtp_measured_row dtp_measured_row_of(enum dtp_measurement measurement, const char *what);
/* DTP_BAD_INPUT: the text is too long, or not printable. */
enum dtp_status dtp_measured_row_set_text(struct dtp_measured_row *row, const char *text, const char *file, size_t line,
                                          struct dtp_faults *faults);
struct dtp_measured_row dtp_measured_row_of_matmul(enum dtp_measured_matmul pass, enum dtp_dtype dtype, double m,
                                                   double n, double k);
struct dtp_measured_row dtp_measured_row_of_grouped(enum dtp_measured_matmul pass, enum dtp_dtype dtype, double groups,
                                                    double m, double n, double k);
/* Whether it is of products of matrices, grouped or not. And their FLOPs. */
static inline bool dtp_measurement_is_matmul(enum dtp_measurement measurement)
{
    return measurement == DTP_MEASUREMENT_MATMUL || measurement == DTP_MEASUREMENT_GROUPED_MATMUL;
}
double dtp_measured_matmul_flops(const struct dtp_measured_row *row);
/* Same measurement, what, dtype and shape. */
bool dtp_measured_row_same(const struct dtp_measured_row *a, const struct dtp_measured_row *b);
/* An unknown what, a needed cell empty, a number that is not finite or not above 0 (value: below 0) or nothing that a
 * machine does, a cell that does not apply; all faults of the row. */
enum dtp_status dtp_measured_row_check(const struct dtp_measured_row *row, const char *file, size_t line,
                                       struct dtp_faults *faults);
bool dtp_measured_attention_is_backward(const struct dtp_measured_row *row);
/* Makes a row one of a host, whose `ranks` did the same at that time; `dtype`: what is computed in, where the row says
 * that of hosts alone. Nodes of a host are pretended, so that a group has one. */
void dtp_measured_row_of_host(struct dtp_measured_row *row, enum dtp_dtype dtype, uint32_t ranks);

/* A machine file: the header, how many rows there are (whatever a row of that says), what it is about, then the others.
 * Errors stay on the file. */
void dtp_measured_write(FILE *file, const struct dtp_measured_row *rows, size_t count);

#endif
