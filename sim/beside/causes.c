#include "sim/beside/beside.h"

#include "job/variant.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A share of the step, or of the peak, below which nobody looks for a cause: what two runs of one program differ by
 * (reports/h200: 0.5 %) with room for what profilers cost. */
#define LEAST_SHARE 0.02

const char *dtp_cause_words(enum dtp_cause_kind kind)
{
    static const char *const words[] = {
#define X(suffix, text) [DTP_CAUSE_##suffix] = text,
        DTP_CAUSE_TABLE(X)
#undef X
    };
    return words[kind];
}

static struct dtp_cause *add(struct dtp_compared *b, enum dtp_cause_kind kind, double seconds, double bytes,
                             const char *remedy)
{
    if (b->cause_count == DTP_BESIDE_MOST_CAUSES)
        return NULL;
    struct dtp_cause *cause = &b->causes[b->cause_count++];
    *cause = (struct dtp_cause){.kind = kind, .seconds = fabs(seconds), .bytes = fabs(bytes)};
    snprintf(cause->remedy, sizeof cause->remedy, "%s", remedy);
    return cause;
}

static void say(struct dtp_cause *cause, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct dtp_cause *cause, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (cause)
        vsnprintf(cause->evidence, sizeof cause->evidence, format, list);
    va_end(list);
}

