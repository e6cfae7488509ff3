/* The one table of empirical constants: everything that was fitted to or read off a measurement instead of derived.
 *
 * Each row says what it is, its unit and what it was fitted on. Rates of a particular GPU do not belong here but in
 * scenarios/gpus.csv. `dtplan explain` prints this table. */
#ifndef DTP_CALIBRATION_H
#define DTP_CALIBRATION_H

#include <stddef.h>

/* X(name, value, unit, what it is; what it was fitted on) */
#define DTP_CALIBRATION_TABLE(X)                                                                                       \
    /* -- matmul, attention, memory-bound operations ---------------------------------------------------------- */     \
    X(matmul_power_headroom, 0.21, "1",                                                                                \
      "Hopper/Blackwell matmuls run faster by this * (1 - their share of the step), as other kernels draw less "       \
      "power: 668 TFLOP/s back to back, 716 at a share of 0.65, 764 at 0.43; 7 profiled runs on one H200")             \
    X(matmul_output_overlap_loss, 0.25, "1",                                                                           \
      "share of a matmul's operand traffic that adds to its time; 27 shapes x 3 layouts on one H200")                  \
    X(matmul_split_depth, 256, "1",                                                                                    \
      "least depth k of the parts into which a matmul with fewer tiles than SMs is split; gradients of weights of "    \
      "384 to 1024 columns over 2k to 64k tokens and machine.csv's, one H200")                                         \
    X(matmul_full_waves, 1.025, "1",                                                                                   \
      "rate of a matmul whose tiles fill all waves / matmul_fraction, which is that of large shapes as they come: "    \
      "the best / the mean of 8 on H200 and H100 (697/681, 698/682)")                                                  \
    X(matmul_idle_loss, 0.8, "1",                                                                                      \
      "share that a matmul loses of what SMs idle in its last wave, the rest being clock that their power buys; "      \
      "GPT-2's shapes, 124M to 1.5B, on H200, with all tables of runs in view")                                        \
    X(matmul_odd_tile, 0.9, "1",                                                                                       \
      "rate of tiles of 128 x 192 / that of 128 x 128 and 128 x 256; from the same shapes and tables")                 \
    X(unaligned_result, 0.135, "1",                                                                                    \
      "rate of a 16-bit matmul on Hopper or later whose result's rows begin at odd multiples of 2 bytes / of an "      \
      "aligned one; [4096,768] x [768,50257] 104 TFLOP/s, 50304 columns 744 to 796; reports/h200/machine.csv")         \
    X(unaligned_reduced, 0.165, "1",                                                                                   \
      "the same where rows of the dimension that is summed over do; its input gradient, 120 to 126 of 731 to 778")     \
    X(unaligned_outer, 0.64, "1",                                                                                      \
      "the same of a weight's gradient, where rows of an operand lie along the result's; 470 to 482 of 748 to 767")    \
    X(unaligned_words, 0.64, "1",                                                                                      \
      "the same of rows at 4 or 8 bytes, which asynchronous copies still take, though TMA does not; assumed")          \
    X(unaligned_before_hopper, 0.38, "1",                                                                              \
      "the same of rows at 2 bytes on older GPUs (rows at 4 bytes lose nothing: InternEvo's ffn of 10922); from "      \
      "nanoGPT on A100, a step 25 % faster by 50304 for 50257 (recalled, not looked up), of which the "                \
      "head's three matmuls are about a fifth")                                                                        \
    X(hbm_fraction, 0.90, "1", "HBM rate of a long copy / datasheet; h200_copies.csv 4.28/4.8 TB/s")                   \
    X(eager_sm_bytes_per_s, 42e9, "B/s",                                                                               \
      "bytes/s per SM of eager pointwise kernels (strided views included), in series with HBM; H200 profiles")         \
    X(fused_sm_bytes_per_s, 60e9, "B/s", "the same of fused (compiled) kernels; H200 profiles")                        \
    X(streaming_sm_bytes_per_s, 126e9, "B/s", "the same of long streams: fused AdamW 3.43 TB/s on H200")               \
    X(kernel_gap_s, 1.6e-6, "s", "idle device time between two kernels of a stream; 7 profiled runs on one H200")      \
    X(native_sm_bytes_per_s, 400e9, "B/s",                                                                             \
      "bytes/s per SM of dtplan-exec's kernels, which keep HBM busy; slopes of 8 kinds over 4 to 1600 MB on H200")     \
    X(graph_kernel_gap_s, 0.84e-6, "s", "idle device time between two of them inside a CUDA graph; 1000 tiny ones")    \
    X(native_ramp_s, 3.7e-6, "s",                                                                                      \
      "what each of them takes beyond that and its bytes or FLOPs, until its memory streams; 8 small models of 111 "   \
      "to 339 kernels a step on H200")                                                                                 \
    X(flash_hopper_forward, 0.826, "1",                                                                                \
      "cuDNN flash attention, causal half counted, head 128, long sequences / sustained matmul rate; H200, 1k..16k")   \
    X(flash_hopper_backward, 0.797, "1", "the same backward with 2.5 x the forward's FLOPs")                           \
    X(flash_forward_half_sequence, 480, "tokens", "sequence at which half of that rate is reached; same runs")         \
    X(flash_backward_half_sequence, 900, "tokens", "the same backward")                                                \
    X(native_flash_forward, 0.83, "1",                                                                                 \
      "the four above for cuDNN 9.14 as dtplan-exec calls it; 25 shapes of machine.csv and 9 steps, sequences of 256 " \
      "to 8k, on H200")                                                                                                \
    X(native_flash_backward, 0.70, "1", "the same")                                                                    \
    X(native_flash_forward_half_sequence, 640, "tokens", "the same")                                                   \
    X(native_flash_backward_half_sequence, 900, "tokens", "the same")                                                  \
    X(native_flash_reproducible, 0.47, "1",                                                                            \
      "most that a backward without atomics reaches of the sustained matmul rate, its sums waiting for each other; "   \
      "312 to 328 TFLOP/s at 4k and 8k where atomics reach 380 to 426")                                                \
    X(flash2_hopper_forward, 0.60, "1", "FlashAttention-2 (mma, no wgmma) on Hopper; its published 335-370 TFLOP/s")   \
    X(flash2_hopper_backward, 0.48, "1", "the same backward")                                                          \
    X(flash2_forward, 0.82, "1", "FlashAttention-2 on other GPUs; its published A100 figures")                         \
    X(flash2_backward, 0.70, "1", "the same backward")                                                                 \
    X(flash1_hopper_forward, 0.305, "1", "FlashAttention-1 on Hopper; llm-foundry's H100 rows")                        \
    X(flash1_hopper_backward, 0.26, "1", "the same backward")                                                          \
    X(flash1_forward, 0.47, "1", "FlashAttention-1 on other GPUs; llm-foundry's A100 rows")                            \
    X(flash1_backward, 0.39, "1", "the same backward")                                                                 \
    /* -- host ------------------------------------------------------------------------------------------------- */    \
    X(torch_launch_s, 15e-6, "s", "host time per kernel of eager PyTorch with autograd; GPT-2, 14 ms for 940")         \
    X(megatron_launch_s, 85e-6, "s",                                                                                   \
      "the same of Megatron's layers per kernel counted, their Python in between included: 3.5 ms for the 41 of a "    \
      "layer that is recomputed; floor of vTrain's A100 runs under tensor or pipeline parallelism, none scored")       \
    X(native_launch_s, 3e-6, "s", "host time per kernel of a C or C++ runtime; assumed")                               \
    X(torch_host_adam_bytes_per_s, 20e9, "B/s",                                                                        \
      "AdamW on the host under CPUOffloadPolicy per rank: torchrun gives a rank one thread; 23 GB/s on 2, 19 on 4 "    \
      "H200 (the latter holdout-b19)")                                                                                 \
    X(host_adam_core_bytes_per_s, 22e9, "B/s",                                                                         \
      "vectorised multi-threaded host Adam per core of a GPU's share, in series with memory: 139 GB/s of one rank, "   \
      "80 of each of 2, 47 to 57 of each of 4; machines of 1, 2 and 4 H200 with 16 cores a GPU, rated at 614 GB/s")    \
    X(host_adam_memory_fraction, 0.36, "1", "the same of all ranks through memory / host memory bandwidth")            \
    X(pcie_fraction, 0.87, "1", "pinned copies / one PCIe direction; h200_copies.csv 55/64 alone")                     \
    /* -- memory ----------------------------------------------------------------------------------------------- */    \
    X(torch_fragmentation, 0.09, "1",                                                                                  \
      "segments of PyTorch's caching allocator beyond the tensors of its compute stream / tensors that come and "      \
      "go (all but parameters, optimizer state, buckets); 35 H200 runs")                                               \
    X(context_bytes, 804e6, "B",                                                                                       \
      "CUDA context 552 MB and the kernel modules a PyTorch step loads; driver's used - segments on H200, CUDA 13")    \
    X(executor_context_bytes, 575e6, "B",                                                                              \
      "the same of dtplan-exec: our kernels, cuBLASLt's and cuDNN's; driver's used - arena of 10 jobs on H200, 573 "   \
      "to 576 MB")                                                                                                     \
    X(nccl_library_bytes, 386e6, "B", "NCCL 2.28 after init_process_group over 2 GPUs; H200")                          \
    X(nccl_communicator_bytes, 505e6, "B", "buffers of one communicator after its first collective; H200, NVLink")     \
    X(nccl_ring_ctas, 24, "1", "thread blocks, a ring each, that those buffers are for; NCCL 2.28, 4 H200")            \
    X(nccl_split_bytes, 110e6, "B",                                                                                    \
      "of a communicator split from the world's, beside its buffers; hybrid_shard 2 x 2, driver's used - arena, 4 "    \
      "H200")                                                                                                          \
    X(nccl_socket_communicator_bytes, 79e6, "B",                                                                       \
      "buffers of one whose rings leave a node on sockets; ddp over 2 pretended nodes of 2 H200")                      \
    X(nccl_window_bytes, 54e6, "B", "one whose kernels are symmetric, instead of rings' buffers; 4 H200")              \
    X(nccl_copy_communicator_bytes, 255e6, "B", "one split for copies by copy engines, with its window; 4 H200")       \
    X(nccl_one_rank_bytes, 585e6, "B", "NCCL 2.28 with a communicator of one rank (torchrun on one GPU); H200")        \
    /* -- overlap ---------------------------------------------------------------------------------------------- */    \
    X(contention_sm_share, 0.115, "1",                                                                                 \
      "compute time lost per second of hidden collective: NCCL's CTAs take SMs; profiles on 2 H200")                   \
    X(contention_memory_passes, 6.3, "1",                                                                              \
      "HBM passes per byte sent that slow the compute beside a hidden collective; profiles on 2 H200")                 \
    X(rank_speed_deviation, 0.045, "1",                                                                                \
      "standard deviation of compute speed between GPUs of a kind, the slowest of n sets the step; fitted on "         \
      "llm-foundry, torchtitan, fms-fsdp and the H200 runs together (Sinha et al. 2022 report 8 % spreads)")           \
    X(simulated_rank_deviation, 0.060, "1",                                                                            \
      "the same for simulations, where a collective costs the matmuls beside it and no other kernels; what the "       \
      "closed "                                                                                                        \
      "form charges those is in its loss per collective instead. Fitted on all runs, each source weighing the same; "  \
      "0.057 to 0.066 without any one source (dtplan backtest --leave-one-out)")                                       \
    /* -- collectives ------------------------------------------------------------------------------------------ */    \
    X(ring_link_fraction, 0.82, "1",                                                                                   \
      "bus bandwidth of a long ring / one-direction link rate, many ranks; H200 x2, x4 by h200_collectives.csv, A100 " \
      "x8 235/300, B200 x8 682/900")                                                                                   \
    X(ring_few_ranks_loss, 0.33, "1",                                                                                  \
      "that fraction falls by (1 - this/n) for n ranks; vTrain's A100 all-reduce tables, n = 2..8")                    \
    X(ring_own_share, 0.27, "1",                                                                                       \
      "time in which a ring's CTAs copy a byte of their own share / send one; all-gathers and reduce-scatters "        \
      "against "                                                                                                       \
      "all-reduces of 16 MB to 1 GB on 2 and 4 H200, h200_collectives.csv")                                            \
    X(ring_ramp_s, 25e-6, "s",                                                                                         \
      "what large messages take on NVLink beyond NCCL's latencies and their bus rate, FIFOs filling; the same rows")   \
    X(ring_cta_bytes_per_s, 24e9, "B/s",                                                                               \
      "bus rate that one CTA of a ring carries, where collective_ctas limits them; assumed: what fills an H100's "     \
      "or H200's ring with the SMs of contention_sm_share")                                                            \
    X(symmetric_cta_bytes_per_s, 44e9, "B/s",                                                                          \
      "the same of symmetric kernels; NCCL's own table for Hopper, sym_kernels.cc")                                    \
    X(symmetric_link_fraction, 0.72, "1",                                                                              \
      "rate of NCCL's symmetric kernels without multicast / one-direction link rate; published 8 x H100, 128 MiB "     \
      "gathered in 363 us; 320 of 450 GB/s in NCCL's table")                                                           \
    X(copy_link_fraction, 0.60, "1",                                                                                   \
      "rate of all-gathers, all-to-alls by copy engines / one-direction link; NCCL 2.28, 4 H200: 240 to 290 of 450 "   \
      "GB/s, "                                                                                                         \
      "the differences between steps of 7B that copy 20, 30 and 40 GB")                                                \
    X(copy_gather_s, 20e-6, "s", "its latency: flags to and from each peer, before and behind the copies; assumed")    \
    X(network_fraction, 0.93, "1",                                                                                     \
      "bus bandwidth of a long multi-node ring / node network rate; H100 64 GPUs 386/400, B200 32 GPUs 382/400")       \
    X(socket_all_reduce_share, 0.82, "1",                                                                              \
      "rate of an all-reduce's ring on sockets / of an all-gather's: 4 H200 as 2 nodes over loopback, 256 MB: "        \
      "5.94/7.29")                                                                                                     \
    X(socket_ring_share, 0.53, "1",                                                                                    \
      "time in which the threads of one ring on sockets move bytes; others fill the gaps: two rings of 2 ranks at "    \
      "once "                                                                                                          \
      "moved 1.47 times what one of 4 did, all-reduces of 512 MiB (1.32 of 128 MiB, where latency counts), NCCL's "    \
      "one "                                                                                                           \
      "socket each, 4 H200; reports/h200/socket_rings.csv")                                                            \
    X(tp_overlap_exposed, 0.3, "1",                                                                                    \
      "share of tensor parallel collectives that stays exposed with tp_overlap; assumed")                              \
    X(send_latency_s, 10e-6, "s", "of a send between pipeline stages; assumed")                                        \
    X(node_power_factor, 1.8, "1",                                                                                     \
      "a node's power / that of its GPUs; DGX H100 10.2 kW for 8 x 700 W, DGX A100 6.5 for 8 x 400")                   \
    X(site_power_factor, 1.1, "1", "a site's power / that of its nodes (PUE); LLaMA paper, section 6")                 \
    X(pcie_ring_fraction, 0.45, "1", "ring bus bandwidth through PCIe and host memory / one PCIe direction; assumed")

struct dtp_calibration {
#define DTP_CALIBRATION_FIELD(name, value, unit, words) double name;
    DTP_CALIBRATION_TABLE(DTP_CALIBRATION_FIELD)
#undef DTP_CALIBRATION_FIELD
};

extern const struct dtp_calibration dtp_calibration;

/* The same as a list, for printing. */
struct dtp_calibration_row {
    const char *name;
    double value;
    const char *unit, *words;
};
extern const struct dtp_calibration_row dtp_calibration_rows[];
extern const size_t dtp_calibration_row_count;

#endif
