/* How long single device operations take when they run alone: matmul, attention, memory-bound kernels. */
#ifndef DTP_OP_COST_H
#define DTP_OP_COST_H

#include "machine/machine.h"
#include "plan/plan.h"

/* Sustained matmul rate of large shapes in a format, FLOP/s: peak * the GPU's matmul_fraction, of fp8 where that was
 * measured its own. */
double dtp_matmul_flops_per_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype);

/* Rate of a long copy in a GPU's memory, bytes read and written a second: the GPU's memory_fraction of what its
 * datasheet says, or hbm_fraction. */
double dtp_copy_bytes_per_s(const struct dtp_gpu *gpu);

/* Products with a few vectors (PowerSGD's) in fp32, which tensor cores do not take: libraries have kernels for them
 * that fill no tile but pass over the matrix. */
bool dtp_matmul_is_narrow(enum dtp_dtype dtype, double m, double n, double k);

/* Seconds of [m,k] x [k,n] at the sustained rate: FLOPs / rate, at least a wave of tiles, plus the part of operand
 * traffic that the pipeline does not hide; slower where rows in memory do not begin at multiples of 16 bytes, which m,
 * n and k say: k counts tokens in a weight's gradient, m in others. More of m, n or k never takes less time, but for
 * widths that align better. Narrow ones by what they read and write, at narrow_matmul_hbm_fraction. */
double dtp_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, bool weight_gradient, double m, double n,
                    double k);
/* The same as frameworks call it, by the algorithm that the library names first: a weight's gradient of odd rows takes
 * longer by that. */
double dtp_untimed_matmul_s(const struct dtp_gpu *gpu, enum dtp_dtype dtype, bool weight_gradient, double m, double n,
                            double k);
/* The same in a recipe's formats, of one of a linear's products; and that product's rate / the sustained one of fp8. */
double dtp_fp8_matmul_s(const struct dtp_gpu *gpu, enum dtp_fp8_recipe recipe, enum dtp_product product, double m,
                        double n, double k);
double dtp_fp8_matmul_rate(const struct dtp_gpu *gpu, enum dtp_fp8_recipe recipe, enum dtp_product product);
/* Seconds of a product that SMs would take `full_s` for if none idled, and do `occupied_s` for by their tiles: those
 * that idle leave their power to the others, whose clock rises, but not beyond what it is with power to spare. */
double dtp_occupied_matmul_s(double full_s, double occupied_s);

/* Speed of a matmul made for `sms` of which others hold `share` from its start to its end, of its speed on all of them.
 * Its tiles, those that an idle device makes soonest, go in w waves, one to an SM; it then takes as long as w / (1 -
 * share) waves, rounded up, and loses nothing where an SM is left for each tile. A rule by measurement
 * (test_fewer_sms), not by a known mechanism: 128 SMs beside a transfer of four would hold 384 tiles in three waves as
 * 132 do, and yet matmuls of such shapes take the time of four. */
double dtp_matmul_speed_on_fewer_sms(double sms, double m, double n, double share);

/* Bytes a second of sums that a matmul adds its result to: they are read and written while tiles are computed, all but
 * what shows. */
double dtp_accumulated_bytes_per_s(const struct dtp_gpu *gpu);

/* Share of the SMs that matmuls are made for; their rate falls with it. */
double dtp_matmul_share(const struct dtp_gpu *gpu, const struct dtp_execution *execution);

/* Kinds of memory-bound kernels, by how close they come to HBM bandwidth (calibration.h); those of our executor all
 * come equally close. Two of PyTorch's do not at all: rows written where an index says (index_put), and the outer
 * products of a batch (bmm of one column with one row in fp32). */
enum dtp_memory_kernel {
    DTP_KERNEL_EAGER,
    DTP_KERNEL_FUSED,
    DTP_KERNEL_STREAMING,
    DTP_KERNEL_INDEXED,
    DTP_KERNEL_OUTER,
    DTP_KERNEL_TRANSPOSING,   /* compiled ones that write columns side by side */
    DTP_KERNEL_COLUMNS,       /* and seek the largest of each before */
    DTP_KERNEL_NARROW_UPDATE, /* fused AdamW on 16 bits: its SMs take as long for an element as in fp32 */
    DTP_KERNEL_PASS,          /* eager ones that are priced by what bounds each: dtp_pass_rates */
    DTP_KERNEL_UNPACKING,     /* bitsandbytes' of 4 bits: its SMs find each element by comparisons */
    DTP_MEMORY_KERNEL_COUNT
};
/* Rows that such a product is counted with: its tiles have some at least. */
double dtp_outer_rows(double rows);
double dtp_memory_kernel_bytes_per_s(const struct dtp_gpu *gpu, const struct dtp_execution *execution,
                                     enum dtp_memory_kernel kind);

