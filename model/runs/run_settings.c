/* From a row's words to settings of a scenario: the same keys a person would type, so that no rule is written twice.
 * What a row does not state follows from its framework (run_framework.h). */
#include "base/bytes.h"
#include "job/estimate.h"
#include "machine/measured.h"
#include "net/models.h"
#include "runs/run_framework.h"
#include "runs/run_table.h"
#include "runs/run_writer.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- whose rules ---------------------------------------------------------------------------------------------- */

static bool is_pytorch(const char *runtime)
{
    return strcmp(runtime, "torch") == 0 || strcmp(runtime, "peft") == 0;
}

/* ZeRO-2 and ZeRO-3 exist in DeepSpeed only, whatever program uses it; PyTorch's names only in PyTorch, which is whom
 * Megatron-FSDP follows. */
static const char *runtime_of(const struct writer *w)
{
    const char *strategy = w->run->strategy_key, *runtime = w->framework->runtime;
    if (strcmp(runtime, "dtplan") == 0)
        return runtime;
    if (strcmp(strategy, "zero2") == 0 || strcmp(strategy, "zero3") == 0)
        return "deepspeed";
    return strstr(strategy, "shard") && !is_pytorch(runtime) ? "torch" : runtime;
}

static bool is_fsdp(const struct writer *w)
{
    return strstr(w->run->strategy_key, "shard") && is_pytorch(runtime_of(w));
}

/* Rules differ between FSDP1 and FSDP2; "FSDP" without a number is from before there were two. */
static bool is_fsdp1(const struct writer *w)
{
    const char *text = w->run->framework;
    if (strcasestr(text, "FSDP1"))
        return true;
    if (strcasestr(text, "FSDP2"))
        return false;
    return w->framework->fsdp1 || (!*w->framework->word && strcasestr(text, "FSDP"));
}

/* ---- model and cluster ----------------------------------------------------------------------------------------- */

/* `named`: a preset with what run tables have no columns for, which the scenario names too. */
static void write_model(struct writer *w, const struct dtp_transformer *shape, bool named)
{
    dtp_run_write_ahead(w);
    if (named) {
        set_text(w, "model", w->run->model_name);
        set_count(w, "seq", w->run->sequence);
        return;
    }
    set(w, "name", "%s", shape->name);
    set_count(w, "layers", shape->layers);
    set_count(w, "hidden", shape->hidden);
    set_count(w, "heads", shape->heads);
    set_count(w, "kv_heads", shape->kv_heads);
    set_count(w, "head_dim", shape->head_dim);
    set_count(w, "ffn", shape->ffn);
    set_count(w, "vocab", shape->vocab);
    if (shape->positions)
        set_count(w, "positions", shape->positions);
    set(w, "norm", "%s", dtp_norm_text(shape->norm));
    set(w, "activation", "%s", dtp_activation_text(shape->activation));
    set(w, "position", "%s", dtp_position_text(shape->position));
    set(w, "parallel_block", "%s", dtp_parallel_block_text(shape->parallel_block));
    set(w, "norm_place", "%s", dtp_norm_place_text(shape->norm_place));
    set_switch(w, "norm_bias", shape->norm_bias);
    set_switch(w, "qkv_bias", shape->qkv_bias);
    set_switch(w, "attention_output_bias", shape->attention_output_bias);
    set_switch(w, "mlp_bias", shape->mlp_bias);
    bool tied =
        shape->tied_head && !w->framework->untied_head && !strstr(w->run->notes, "head with weights of its own");
    set_switch(w, "tied_head", tied && (!w->framework->reference_script || is_fsdp(w)));
    set_switch(w, "embedding_norm", shape->embedding_norm);
    set_switch(w, "qk_norm", shape->qk_norm);
    set_switch(w, "qk_norm_wide", shape->qk_norm_wide);
    set_count(w, "seq", w->run->sequence);
    dtp_run_write_kinds(w, shape);
}

/* Could the run have been on nodes of this machine? `exact`: of its full size. */
static bool machine_suits(const struct dtp_run *run, const struct dtp_machine *machine, bool exact)
{
    uint64_t node = run->gpus_per_node ? run->gpus_per_node : machine->gpus;
    node = node < run->gpus ? node : run->gpus;
    bool linked = node == run->gpus || machine->network_bytes_per_s > 0 || run->node_network_gbit_per_s > 0;
    return linked && (exact ? machine->gpus == node : machine->gpus >= node);
}

