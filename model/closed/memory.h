/* What a job takes of a GPU's memory, of its node's and of NVMe, and whether that fits.
 *
 * What lives on the GPU and when is the step program's to say (program/live_runs.h): its bytes by phase and owner, and
 * the peak of each pool of the allocator. What stands beside a program is added by formulas here: the caching
 * allocator's segments, the CUDA context, NCCL's buffers, state that is offloaded.
 *
 * SEGMENTS of PyTorch's allocator (CUDACachingAllocator.cpp): a pool for each stream, of which none helps another, so
 * that they add up with their own peaks, even where the step's peak has one of them empty. Beyond that, unless segments
 * are expandable:
 *   fragments   what comes and goes cuts the compute stream's pool into pieces: a fitted share of it
 *               (torch_fragmentation)
 *   logits      the optimizer state is made after the first step, out of segments that the first backward freed, and
 *               what stood there moves into the free block of the logits [c T V] at the next forward: the logits then
 *               need a new one, and the rest of the old one lies idle at the peak. A compiled loss has two such blocks
 *               (logits and gradient) and no third to give. The larger of this and the fragments counts
 *   the runtime's own (closed_form_hooks.h), such as buckets that DDP lays anew
 * Against a replay of the allocator over the whole program (sim/caching_allocator.h), columns closed.reserved_bytes and
 * simulated.reserved_bytes of the 1,278 simulated jobs of tests/golden/frozen_jobs.csv (arenas of our executor among
 * them): half within 4.0 %, nine of ten within 23.5 %, a twentieth off by 31 % or more. These are plans whose few large
 * tensors fit no segment that was freed, which no sum of peaks can tell; who must know simulates. A replay of
 * miniatures is no way out: which segment a tensor finds depends on how many layers there are. */
#ifndef DTP_MEMORY_H
#define DTP_MEMORY_H

#include "base/words.h"
#include "machine/machine.h"
#include "plan/plan.h"
#include "program/live_runs.h"

struct dtp_memory_parts; /* memory_parts.h */

/* Whether a plan fits, judged in one place (dtp_memory_judge) by the device figure, what nvidia-smi would show:
 *   fits   DTP_MARGIN_PERCENT of the GPU stay free
 *   tight  it runs, without that margin: the device figure leaves less, or exceeds the GPU only by segments of the
 *          caching allocator, which gives them back before it fails (slowly: it synchronises), because the tensors with
 *          context and NCCL fit
 *   oom    tensors, context and NCCL alone exceed the GPU
 *
 * What is offloaded is judged likewise, by the node's host memory and NVMe; the worst of the three counts. A tight plan
 * ranks behind every plan that fits, and is no failure: exit status 0. */
#define DTP_MARGIN_PERCENT 5u
enum dtp_verdict { DTP_VERDICT_FITS, DTP_VERDICT_TIGHT, DTP_VERDICT_OOM };
/* What is short where a plan does not fit: the reason of its verdict. */
enum dtp_shortage {
    DTP_SHORT_OF_NOTHING,
    DTP_SHORT_OF_MARGIN,  /* tight: the device figure is below the capacity, with less than the margin */
    DTP_SHORT_OF_CACHE,   /* tight: the device figure is above the capacity, tensors, context and NCCL are not */
    DTP_SHORT_OF_TENSORS, /* oom */
    DTP_SHORT_OF_HOST,    /* tight or oom, as are those of NVMe */
    DTP_SHORT_OF_NVME
};

/* Bytes on one GPU (the one with most), host and NVMe bytes per node. */
struct dtp_memory {
    uint64_t phase_bytes[DTP_PHASE_COUNT][DTP_OWNER_COUNT];
    uint64_t phase_total_bytes[DTP_PHASE_COUNT];
    enum dtp_phase peak_phase;
    /* Largest resident amount of each, whatever the phase: what "the gradients take" means. */
    uint64_t params_bytes, grads_bytes, optimizer_bytes, activations_bytes;
    uint64_t temporary_bytes;      /* at the peak: everything that is none of the four above */
    uint64_t after_init_bytes;     /* allocated before the first step (no optimizer state, no gradients) */
    uint64_t allocated_peak_bytes; /* tensors: the largest phase total */
    uint64_t reserved_peak_bytes;  /* the caching allocator's segments */
    uint64_t device_peak_bytes;    /* plus CUDA context and NCCL: what the driver reports as used */
    uint64_t context_bytes, nccl_bytes;
    uint64_t capacity_bytes;
    uint64_t host_bytes, nvme_bytes; /* per node; pinned host buffers as the runtime's allocator rounds them */
    uint64_t host_capacity_bytes, nvme_capacity_bytes; /* of a node; 0: not stated, and not judged */
    enum dtp_verdict verdict;                          /* the worst of GPU, host and NVMe */
    enum dtp_shortage shortage;                        /* and why */
    bool bound; /* there is no step program: tensors are the bound of bounds/bounds.h, and only the peak has owners */
};

/* All of it: of a step program's live bytes, those of one with the same transformer, cluster and plan. `parts` gets the
 * record of what stands beside the program; NULL: none. */
void dtp_memory_of_live(const struct dtp_live_bytes *live, const struct dtp_transformer *transformer,
                        const struct dtp_cluster *cluster, const struct dtp_plan *plan, struct dtp_memory *out,
                        struct dtp_memory_parts *parts);

/* Sets verdict and shortage from the peaks of tensors and device, context, NCCL and the capacities. */
void dtp_memory_judge(struct dtp_memory *memory);

const char *dtp_verdict_text(enum dtp_verdict verdict);
const char *dtp_shortage_text(enum dtp_shortage shortage); /* "margin", "allocator_cache", ...; "" for nothing */
/* "0.31 GiB to spare, fragmentation may tip it over": how much is left or missing, and of what. */
void dtp_memory_words(const struct dtp_memory *memory, char *out, size_t bytes);

#endif