/* Eager kernels of PyTorch that pass over rows: HBM bounds those that take vectors of 16 bytes, at the rate of a long
 * copy. Where formats differ, rows are strided or broadcast, or a row is summed, SMs take elements one at a time, and
 * are held up by what each issues for one. A sum over rows has columns enough for few SMs and takes its latency; and
 * none is shorter than its start. */
struct dtp_pass_rates {
    double elements_per_s; /* INFINITY: they are in the rate of bytes */
    double start_s, column_sum_s;
};
struct dtp_pass_rates dtp_pass_rates(const struct dtp_gpu *gpu);

/* Of an optimizer's step. */
enum dtp_memory_kernel dtp_update_kernel(const struct dtp_plan *plan);
/* Bytes that an optimizer step moves for each parameter that it updates, state in device memory. */
double dtp_optimizer_bytes_per_parameter(const struct dtp_plan *plan);
/* Of an element of a block's matrix, where the optimizer treats these apart, beside its products and what
 * follows from their shapes (Muon; GaLore, APOLLO: dtp_projection_of). */
double dtp_optimizer_matrix_bytes_per_parameter(const struct dtp_plan *plan);

/* Which kernel of its own our executor computes it by, because cuDNN's flash attention does not take it
 * (attention_workspace.h): that on tensor cores (kernels/attention_mma.cu) or the plain one (attention_simple.cu). On
 * the host's cores nothing else is known of, and none is said. */
enum dtp_own_attention { DTP_OWN_ATTENTION_NONE, DTP_OWN_ATTENTION_MMA, DTP_OWN_ATTENTION_PLAIN };
enum dtp_own_attention dtp_own_attention(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                         const struct dtp_execution *execution);

/* Seconds of causal attention's core over `tokens` tokens in sequences of `sequence`. */
struct dtp_attention_time {
    double forward_s, backward_s;
};
struct dtp_attention_time dtp_attention_time(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                             const struct dtp_execution *execution, double tokens);
/* The same by our plain kernel, which multiplies in fp32 off the tensor cores, out of shared memory, and waits for
 * that. dtp_attention_time says it where that computes it. */
struct dtp_attention_time dtp_plain_attention_time(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                                   double tokens);
/* And by ours on tensor cores, whose thread blocks come in waves where sequences are short; elements of 16 bits. */
struct dtp_attention_time dtp_mma_attention_time(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                                 enum dtp_dtype dtype, double tokens);

/* Factor >= 1 by which tensor cores, in matmuls and fused attention, run above their sustained rate when matmuls are
 * only part of the work: chips at their power limit clock up while other kernels run. matmul_s and lighter_s are at
 * the sustained rate, other_s everything else; lighter_s is what draws attention_power of a matmul's power, fused
 * attention and matmuls of odd rows. */
double dtp_matmul_speedup(const struct dtp_gpu *gpu, double matmul_s, double lighter_s, double other_s);
/* The speed-up that tensor cores had in a step that was measured: drawn_s seconds of its step_s at a matmul's power. */
double dtp_matmul_speedup_of_step(const struct dtp_gpu *gpu, double drawn_s, double step_s);
/* Whether a matmul of dtp_matmul_s is one of those: its rows begin at odd multiples of 2 bytes, so that TMA and wgmma
 * do not take them and tensor cores wait for older kernels' loads. */
bool dtp_matmul_has_odd_rows(enum dtp_dtype dtype, bool weight_gradient, double m, double n, double k);
/* Whether attention is one of them: fused kernels are, not those that write scores out, and none of ours, which are far
 * from the limit. */
bool dtp_attention_at_power_limit(const struct dtp_gpu *gpu, const struct dtp_attention_shape *shape,
                                  const struct dtp_execution *execution);

/* Host time to launch one kernel, and what a kernel takes beyond its work (the device's idle time before it; for our
 * executor also until it is under way). */
double dtp_kernel_launch_s(const struct dtp_execution *execution);
/* Host time of one of PyTorch's calls around a unit of FSDP2 (plan/host_calls.h). */
double dtp_unit_hooks_s(const struct dtp_execution *execution);
double dtp_kernel_gap_s(const struct dtp_execution *execution);

/* Seconds of this project's kernel that makes so many vectors of so many elements orthonormal, by one thread block. */
double dtp_orthogonalize_s(double vectors, double elements);
/* Launches of one P or Q that PowerSGD orthogonalises (plan/comm_hook.h). */
uint32_t dtp_powersgd_orthogonalize_kernels(const struct dtp_plan *plan);

/* Relative standard deviation of speed between GPUs of a kind, as the closed form and as simulations charge it. */
double dtp_rank_deviation(const struct dtp_execution *execution);
double dtp_simulated_rank_deviation(const struct dtp_execution *execution);

/* Factor >= 1 on device time because every collective waits for the slowest of `ranks` GPUs whose speeds have this
 * relative standard deviation. */
double dtp_slowest_rank_factor(double ranks, double deviation);

#endif