/* That which notes name as machine=KEY; else the first machine of that GPU, or of any, that suits; NULL leaves the
 * refusal to the scenario. A machine of just the stated node size comes before a part of a larger one, whose network is
 * meant for more GPUs. */
static const struct dtp_machine *choose_machine(const struct dtp_run *run, const struct dtp_catalog *catalog)
{
    const struct dtp_gpu *gpu = dtp_catalog_gpu(catalog, run->gpu_key, NULL, 0, NULL);
    const char *noted = strstr(run->notes, "machine=");
    for (size_t i = 0; noted && i < catalog->machine_count; i++) {
        size_t length = strcspn(noted + strlen("machine="), "; ");
        if (strlen(catalog->machines[i].key) == length &&
            strncmp(noted + strlen("machine="), catalog->machines[i].key, length) == 0)
            return &catalog->machines[i];
    }
    for (int pass = 0; gpu && run->gpus && pass < 4; pass++) {
        const char *held = pass < 2 ? gpu->key : "";
        for (size_t i = 0; i < catalog->machine_count; i++)
            if (strcmp(catalog->machines[i].gpu_key, held) == 0 &&
                machine_suits(run, &catalog->machines[i], pass % 2 == 0 && run->gpus_per_node))
                return &catalog->machines[i];
    }
    return NULL;
}

/* The machine file, for a run that was on its GPU and could have been on nodes of its machine. */
static const char *measured_machine(const struct dtp_run *run, const struct dtp_catalog *catalog)
{
    const struct dtp_measured_machine *measured = run->machine ? dtp_catalog_measured(catalog, run->machine) : NULL;
    if (!measured)
        return NULL;
    const char *key = dtp_measured_about(measured->times, "gpu_key");
    const struct dtp_gpu *gpu = dtp_catalog_gpu(catalog, run->gpu_key, NULL, 0, NULL);
    const struct dtp_machine *machine = dtp_catalog_machine(catalog, measured->machine_key, NULL, 0, NULL);
    bool same = gpu && gpu == dtp_catalog_gpu(catalog, key, NULL, 0, NULL);
    return same && machine && machine_suits(run, machine, false) ? measured->path : NULL;
}

/* A rack of 72 joins all of its GPUs by NVLink, which is what a node means here; its trays of 4 share nothing that they
 * do not share with the rest. Jobs take as many of each rack as divides them. */
static uint64_t rack_of(uint64_t gpus)
{
    uint64_t of_rack = 72;
    while (gpus % of_rack)
        of_rack--;
    return of_rack;
}

/* Nodes are filled one after the other: a job smaller than a node takes part of one. What is not stated (GPUs a node,
 * network) is that of the machine the GPU usually comes in. */
static void write_cluster(struct writer *w, const struct dtp_catalog *catalog)
{
    const struct dtp_run *run = w->run;
    const struct dtp_machine *machine = choose_machine(run, catalog);
    const char *measured = measured_machine(run, catalog);
    uint64_t node = strstr(run->links, "NVL72") ? rack_of(run->gpus) : run->gpus_per_node;
    dtp_run_write_power(w, dtp_catalog_gpu(catalog, run->gpu_key, NULL, 0, NULL));
    set(w, "gpu", "%s", run->gpu_key);
    if (measured || machine)
        set_text(w, "machine", measured ? measured : machine->key);
    set_count(w, "gpus", run->gpus);
    if (node)
        set_count(w, "gpus_per_node", node < run->gpus ? node : run->gpus);
    double trays = node && run->gpus_per_node ? (double)node / (double)run->gpus_per_node : 1; /* of what is stated */
    if (run->node_network_gbit_per_s > 0)
        set(w, "network_gbit_per_s", "%.17g", run->node_network_gbit_per_s * trays);
    if (strstr(run->network, "sockets") || strstr(run->network, "TCP"))
        set(w, "network", "sockets");
    else if (strstr(run->network, "EFA"))
        set(w, "network", "efa");
    else if (strstr(run->network, "Omni-Path"))
        set(w, "network", "opa");
}

/* ---- batch ----------------------------------------------------------------------------------------------------- */