static const struct dtp_plan *plan_of(const struct dtp_compared *b)
{
    return b->plan.known ? &b->plan.job->plan : NULL;
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static bool has_math_attention(const struct dtp_observed_time *t)
{
    return t->attention_forwards == 0 && t->softmaxes >= 1;
}

static void judge_attention(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    const struct dtp_plan *plan = plan_of(b);
    bool math = has_math_attention(t);
    if (!math || (plan && plan->attention == DTP_ATTENTION_MATH))
        return;
    double spent_s = t->wide_matmul_s, meant_s = plan ? b->plan.kind_s[DTP_OBSERVED_ATTENTION] : 0;
    if (plan) /* what matmuls and small kernels take beyond their own */
        spent_s = fmax(0, t->kind_s[DTP_OBSERVED_MATMUL] - b->plan.kind_s[DTP_OBSERVED_MATMUL]) +
                  fmax(0, t->kind_s[DTP_OBSERVED_ELEMENTWISE] - b->plan.kind_s[DTP_OBSERVED_ELEMENTWISE]);
    say(add(b, DTP_CAUSE_ATTENTION_KERNEL, spent_s - meant_s, 0,
            "give scaled_dot_product_attention what a fused kernel takes (16 bits, is_causal in place of a mask, heads "
            "of "
            "at most 256), and look at torch.nn.attention.sdpa_kernel"),
        "%.0f softmax kernels a step and no fused attention kernel: scores are written out (math), where %s",
        t->softmaxes, plan ? "the plan has a flash kernel" : "a flash kernel needs none of it");
}

/* On Hopper and later the plan's flash attention is cuDNN's, where that takes the heads (run_torch.py:
 * expected_attention); PyTorch by itself takes FlashAttention 2 first. */
static void judge_flash(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    const struct dtp_plan *plan = plan_of(b);
    if (!plan || plan->attention != DTP_ATTENTION_FLASH || t->flash2_forwards < 1 ||
        (b->plan.job->cluster.gpu.architecture != DTP_GPU_HOPPER &&
         b->plan.job->cluster.gpu.architecture != DTP_GPU_BLACKWELL) ||
        b->plan.job->transformer.head_dim > 128)
        return;
    say(add(b, DTP_CAUSE_ATTENTION_KERNEL, t->kind_s[DTP_OBSERVED_ATTENTION] - b->plan.kind_s[DTP_OBSERVED_ATTENTION],
            0,
            "with torch.nn.attention.sdpa_kernel(SDPBackend.CUDNN_ATTENTION) it is cuDNN's; or plan with --attention "
            "flash2"),
        "%.0f kernels of FlashAttention 2 forward a step, where the plan has cuDNN's: %.1f ms a step, predicted %.1f",
        t->flash2_forwards, 1e3 * t->kind_s[DTP_OBSERVED_ATTENTION], 1e3 * b->plan.kind_s[DTP_OBSERVED_ATTENTION]);
}

static void judge_compiler(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    const struct dtp_plan *plan = plan_of(b);
    if (!plan || !plan->compile || t->on_host || t->compiled > 0 || t->kind_count[DTP_OBSERVED_ELEMENTWISE] == 0)
        return;
    double beyond_s = t->kind_s[DTP_OBSERVED_ELEMENTWISE] - b->plan.kind_s[DTP_OBSERVED_ELEMENTWISE];
    say(add(b, DTP_CAUSE_NOT_COMPILED, beyond_s, 0,
            "call torch.compile on each block (block.compile()) before it is sharded, and look for graph breaks with "
            "TORCH_LOGS=graph_breaks,recompiles"),
        "none of %.0f small kernels a step is a compiler's: they take %.1f ms, predicted %.1f",
        t->kind_count[DTP_OBSERVED_ELEMENTWISE], 1e3 * t->kind_s[DTP_OBSERVED_ELEMENTWISE],
        1e3 * b->plan.kind_s[DTP_OBSERVED_ELEMENTWISE]);
}

static void judge_precision(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    const struct dtp_plan *plan = plan_of(b);
    double steps = plan ? plan->accumulate : 1, wide = t->wide_matmuls;
    bool narrow_meant = !plan || plan->precision.compute != DTP_FP32;
    if (!narrow_meant || wide == 0 || has_math_attention(t))
        return;
    double meant_s = plan ? b->plan.kind_s[DTP_OBSERVED_MATMUL] : 0;
    double beyond_s = plan ? t->kind_s[DTP_OBSERVED_MATMUL] - meant_s : t->wide_matmul_s;
    if (wide > 0.5 * t->matmuls)
        say(add(b, DTP_CAUSE_WIDE_MATMULS, beyond_s, 0,
                "train under torch.autocast(\"cuda\", torch.bfloat16) or FSDP's MixedPrecisionPolicy; is the forward "
                "inside "
                "it?"),
            "%.0f of %.0f matmuls a step are in fp32 or tf32, %.1f ms of them", wide, t->matmuls,
            1e3 * t->wide_matmul_s);
    else if (wide <= 4 * steps) /* the head has one forward and two backward */
        say(add(b, DTP_CAUSE_WIDE_LOGITS, t->wide_matmul_s, 0,
                "leave the head in the compute dtype, and cast its result alone for the loss"),
            "%.0f of %.0f matmuls a step are in fp32 or tf32, as many as a head has: %.1f ms", wide, t->matmuls,
            1e3 * t->wide_matmul_s);
}

static void judge_optimizer(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    const struct dtp_plan *plan = plan_of(b);
    if (t->fused_optimizers > 0 || t->kind_count[DTP_OBSERVED_OPTIMIZER] == 0 ||
        (plan && plan->optimizer != DTP_ADAMW_FUSED))
        return;
    double meant_s = plan ? b->plan.kind_s[DTP_OBSERVED_OPTIMIZER] : 0;
    say(add(b, DTP_CAUSE_OPTIMIZER_NOT_FUSED, t->kind_s[DTP_OBSERVED_OPTIMIZER] - meant_s, 0,
            "torch.optim.AdamW(..., fused=True)"),
        "%.0f kernels of the optimizer a step, %.1f ms, none of a fused one", t->kind_count[DTP_OBSERVED_OPTIMIZER],
        1e3 * t->kind_s[DTP_OBSERVED_OPTIMIZER]);
}

/* A checkpointed block runs its attention forward twice. */
static void judge_checkpointing(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    const struct dtp_plan *plan = plan_of(b);
    if (!plan || t->attention_backwards == 0)
        return;
    double ratio = t->attention_forwards / t->attention_backwards, off_s = b->plan.step_s - t->step_s;
    bool meant =
        plan->checkpointing == DTP_CHECKPOINT_FULL || plan->checkpointing == DTP_CHECKPOINT_SELECTIVE_ATTENTION;
    if (meant && ratio < 1.25)
        say(add(b, DTP_CAUSE_NO_CHECKPOINTING, off_s, 0,
                "wrap the blocks in torch.utils.checkpoint (checkpoint_wrapper) before they are compiled and sharded"),
            "%.0f attention kernels forward and %.0f backward a step: nothing is computed again", t->attention_forwards,
            t->attention_backwards);
    else if (plan->checkpointing == DTP_CHECKPOINT_NONE && ratio > 1.75)
        say(add(b, DTP_CAUSE_CHECKPOINTING, off_s, 0, "leave checkpointing out, or plan with --checkpointing full"),
            "%.0f attention kernels forward and %.0f backward a step: blocks are computed again", t->attention_forwards,
            t->attention_backwards);
}

/* ---- collectives ------------------------------------------------------------------------------------------------- */

static double communication_s(const double seconds[DTP_OBSERVED_KIND_COUNT])
{
    double sum = 0;
    for (int k = DTP_OBSERVED_ALL_GATHER; k <= DTP_OBSERVED_ALL_TO_ALL; k++)
        sum += seconds[k];
    return sum;
}

static void judge_sync(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    static const enum dtp_observed_kind kinds[] = {DTP_OBSERVED_ALL_REDUCE, DTP_OBSERVED_REDUCE_SCATTER};
    const struct dtp_plan *plan = plan_of(b);
    if (!plan || plan->accumulate < 2 || plan->accumulate_sync)
        return;
    for (size_t i = 0; i < 2; i++) {
        double meant = b->plan.kind_count[kinds[i]], seen = t->kind_count[kinds[i]];
        if (meant < 1 || seen < meant * (1 + 0.5 * (plan->accumulate - 1)))
            continue;
        say(add(b, DTP_CAUSE_SYNC_EVERY_MICRO_STEP, t->kind_s[kinds[i]] * (1 - meant / seen), 0,
                "ddp.no_sync(), or FSDP2's set_requires_gradient_sync(False), around all micro-steps but the last"),
            "%.0f %s a step where the plan has %.0f: %.1f for each of its %u micro-steps", seen,
            dtp_observed_kind_words(kinds[i]), meant, seen / plan->accumulate, plan->accumulate);
        return;
    }
}

/* Times of cores beside those of GPUs say nothing. */
static bool same_device(const struct dtp_compared *b, const struct dtp_observed_time *t)
{
    return b->plan.known && t->on_host == (b->plan.job->cluster.gpu.architecture == DTP_GPU_HOST);
}

static void judge_prefetch(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    double all_s = t->kind_s[DTP_OBSERVED_ALL_GATHER], exposed_s = t->exposed_s[DTP_OBSERVED_ALL_GATHER];
    const struct dtp_plan *plan = plan_of(b);
    if (all_s <= 0 || exposed_s < 0.7 * all_s || t->kind_count[DTP_OBSERVED_ALL_GATHER] < 3 ||
        (plan && !plan->prefetch))
        return;
    double meant_s = same_device(b, t) ? b->plan.exposed_s[DTP_OBSERVED_ALL_GATHER] : 0;
    if (meant_s > 0.5 * b->plan.kind_s[DTP_OBSERVED_ALL_GATHER])
        return; /* they cannot hide in the plan either */
    say(add(b, DTP_CAUSE_NO_PREFETCH, exposed_s - meant_s, 0,
            "FSDP1: backward_prefetch=BACKWARD_PRE, forward_prefetch=True; FSDP2: set_modules_to_forward_prefetch and "
            "_backward_prefetch; no synchronisation between blocks"),
        "nothing computes beside %.0f %% of the time of all-gathers, %.1f of %.1f ms a step", 100 * exposed_s / all_s,
        1e3 * exposed_s, 1e3 * all_s);
}

static double compute_s(const struct dtp_observed_time *t)
{
    return t->kind_s[DTP_OBSERVED_MATMUL] + t->kind_s[DTP_OBSERVED_ATTENTION] + t->kind_s[DTP_OBSERVED_ELEMENTWISE] +
           t->kind_s[DTP_OBSERVED_OPTIMIZER];
}

/* Of traces of several ranks; their order is that of the line. True where one was found. */
static bool judge_ranks(struct dtp_compared *b)
{
    double slowest_s = 0, rest_s = 0;
    size_t slowest = 0, traces = 0;
    for (size_t i = 0; i < b->count; i++) {
        if (b->observed[i].what != DTP_OBSERVED_TIME || communication_s(b->observed[i].time.kind_s) <= 0)
            continue;
        double seconds = compute_s(&b->observed[i].time);
        traces++;
        rest_s += seconds;
        slowest = seconds > slowest_s ? i : slowest;
        slowest_s = fmax(slowest_s, seconds);
    }
    if (traces < 2)
        return false;
    rest_s = (rest_s - slowest_s) / (double)(traces - 1);
    if (slowest_s < 1.05 * rest_s)
        return false;
    const char *slash = strrchr(b->observed[slowest].path, '/');
    say(add(b, DTP_CAUSE_SLOW_RANK, slowest_s - rest_s, 0,
            "look at that GPU's clocks, temperature and power (nvidia-smi -q -d PERFORMANCE), and at what else runs "
            "there; "
            "dtplan simulate --straggler says what it costs"),
        "kernels of %.80s take %.1f ms a step, those of the other ranks %.1f: all wait for it in collectives",
        slash ? slash + 1 : b->observed[slowest].path, 1e3 * slowest_s, 1e3 * rest_s);
    return true;
}

static bool has(const struct dtp_compared *b, enum dtp_cause_kind kind)
{
    for (size_t i = 0; i < b->cause_count; i++)
        if (b->causes[i].kind == kind)
            return true;
    return false;
}

static void judge_waiting(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    double seen_s = communication_s(t->exposed_s), meant_s = communication_s(b->plan.exposed_s);
    if (!same_device(b, t) || seen_s - meant_s < 2 * LEAST_SHARE * t->step_s || has(b, DTP_CAUSE_NO_PREFETCH) ||
        has(b, DTP_CAUSE_SYNC_EVERY_MICRO_STEP) || has(b, DTP_CAUSE_SLOW_RANK) || has(b, DTP_CAUSE_INPUT_STALL))
        return;
    say(add(b, DTP_CAUSE_WAITING_COLLECTIVES, seen_s - meant_s, 0,
            "name the traces of several ranks on one line: a rank that computes longer than the others shows; if none "
            "does, "
            "measure the network with dtplan probe"),
        "%.1f ms a step of collectives stand alone, predicted %.1f: they wait for another rank, or the network is "
        "slower",
        1e3 * seen_s, 1e3 * meant_s);
}

/* ---- the host ---------------------------------------------------------------------------------------------------- */

static double stall_s(const struct dtp_observed_time *t)
{
    return fmax(t->host_gap_s, t->loader_s);
}

/* Of the trace whose GPU waits longest: the others wait for it in collectives. */
static void judge_stall(struct dtp_compared *b)
{
    const struct dtp_observed *longest = NULL;
    for (size_t i = 0; i < b->count; i++)
        if (b->observed[i].what == DTP_OBSERVED_TIME &&
            (!longest || stall_s(&b->observed[i].time) > stall_s(&longest->time)))
            longest = &b->observed[i];
    if (!longest || stall_s(&longest->time) <= 1.5 * LEAST_SHARE * longest->time.step_s)
        return;
    const char *slash = strrchr(longest->path, '/'), *device = longest->time.on_host ? "host" : "GPU";
    double seconds = stall_s(&longest->time);
    say(add(b, DTP_CAUSE_INPUT_STALL, seconds, 0,
            "more workers of the DataLoader (num_workers, pin_memory, prefetch_factor), batches copied with "
            "non_blocking=True"),
        longest->time.loader_s > 0.5 * seconds
            ? "the %s of %.80s is idle for %.1f ms a step while the host is inside PyTorch's DataLoader"
            : "the %s of %.80s is idle for %.1f ms a step while the host does nothing that PyTorch knows: it waits for "
              "data, sleeps, or is in Python between steps",
        device, slash ? slash + 1 : longest->path, 1e3 * seconds);
}

static void judge_host(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    double late_s = t->idle_s - stall_s(t) - b->plan.idle_s;
    if (t->host_known && !t->on_host && late_s > 5 * LEAST_SHARE * t->step_s && b->plan.known)
        say(add(b, DTP_CAUSE_HOST_BOUND, late_s, 0,
                "torch.compile, larger micro-batches, or CUDA graphs; a profiler's own cost shows here too"),
            "the GPU is idle for %.1f ms a step between kernels while the host launches them, predicted %.1f",
            1e3 * (t->idle_s - stall_s(t)), 1e3 * b->plan.idle_s);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Bytes of tensors of one size, as the allocator rounds it. */
static uint64_t alive_of(const struct dtp_observed_memory *m, uint64_t bytes, uint64_t *count)
{
    uint64_t rounded = (bytes + 511) / 512 * 512;
    for (size_t i = 0; i < m->size_count; i++)
        if (bytes > 0 && (m->sizes[i].bytes == bytes || m->sizes[i].bytes == rounded)) {
            *count += m->sizes[i].count;
            return m->sizes[i].count * m->sizes[i].bytes;
        }
    return 0;
}

static void judge_scores(struct dtp_compared *b, const struct dtp_observed_memory *m)
{
    const struct dtp_job *job = b->plan.job;
    uint64_t count = 0,
             scores = job->plan.micro_batch * job->transformer.heads * job->plan.sequence * job->plan.sequence;
    if (job->plan.attention == DTP_ATTENTION_MATH)
        return;
    uint64_t bytes = alive_of(m, 4 * scores, &count) + alive_of(m, 2 * scores, &count);
    if (count > 0)
        say(add(b, DTP_CAUSE_ATTENTION_KERNEL, 0, (double)bytes,
                "give scaled_dot_product_attention what a fused kernel takes (16 bits, is_causal in place of a mask)"),
            "%" PRIu64 " tensors of %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64 " scores are alive at the peak",
            count, (uint64_t)job->plan.micro_batch, job->transformer.heads, job->plan.sequence, job->plan.sequence);
}

static void judge_logits(struct dtp_compared *b, const struct dtp_observed_memory *m)
{
    const struct dtp_job *job = b->plan.job;
    uint64_t wide = 0, any = 0, logits = job->plan.micro_batch * job->plan.sequence * job->transformer.vocab;
    uint64_t bytes = alive_of(m, 4 * logits, &wide);
    bytes += alive_of(m, 2 * logits, &any);
    if (wide > 0 && (double)bytes > (double)b->plan.logits_bytes + 3.6 * (double)logits)
        say(add(b, DTP_CAUSE_WIDE_LOGITS, 0, (double)bytes - (double)b->plan.logits_bytes,
                "compile the loss, or take it in chunks of tokens; leave the head in the compute dtype"),
            "%" PRIu64 " fp32 tensors of %" PRIu64 " x %" PRIu64
            " logits are alive at the peak, more than the plan's loss has",
            wide, (uint64_t)job->plan.micro_batch * job->plan.sequence, job->transformer.vocab);
}

static void judge_kept(struct dtp_compared *b, const struct dtp_observed_memory *m)
{
    const struct dtp_job *job = b->plan.job;
    uint64_t tensors = 0;
    if (job->plan.checkpointing == DTP_CHECKPOINT_NONE)
        return;
    for (size_t i = 0; i < m->size_count; i++)
        tensors += m->sizes[i].forward_count;
    struct dtp_variant *variant = calloc(1, sizeof *variant);
    struct dtp_plan asked = job->asked;
    asked.checkpointing = DTP_CHECKPOINT_NONE;
    bool predicted = variant && dtp_variant_predict(job, &asked, job->cluster.gpus, variant, NULL, 0) == DTP_OK;
    double none = predicted ? (double)variant->prediction.memory.allocated_peak_bytes : NAN;
    double seen = (double)m->peak_bytes - (double)m->part_bytes[DTP_OBSERVED_PART_BEFORE],
           meant = (double)b->plan.peak_bytes;
    free(variant);
    if (predicted && seen > 1.05 * meant && fabs(seen - none) < fabs(seen - meant) &&
        tensors > 4 * job->transformer.layers)
        say(add(b, DTP_CAUSE_NO_CHECKPOINTING, 0, seen - meant,
                "wrap the blocks in torch.utils.checkpoint (checkpoint_wrapper) before they are compiled and sharded"),
            "%" PRIu64
            " tensors of forward are alive at the peak, %.0f a layer, and without checkpointing the plan has %.2f GiB",
            tensors, (double)tensors / (double)job->transformer.layers, none / 0x1p30);
}

static void judge_memory(struct dtp_compared *b, const struct dtp_observed_memory *m)
{
    if (m->leak.count > 0 && (double)m->leak.bytes > LEAST_SHARE / 4 * (double)m->peak_bytes)
        say(add(b, DTP_CAUSE_LEAK, 0, (double)m->leak.bytes,
                "keep numbers in place of tensors (loss.item(), detach()), and no list of outputs across steps"),
            "%" PRIu64 " tensors made in %.120s are never freed, %.1f MiB each", m->leak.count, m->leak.where,
            (double)m->leak.bytes / (double)m->leak.count / 0x1p20);
    if (!b->plan.known)
        return;
    judge_scores(b, m);
    judge_logits(b, m);
    judge_kept(b, m);
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static double weight(const struct dtp_compared *b, const struct dtp_cause *cause)
{
    double step_s = 0, peak_bytes = 0;
    for (size_t i = 0; i < b->count; i++) {
        step_s = fmax(step_s, b->observed[i].time.step_s);
        peak_bytes = fmax(peak_bytes, (double)b->observed[i].memory.peak_bytes);
    }
    return (step_s > 0 ? cause->seconds / step_s : 0) + (peak_bytes > 0 ? cause->bytes / peak_bytes : 0);
}

static void judge_time(struct dtp_compared *b, const struct dtp_observed_time *t)
{
    judge_attention(b, t);
    judge_flash(b, t);
    judge_compiler(b, t);
    judge_precision(b, t);
    judge_optimizer(b, t);
    judge_checkpointing(b, t);
    judge_sync(b, t);
    judge_prefetch(b, t);
    judge_host(b, t);
    judge_waiting(b, t);
}

/* Of several ranks the one whose own kernels are seen: the first trace. Others are read for what ranks tell together.
 */
void dtp_beside_judge(struct dtp_compared *b)
{
    bool timed = false;
    b->cause_count = 0;
    judge_ranks(b);
    judge_stall(b);
    for (size_t i = 0; i < b->count; i++) {
        if (b->observed[i].what == DTP_OBSERVED_TIME && !timed)
            judge_time(b, &b->observed[i].time);
        timed |= b->observed[i].what == DTP_OBSERVED_TIME;
        if (b->observed[i].what == DTP_OBSERVED_MEMORY)
            judge_memory(b, &b->observed[i].memory);
    }
    for (size_t i = 1; i < b->cause_count; i++) { /* a handful: by insertion */
        struct dtp_cause moved = b->causes[i];
        size_t at = i;
        for (; at > 0 && weight(b, &moved) > weight(b, &b->causes[at - 1]); at--)
            b->causes[at] = b->causes[at - 1];
        b->causes[at] = moved;
    }
}