/* Ranks that hold one copy of the model. */
static uint64_t slices_of(const struct dtp_run *run)
{
    const uint64_t ways[] = {run->tp, run->pp, run->cp};
    uint64_t product = 1;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        product = dtp_bytes_product(product, ways[i] ? ways[i] : 1);
    return product;
}

/* Micro-steps a step: the column, or what the global batch leaves after GPUs and micro batch, or 1 when neither is
 * given. Three columns that contradict each other are no configuration. */
static uint64_t accumulation(struct writer *w)
{
    const struct dtp_run *run = w->run;
    uint64_t data_ranks = run->gpus / slices_of(run);
    uint64_t micro_step = run->micro_batch * data_ranks, global = run->global_batch;
    if (!run->accumulate && !global)
        return 1;
    if (!run->accumulate && micro_step && global % micro_step == 0)
        return global / micro_step;
    if (!run->accumulate || (global && micro_step * run->accumulate != global)) {
        REFUSE(w,
               "micro_batch_per_gpu %" PRIu64 " x %" PRIu64 " data-parallel ranks x grad_accum %" PRIu64
               " does not give global_batch %" PRIu64,
               run->micro_batch, data_ranks, run->accumulate, global);
        return 1;
    }
    return run->accumulate;
}

static void write_batch(struct writer *w)
{
    const struct dtp_run *run = w->run;
    const uint64_t most = UINT32_MAX; /* keeps the product below 2^64 */
    if (!run->micro_batch)
        UNSTATED(w, "micro_batch_per_gpu is empty");
    else if (run->micro_batch > most || run->gpus > most || run->accumulate > most)
        REFUSE(w, "micro_batch_per_gpu, gpus or grad_accum is beyond %" PRIu64, most);
    else if (run->gpus) {
        set_count(w, "micro_batch", run->micro_batch);
        set_count(w, "accumulate", accumulation(w));
        if (w->framework->fsdp_syncs_always && is_fsdp(w) && run->pp <= 1)
            set_switch(w, "accumulate_sync", true);
    }
}

/* ---- strategy -------------------------------------------------------------------------------------------------- */

/* What sources call schedules: Megatron's zero-bubble fork, torch.distributed.pipelining, and plainly. */
static const char *schedule_word(const char *text)
{
    static const char *const others[][2] = {
        {"interleaved_1f1b", "interleaved"}, {"Interleaved1F1B", "interleaved"},
        {"LoopedBFS", "looped-bfs"},         {"zbv", "zb-v"},
        {"ZBVZeroBubble", "zb-v"},           {"InterleavedZeroBubble", "zb-interleaved"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcasecmp(text, others[i][0]) == 0)
            return others[i][1];
    return text; /* a schedule of ours, or refused as none */
}

/* Chunks of the model a rank of the pipeline: the column, or what notes like "VP=8" say. */
static uint64_t virtual_stages_of(const struct dtp_run *run)
{
    const char *note = strstr(run->notes, "VP=");
    uint64_t noted = note ? strtoull(note + strlen("VP="), NULL, 10) : 0;
    return run->virtual_stages ? run->virtual_stages : noted;
}

static bool loops(const char *schedule)
{
    return strstr(schedule_word(schedule), "interleaved") != NULL;
}

static void write_pipeline(struct writer *w)
{
    const struct dtp_run *run = w->run;
    uint64_t chunks = virtual_stages_of(run);
    char schedule[32];
    set_count(w, "pp", run->pp);
    bool split = strncmp(schedule_word(run->schedule), "zb", 2) == 0;
    if (split && strstr(run->notes, "optimizer post-validation") && !strstr(run->notes, "instead of post-validation"))
        set_switch(w, "post_validation", true);
    if (w->framework->counts_ends || strstr(run->notes, "first and last stage have one layer less"))
        set(w, "stages", "counted");
    dtp_run_write_layout(w);
    if (w->framework->counts_ends)
        chunks = chunks || !loops(run->schedule) ? chunks : 2;
    if (chunks > 1)
        set_count(w, "virtual_stages", chunks);
    snprintf(schedule, sizeof schedule, "%s", schedule_word(run->schedule));
    for (char *c = schedule; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    if (*run->stages)
        dtp_run_write_stages(w, schedule);
    bool plain = strcmp(schedule, "1f1b") == 0 || (strcmp(schedule, "interleaved") == 0 && chunks > 1);
    if (*schedule && !plain) /* which is the default */
        set_text(w, "schedule", schedule);
}

/* Megatron-Bridge's recipes leave tp_comm_overlap out of nvfp4's, in which it cannot be (scripts/performance/configs).
 */
static bool has_user_buffers(struct writer *w)
{
    struct dtp_precision precision;
    return !flag(w, "fp8", w->run->fp8, false) || !dtp_precision_recipe(dtp_run_fp8_precision(w), &precision) ||
           dtp_fp8_has_user_buffers(precision.fp8_recipe);
}

static void write_parallelism(struct writer *w)
{
    const struct dtp_run *run = w->run;
    uint64_t slices = slices_of(run), data_ranks = slices ? run->gpus / slices : 0;
    bool spread = flag(w, "sequence_parallel", run->sequence_parallel,
                       (w->framework->sequence_parallel || strstr(run->notes, "sequence parallel")) &&
                           !strstr(run->notes, "no sequence-parallel"));
    if (run->tp > 1) {
        set_count(w, "tp", run->tp);
        set_switch(w, "sequence_parallel", spread);
        bool own_pipeline = strcmp(run->strategy_key, "ddp") == 0; /* under ZeRO the fork's is DeepSpeed's */
        if (run->pp > 1 && !spread && w->framework->scatter_gather && own_pipeline)
            set_switch(w, "megatron_scatter_gather", true);
        bool overlaps = w->framework->overlaps && has_user_buffers(w) && !strstr(run->notes, "tp_comm_overlap=False");
        set_switch(w, "tp_overlap",
                   (overlaps && strcmp(runtime_of(w), "megatron") == 0) || strstr(run->notes, "async TP"));
    }
    if (strstr(run->notes, "weight casts live for a stage"))
        REFUSE(w, "autocast around each forward of a stage is not modelled");
    if (strstr(run->notes, "loss parallel off"))
        set_switch(w, "gathered_logits", true);
    if (strstr(run->notes, "few patterns fused"))
        REFUSE(w, "async tensor parallelism that the compiler found few places for is not modelled");
    if (run->cp > 1)
        set_count(w, "cp", run->cp);
    if (run->pp > 1)
        write_pipeline(w);
    if (!run->gpus)
        UNSTATED(w, "gpus is empty");
    else if (!slices || run->gpus % slices)
        REFUSE(w, "tp x pp x cp is %" PRIu64 ", which does not divide gpus %" PRIu64, slices, run->gpus);
    else if (run->dp && run->dp != data_ranks)
        REFUSE(w, "dp %" PRIu64 " is not gpus %" PRIu64 " / (tp x pp x cp)", run->dp, run->gpus);
}

/* On one GPU of each part of a model all strategies are one. ddp, except where that runtime has none or offloads only
 * what is sharded. */
static const char *single_strategy(const struct writer *w)
{
    const char *runtime = runtime_of(w), *offload = w->run->offload_key;
    bool offloads = *offload && strcmp(offload, "none");
    if (strcmp(runtime, "deepspeed") == 0 || (strcmp(runtime, "dtplan") == 0 && offloads))
        return w->framework->single && *offload == '\0' ? w->framework->single : "zero1";
    /* divided by tp or pp, PyTorch's mixed precision is FSDP2's on a mesh of one rank */
    bool unsharded = w->framework->names_fsdp && !strcasestr(w->run->framework, "FSDP");
    bool shards = offloads || ((w->run->tp > 1 || w->run->pp > 1) && !unsharded);
    return is_pytorch(runtime) && shards ? "full_shard" : "ddp";
}

/* Sources call data parallelism with Megatron's distributed optimizer, which is ZeRO-1, by either name. */
static const char *strategy_of(const struct writer *w)
{
    const char *strategy = w->run->strategy_key, *notes = w->run->notes;
    bool distributed = strstr(notes, "distributed optimizer") || strstr(notes, "distributed_fused_adam");
    return strcmp(strategy, "ddp") == 0 && strcmp(runtime_of(w), "megatron") == 0 && distributed ? "zero1" : strategy;
}

static void write_strategy(struct writer *w)
{
    const struct dtp_run *run = w->run;
    write_parallelism(w);
    set(w, "runtime", "%s", runtime_of(w));
    if (!*run->strategy_key)
        UNSTATED(w, "strategy_key is empty");
    else if (strcmp(run->strategy_key, "single") == 0) {
        if (run->gpus > slices_of(run))
            REFUSE(w, "strategy_key single contradicts gpus %" PRIu64 " of which tp x pp x cp are %" PRIu64, run->gpus,
                   slices_of(run));
        set(w, "strategy", "%s", single_strategy(w));
    } else
        set(w, "strategy", "%s", strategy_of(w));
    if (strcmp(runtime_of(w), "megatron") == 0)
        set_switch(w, "megatron_overlap", w->framework->overlaps);
    if (w->framework->megatron_layers)
        set_switch(w, "megatron_layers", true);
    if (strcmp(runtime_of(w), "deepspeed") == 0)
        dtp_run_write_engine(w);
    if (w->framework->bf16_optimizer && strcmp(run->param_dtype, "bf16") == 0)
        set_switch(w, "bf16_optimizer", true);
    if (run->shard_group)
        set_count(w, "shard_group", run->shard_group);
    if (is_fsdp(w) && is_fsdp1(w))
        set_switch(w, "fsdp1", true);
    if (w->framework->reference_script)
        set_switch(w, "process_group", true);
    if (strstr(run->notes, "CUDA_LAUNCH_BLOCKING=1"))
        set_switch(w, "launch_blocking", true);
    if (strstr(run->notes, "gradient_as_bucket_view"))
        set_switch(w, "ddp_bucket_view", true);
}

/* ---- precision ------------------------------------------------------------------------------------------------- */

/* An unstated dtype is its program's, or bf16: fp16 runs at the same rate on every GPU that has both. */
static void write_precision(struct writer *w)
{
    const struct dtp_run *run = w->run;
    const char *unstated = w->framework->dtype ? w->framework->dtype : "bf16";
    const char *dtype = *run->param_dtype ? run->param_dtype : unstated;
    bool pure = strstr(run->notes, "pure bf16 params") || strstr(run->notes, "bf16 Adam m,v") ||
                strstr(run->precision_recipe, "pure") || strstr(run->precision_recipe, "bf16 state");
    bool fp8 = flag(w, "fp8", run->fp8, false) || strcmp(dtype, "fp8") == 0;
    if (fp8)
        set(w, "precision", "%s", dtp_run_fp8_precision(w));
    else if (strcmp(dtype, "bf16") == 0)
        set(w, "precision", pure ? "bf16-pure" : "bf16-mixed");
    else if (strcmp(dtype, "fp16") == 0)
        set(w, "precision", "fp16-mixed");
    else if (strcmp(dtype, "fp32") == 0)
        set(w, "precision", "fp32");
    else
        REFUSE(w, "param_dtype '%.20s' is unknown; known: bf16, fp16, fp32, fp8", dtype);
    if (fp8 && pure) { /* llmq: bf16 weights, gradients, master and moments around fp8 matmuls */
        set(w, "param_dtype", "bf16");
        set(w, "master_dtype", "bf16");
        set(w, "moment_dtype", "bf16");
        set(w, "reduce_dtype", "bf16");
    } else if (w->framework->reduce && (is_fsdp(w) || strcmp(runtime_of(w), "megatron") == 0) && strcmp(dtype, "fp32"))
        set(w, "reduce_dtype", "%s", w->framework->reduce);
    if (strcmp(runtime_of(w), "megatron") == 0 && strcmp(strategy_of(w), "zero1") == 0 &&
        (fp8 || strcmp(dtype, "bf16") == 0))
        dtp_run_write_distributed(w, fp8);
}

/* ---- memory choices -------------------------------------------------------------------------------------------- */

static void write_selective(struct writer *w)
{
    const char *notes = w->run->notes;
    enum dtp_run_selective selective = w->framework->selective;
    if (strstr(notes, "selective(op)"))
        selective = DTP_SELECTIVE_MATMUL;
    if (strstr(notes, "selective(layer)"))
        selective = DTP_SELECTIVE_EVERY_SECOND_BLOCK;
    switch (selective) {
    case DTP_SELECTIVE_ATTENTION: set(w, "checkpointing", "selective-attention"); break;
    case DTP_SELECTIVE_MATMUL: set(w, "checkpointing", "selective"); break;
    case DTP_SELECTIVE_EVERY_SECOND_BLOCK: set(w, "checkpointing", "every-2"); break;
    case DTP_SELECTIVE_POINTWISE:
        /* Norms and SwiGLU made again cost bandwidth that an executor of fused kernels hides; matmuls do not. */
        if (strstr(notes, "recompute-ffn") || strstr(notes, "recompute-att"))
            REFUSE(w, "recomputing only part of a block's matmuls is not modelled");
        set(w, "checkpointing", "none");
        break;
    }
}

/* Not stated means none: a source that recomputes says so, for it costs a quarter of the speed. */
static void write_checkpointing(struct writer *w)
{
    const char *text = w->run->checkpointing;
    if (w->run->experts && strcmp(runtime_of(w), "megatron") == 0 && strcmp(text, "full"))
        set(w, "checkpointing", "none"); /* parts that run again are named apart */
    else if (strcmp(text, "selective") == 0)
        write_selective(w);
    else if (strncmp(text, "every", 5) == 0 && isdigit((unsigned char)text[5]))
        set(w, "checkpointing", "every-%s", text + 5); /* as the script of h200_more_runs.csv writes it */
    else
        set(w, "checkpointing", "%s", *text ? text : "none");
}

static bool in_set(const char *set_text, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = set_text; (at = strstr(at, word)); at += length)
        if ((at == set_text || at[-1] == '+') && (at[length] == 0 || at[length] == '+'))
            return true;
    return false;
}

/* FSDP's CPUOffloadPolicy moves parameters, gradients and optimizer together; DeepSpeed moves gradients along with the
 * optimizer; our executor moves the optimizer's state (with the master weights) only. */
static void write_offload(struct writer *w)
{
    static const char *const known[] = {"params", "weights", "master", "optimizer", "gradients", "activations"};
    const char *text = w->run->offload_key, *runtime = runtime_of(w);
    size_t length = 0;
    if (!*text || strcmp(text, "none") == 0)
        return;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        length += in_set(text, known[i]) ? strlen(known[i]) + 1 : 0;
    bool executor = strcmp(runtime, "dtplan") == 0;
    bool params = in_set(text, "params"), optimizer = in_set(text, "optimizer");
    if (length != strlen(text) + 1)
        REFUSE(w,
               "offload_key '%.60s' is no +-joined set of params, weights, master, optimizer, gradients, activations",
               text);
    else if (in_set(text, "activations") || in_set(text, "weights") || (executor && in_set(text, "gradients")))
        REFUSE(w, "offload of %s is not modelled%s",
               in_set(text, "activations") ? "activations"
               : in_set(text, "weights")   ? "weights"
                                           : "gradients",
               executor ? " under the dtplan runtime" : "");
    else if (params && !executor)
        set(w, "offload", "params");
    else if (optimizer && !params && !is_pytorch(runtime))
        set(w, "offload", "optimizer");
    else
        REFUSE(w, "offload of %.60s is not modelled under %s", text, runtime);
}

/* Transformer Engine without cuDNN's attention, as its environment may ask for, calls the package flash-attn. */
static void write_kernels(struct writer *w)
{
    const struct dtp_run *run = w->run;
    const struct dtp_run_framework *framework = w->framework;
    bool flash = flag(w, "flash_attention", run->flash_attention, !framework->unfused_unless_asked);
    bool compiled = flag(w, "compile", run->compile, false);
    set_switch(w, "compile", compiled);
    if (compiled && framework->eager_loss && !strstr(run->notes, "loss compiled"))
        set_switch(w, "compile_loss", false);
    if (framework->keeps_root && is_fsdp(w))
        set_switch(w, "keep_root", true);
    if (is_fsdp(w) && strstr(run->notes, "[norm, output]"))
        set_switch(w, "wrap_ends", true);
    else if (is_fsdp(w) && framework->wraps_ends)
        set(w, "wrap_ends", "auto");
    const char *attention = strstr(run->notes, "NVTE_FUSED_ATTN=0") ? "flash2" : framework->attention;
    set(w, "attention", "%s", flash ? attention : "math");
    if (framework->dropout > 0 ||
        strstr(run->notes, "dropout=0.1")) /* of pretrain_gpt.py where no argument says else */
        set(w, "dropout", "%g", framework->dropout > 0 ? framework->dropout : 0.1);
    set(w, "loss", "%s",
        strstr(run->notes, "lmhead-chunks")                      ? "chunked"
        : strstr(run->notes, "foak")                             ? "fused"
        : strstr(run->notes, "no cross-entropy-loss-fusion")     ? "eager"
        : strstr(run->notes, "cross-entropy-fusion-impl native") ? "native"
                                                                 : framework->loss);
    set(w, "optimizer", "%s", !is_pytorch(runtime_of(w)) ? "adamw" : framework->optimizer);
    if (framework->fused_matmuls && !run->lora_rank) { /* adapters stand beside each projection */
        set_switch(w, "fused_qkv", true);
        set_switch(w, "fused_gate_up", true);
    }
    if (framework->norm_chain)
        set_switch(w, "norm_chain", true);
    if (framework->hold_logits)
        set_switch(w, "hold_logits", true);
    if (framework->rope_fp32)
        set_switch(w, "rope_fp32", true);
    if (framework->lora_dropout > 0 && run->lora_rank)
        set(w, "lora_dropout", "%g", framework->lora_dropout);
    if (strstr(run->notes, "foak")) /* fms-acceleration's Triton kernels of norms and of cross entropy */
        set_switch(w, "fast_kernels", true);
}

/* ---- the row --------------------------------------------------------------------------------------------------- */

/* The preset that a row left its dimensions to, checked against the params column; NULL: what its dimensions say. */
static enum dtp_status shape_of(const struct dtp_run *run, const struct dtp_transformer *preset,
                                struct dtp_transformer *out, bool *named, struct dtp_faults *faults)
{
    if (!preset)
        return dtp_run_shape(run, out, faults);
    *out = *preset;
    *named = out->kv_latent || out->attention_sinks || out->expert_bias;
    double count = (double)dtp_transformer_count(preset).total, stated = (double)run->params;
    if (stated > 0 && fabs(count / stated - 1) > 0.02)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "the preset %s has %.0f parameters, the params column says %.0f (2 %% allowed)", preset->name,
                         count, stated);
    return run->sequence ? DTP_OK : (dtp_run_lacks(run), dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "seq_len is empty"));
}

static enum dtp_status set_all(const struct dtp_run *row, const struct dtp_catalog *catalog,
                               struct dtp_scenario *scenario, struct dtp_faults *faults)
{
    struct dtp_transformer shape;
    struct dtp_run filled = *row, *run = &filled;
    bool named = false;
    struct writer w = {.run = run, .scenario = scenario, .faults = faults};
    w.framework = dtp_run_framework_of(run, faults);
    if (!w.framework)
        return DTP_BAD_INPUT;
    if (!filled.sequence && strstr(filled.notes, "packed sequences"))
        filled.sequence = w.framework->packed;
    const struct dtp_transformer *preset;
    enum dtp_status shaped = dtp_run_fill_preset(run, catalog, &preset, faults); /* whether it has experts, too */
    /* The strategy first: what refuses most rows is then the first reason given. */
    write_strategy(&w);
    if (!dtp_run_write_parts(&w)) { /* shapes and counts of what is not modelled would only be refused in other words */
        if (!run->sequence)
            UNSTATED(&w, "seq_len is empty"); /* nor would it be a job if its parts were modelled */
        return w.status;
    }
    if (shaped == DTP_OK)
        shaped = shape_of(run, preset, &shape, &named, faults);
    if (shaped == DTP_OK && strcasecmp(run->attention, "mla") == 0 && !shape.kv_latent)
        UNSTATED(&w, "latent attention (attention mla) of a model that is no preset: widths of latents are not stated");
    if (shaped == DTP_OK)
        write_model(&w, &shape, named);
    write_cluster(&w, catalog);
    write_batch(&w);
    write_precision(&w);
    write_checkpointing(&w);
    write_offload(&w);
    write_kernels(&w);
    dtp_run_write_clipping(&w, runtime_of(&w));
    dtp_run_write_libraries(&w);
    return w.status > shaped ? w.status : shaped;
}

enum dtp_status dtp_run_job(const struct dtp_run *run, const struct dtp_catalog *catalog, struct dtp_job *job,
                            struct dtp_faults *faults)
{
    struct dtp_scenario *scenario = NULL;
    enum dtp_status status = dtp_scenario_create(&scenario, faults);
    if (status == DTP_OK)
        status = set_all(run, catalog, scenario, faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(scenario, catalog, job, faults);
    if (status == DTP_OK)
        status = dtp_run_settle_checkpointing(run, catalog, scenario, job, faults);
    dtp_scenario_destroy(scenario);
    return status;
}
