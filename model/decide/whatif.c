#include "decide/whatif.h"

#include "base/append.h"
#include "base/parallel.h"
#include "closed/sharding.h"
#include "runtime/runtimes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct search {
    const struct dtp_scenario *scenario;
    const struct dtp_catalog *catalog;
    const struct dtp_job *job; /* of the scenario as it stands */
    const struct dtp_predictor *predictor, *otherwise;
    struct dtp_variant base_otherwise; /* the plan by `otherwise`, where that predicts it */
    bool has_otherwise;
    struct dtp_whatif *out;
    size_t proposed; /* rows with flags, none predicted yet */
};

/* ---- one change -------------------------------------------------------------------------------------------------- */

/* Both are gathered and reduced alike; what differs is whether the gathered weights are freed after forward. */
static bool is_reshard_pair(enum dtp_strategy a, enum dtp_strategy b)
{
    bool full = a == DTP_FULL_SHARD || a == DTP_ZERO3 || b == DTP_FULL_SHARD || b == DTP_ZERO3;
    return full && (a == DTP_SHARD_GRAD_OP || b == DTP_SHARD_GRAD_OP);
}

/* Proposes one change; NULL where the table is full or has it already. */
static struct dtp_whatif_row *propose_plan(struct search *search, enum dtp_question question,
                                           const struct dtp_plan *asked, const char *flags)
{
    static const struct dtp_whatif_row empty;
    struct dtp_whatif *out = search->out;
    if (search->proposed == DTP_WHATIF_MAX_ROWS)
        return NULL;
    struct dtp_whatif_row *row = &out->rows[search->proposed];
    char whole[sizeof row->flags];
    *row = empty;
    row->question = question;
    dtp_change_flags(search->job, asked, flags, whole, sizeof whole);
    dtp_change_words(search->scenario, search->job, asked, whole, row->flags, sizeof row->flags);
    for (size_t i = 0; i < search->proposed; i++)
        if (strcmp(out->rows[i].flags, row->flags) == 0)
            return NULL;
    search->proposed++;
    return row;
}

static void compare(const struct dtp_variant *base, struct dtp_whatif_row *row)
{
    const struct dtp_prediction *was = &base->prediction, *is = &row->variant.prediction;
    row->device_delta_bytes = (double)is->memory.device_peak_bytes - (double)was->memory.device_peak_bytes;
    row->step_delta_s = is->time.step_s - was->time.step_s;
    row->tokens_per_s_delta = is->throughput.tokens_per_s - was->throughput.tokens_per_s;
    row->gain = row->tokens_per_s_delta / was->throughput.tokens_per_s;
    dtp_whatif_why(base, &row->variant, row->why, sizeof row->why);
}

static enum dtp_status predict(const struct dtp_predictor *by, const struct dtp_job *job, struct dtp_prediction *out,
                               struct dtp_faults *faults)
{
    faults->status = DTP_OK; /* not zeroed whole: the texts are 16 KiB */
    faults->count = 0;
    return by->predict(by->context, job, out, faults);
}

/* By whoever predicts both the change and the plan. */
static enum dtp_status predict_change(const struct search *search, struct dtp_whatif_row *row,
                                      struct dtp_faults *faults)
{
    const struct dtp_variant *base = &search->out->base;
    row->predictor = search->predictor->name;
    enum dtp_status status = predict(search->predictor, &row->variant.job, &row->variant.prediction, faults);
    if (status == DTP_BAD_INPUT && search->has_otherwise) {
        base = &search->base_otherwise;
        row->predictor = search->otherwise->name;
        status = predict(search->otherwise, &row->variant.job, &row->variant.prediction, faults);
    }
    if (status == DTP_OK)
        compare(base, row);
    return status;
}

/* Sets the words of a change over those of the scenario, resolves and predicts; a refusal is a row too. */
static enum dtp_status fill(const struct search *search, struct dtp_whatif_row *row, struct dtp_faults *faults)
{
    struct dtp_scenario *changed = NULL;
    enum dtp_status status = dtp_scenario_copy(search->scenario, &changed, faults);
    if (status == DTP_OK)
        status = dtp_change_set(row->flags, changed, faults);
    if (status == DTP_OK)
        status = dtp_scenario_resolve(changed, search->catalog, &row->variant.job, faults);
    if (status == DTP_OK)
        status = predict_change(search, row, faults);
    dtp_scenario_destroy(changed);
    row->refused = status != DTP_OK;
    if (row->refused)
        snprintf(row->why, sizeof row->why, "%s", faults->count ? faults->text[0] : dtp_status_text(status));
    return status == DTP_ENVIRONMENT ? status : DTP_OK;
}

static enum dtp_status work(void *context, unsigned thread, uint64_t first, uint64_t count)
{
    const struct search *search = context;
    struct dtp_faults faults;
    enum dtp_status status = DTP_OK;
    (void)thread;
    for (uint64_t i = first; i < first + count && status == DTP_OK; i++) {
        faults.status = DTP_OK;
        faults.count = 0;
        status = fill(search, &search->out->rows[i], &faults);
    }
    return status;
}

/* ---- the changes ------------------------------------------------------------------------------------------------- */

/* Proposes what flags say of the plan, where that changes something. */
static void try(struct search *search, enum dtp_question question, const char *flags)
{
    struct dtp_plan asked = search->job->asked;
    if (dtp_change_apply(flags, &asked))
        propose_plan(search, question, &asked, flags);
}

/* Whether rules make the same plan of what was asked, for what the runtime does anyway is no change; or one in which
 * nothing reads the key, as of FSDP2 where one GPU shards nothing. */
static bool resolves_to_the_same(const struct search *search, enum dtp_key key, const struct dtp_plan *asked)
{
    struct dtp_job changed;
    if (dtp_variant_resolve(search->job, asked, search->job->cluster.gpus, &changed, NULL, 0) != DTP_OK)
        return false;
    const enum dtp_key_reader reader = dtp_key_reader(key);
    bool read = dtp_key_reader_reads(reader, &changed.plan) || dtp_key_reader_reads(reader, &search->job->plan);
    return !read || dtp_change_is_none(&changed.plan, &search->job->plan);
}

static void try_rules(struct search *search)
{
    struct dtp_change_rule rules[DTP_CHANGE_RULES_MAX];
    size_t count = dtp_change_rules(rules);
    const struct dtp_job *job = search->job;
    for (size_t i = 0; i < count; i++) {
        struct dtp_plan asked = job->asked;
        if (!dtp_change_try(&rules[i], &asked) || resolves_to_the_same(search, rules[i].key, &asked))
            continue;
        enum dtp_question question = rules[i].question;
        if (question == DTP_QUESTION_STRATEGY && is_reshard_pair(asked.strategy, job->asked.strategy))
            question = DTP_QUESTION_RESHARD;
        struct dtp_whatif_row *row = propose_plan(search, question, &asked, rules[i].flags);
        if (row)
            row->numerics = rules[i].numerics;
    }
}

static void try_number(struct search *search, enum dtp_question question, const char *flag, uint32_t number)
{
    char flags[80];
    snprintf(flags, sizeof flags, "%s%u", flag, number);
    try(search, question, flags);
}

static void try_wrapping(struct search *search)
{
    const uint32_t sizes[] = {1, 2, 4, 8, 0};
    if (!dtp_plan_is_fsdp(&search->out->base.job.plan))
        return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < search->job->transformer.layers)
            try_number(search, DTP_QUESTION_WRAPPING, "--wrap-layers ", sizes[i]);
}

static void try_batch(struct search *search, uint64_t micro_batch, uint64_t accumulate)
{
    const struct dtp_plan *asked = &search->job->asked;
    char flags[80] = "";
    if (micro_batch > UINT32_MAX || accumulate > UINT32_MAX)
        return;
    if (micro_batch != asked->micro_batch)
        dtp_append(flags, sizeof flags, "--micro-batch %u", (unsigned)micro_batch);
    if (accumulate != asked->accumulate)
        dtp_append_part(flags, sizeof flags, " ", "--accumulate %u", (unsigned)accumulate);
    try(search, DTP_QUESTION_BATCH, flags);
}

/* Larger steps; and the same step cut otherwise. */
static void try_batches(struct search *search)
{
    uint64_t micro_batch = search->job->asked.micro_batch, accumulate = search->job->asked.accumulate;
    try_batch(search, micro_batch * 2, accumulate);
    try_batch(search, micro_batch * 4, accumulate);
    try_batch(search, micro_batch, accumulate * 4);
    if (accumulate % 2 == 0)
        try_batch(search, micro_batch * 2, accumulate / 2);
    if (micro_batch % 2 == 0) {
        try_batch(search, micro_batch / 2, accumulate * 2);
        try_batch(search, micro_batch / 2, accumulate);
    }
    if (accumulate > 1)
        try_batch(search, micro_batch, 1);
}

/* The same tokens packed into longer or shorter sequences. */
static void try_sequences(struct search *search)
{
    const struct dtp_plan *asked = &search->job->asked;
    char flags[80];
    uint64_t length = search->job->plan.sequence;
    if (asked->micro_batch % 2 == 0) {
        snprintf(flags, sizeof flags, "--seq %" PRIu64 " --micro-batch %u", 2 * length, asked->micro_batch / 2);
        try(search, DTP_QUESTION_SEQUENCE, flags);
    }
    if (length % 2 == 0 && asked->micro_batch <= UINT32_MAX / 2) {
        snprintf(flags, sizeof flags, "--seq %" PRIu64 " --micro-batch %u", length / 2, asked->micro_batch * 2);
        try(search, DTP_QUESTION_SEQUENCE, flags);
    }
}

/* By another framework's rules, each with the strategy that most use there. */
static void try_runtimes(struct search *search)
{
    static const struct {
        const char *runtime, *flags;
    } ways[] = {{"torch", "--runtime torch --strategy full_shard"},
                {"deepspeed", "--runtime deepspeed --strategy zero3"},
                {"deepspeed", "--runtime deepspeed --strategy zero1"},
                {"megatron", "--runtime megatron --strategy zero1"}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways && search->job->cluster.gpus > 1; i++)
        if (strcmp(search->job->plan.runtime->name, ways[i].runtime) != 0)
            try(search, DTP_QUESTION_RUNTIME, ways[i].flags);
}

/* Groups of half, a quarter and twice the size, and those of a node. Under hybrid_shard the strategy stays. */
static void try_shard_degrees(struct search *search)
{
    const struct dtp_job *base = &search->out->base.job;
    uint32_t group = base->plan.shard_group, gpus = base->cluster.gpus;
    const uint32_t sizes[] = {group * 2, group / 2, group / 4, base->cluster.gpus_per_node};
    if (base->plan.strategy == DTP_DDP || gpus == 1)
        return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bool repeated = i == 3 && (sizes[3] == sizes[0] || sizes[3] == sizes[1] || sizes[3] == sizes[2]);
        if (sizes[i] >= 2 && sizes[i] <= gpus && sizes[i] != group && gpus % sizes[i] == 0 && !repeated)
            try_number(search, DTP_QUESTION_SHARD_DEGREE, "--shard-group ", sizes[i]);
    }
}

/* Parameters of a unit shared by a node from forward to backward, or by half and a quarter of those that shard them. */
static void try_reshard_groups(struct search *search)
{
    const struct dtp_job *base = &search->out->base.job;
    uint32_t group = base->plan.shard_group;
    const uint32_t sizes[] = {base->cluster.gpus_per_node, group / 2, group / 4};
    if (!dtp_plan_is_fsdp(&base->plan) || base->plan.fsdp1 || !base->plan.reshard_after_forward)
        return;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        bool repeated = i && sizes[i] == sizes[0];
        if (sizes[i] >= 2 && sizes[i] < group && group % sizes[i] == 0 && !repeated)
            try_number(search, DTP_QUESTION_RESHARD, "--reshard-after-forward=", sizes[i]);
    }
}

/* ZeRO++: a second copy within the node. */
static void try_second_copy(struct search *search)
{
    uint32_t node_gpus = search->job->cluster.gpus_per_node;
    if (dtp_plan_fetches_modules(&search->job->plan) && node_gpus > 1)
        try_number(search, DTP_QUESTION_SHARD_DEGREE, "--zero-hpz-partition-size ", node_gpus);
}

/* Stages nearer than data parallel ranks, or as by default: what a network between nodes can tell apart. */
static void try_orders(struct search *search)
{
    const struct dtp_job *job = search->job;
    if (job->plan.pp < 2 || dtp_plan_data_ranks(&job->plan, &job->cluster) < 2 || job->cluster.nodes < 2)
        return;
    try(search, DTP_QUESTION_PARALLELISM, "--layout-order tp-cp-dp-pp");
    if (job->plan.cp == 1)
        try(search, DTP_QUESTION_PARALLELISM, "--layout-order tp-pp-dp");
}

static void try_gpus(struct search *search)
{
    uint32_t gpus = search->job->cluster.gpus;
    char flags[80];
    if (gpus > UINT32_MAX / 2)
        return;
    dtp_change_gpus_flags(search->job, gpus * 2, flags, sizeof flags);
    propose_plan(search, DTP_QUESTION_GPUS, &search->job->asked, flags);
}

static void try_vocabulary(struct search *search)
{
    struct dtp_job padded;
    char flags[48], note[96];
    if (dtp_change_vocabulary(search->job, &padded, flags, sizeof flags, note, sizeof note))
        propose_plan(search, DTP_QUESTION_VOCAB, &search->job->asked, flags);
}

/* A module that predicts a token further ahead, as models with experts have them, where the runtime trains one with
 * such a plan; or without it. */
static void try_ahead(struct search *search)
{
    const struct dtp_job *job = search->job;
    struct dtp_transformer ahead = job->transformer;
    struct dtp_plan plan = job->asked;
    struct dtp_whatif_row *row = NULL;
    if (ahead.mtp_layers) {
        row = propose_plan(search, DTP_QUESTION_LOSS, &job->asked, "--mtp-layers 0");
    } else if (ahead.experts && job->plan.runtime->predicts_ahead) {
        ahead.mtp_layers = 1;
        ahead = dtp_transformer_trained(&ahead);
        if (dtp_plan_resolve(&plan, &ahead, &job->cluster, NULL) == DTP_OK)
            row = propose_plan(search, DTP_QUESTION_LOSS, &job->asked, "--mtp-layers 1");
    }
    if (row)
        row->numerics = true;
}

/* ---- the ranking ------------------------------------------------------------------------------------------------- */

static int by_rank(const void *left, const void *right)
{
    const struct dtp_whatif_row *a = left, *b = right;
    if (a->refused != b->refused)
        return a->refused - b->refused;
    enum dtp_verdict va = a->variant.prediction.memory.verdict, vb = b->variant.prediction.memory.verdict;
    if (!a->refused && va != vb)
        return (int)va - (int)vb;
    if (!a->refused && a->gain != b->gain)
        return a->gain < b->gain ? 1 : -1;
    if (a->question != b->question)
        return (int)a->question - (int)b->question;
    return strcmp(a->flags, b->flags);
}

/* The plan as it stands, by the one who predicts it and, where both do, by the other too. */
static enum dtp_status predict_base(struct search *search, struct dtp_faults *faults)
{
    struct dtp_variant *base = &search->out->base;
    struct dtp_faults other = {0};
    search->base_otherwise.job = base->job;
    search->has_otherwise = search->otherwise && predict(search->otherwise, &base->job,
                                                         &search->base_otherwise.prediction, &other) == DTP_OK;
    enum dtp_status status = search->predictor->predict(search->predictor->context, &base->job, &base->prediction,
                                                        search->has_otherwise ? &other : faults);
    if (status == DTP_BAD_INPUT && search->has_otherwise) {
        search->predictor = search->otherwise;
        base->prediction = search->base_otherwise.prediction;
        status = DTP_OK;
    } else if (status != DTP_OK && search->has_otherwise) {
        dtp_fault(faults, status, NULL, 0, "%s", other.count ? other.text[0] : dtp_status_text(status));
    }
    search->out->predictor = search->predictor->name;
    return status;
}

static void propose(struct search *search)
{
    try_rules(search);
    try_ahead(search);
    try_wrapping(search);
    try_batches(search);
    try_sequences(search);
    try_runtimes(search);
    try_shard_degrees(search);
    try_reshard_groups(search);
    try_second_copy(search);
    try_orders(search);
    try_gpus(search);
    try_vocabulary(search);
}

static bool is_same_job(const struct dtp_whatif_row *a, const struct dtp_whatif_row *b)
{
    const struct dtp_job *x = &a->variant.job, *y = &b->variant.job;
    return !a->refused && !b->refused && x->cluster.gpus == y->cluster.gpus &&
           memcmp(&x->plan, &y->plan, sizeof x->plan) == 0;
}

/* Where a global batch says it, "--micro-batch 2" is "--micro-batch 2 --accumulate 4" too: the first is kept. */
static void drop_repeated(struct search *search)
{
    struct dtp_whatif_row *rows = search->out->rows;
    size_t kept = 0;
    for (size_t i = 0; i < search->proposed; i++) {
        bool repeated = false;
        for (size_t k = 0; k < kept && !repeated; k++)
            repeated = rows[k].question == rows[i].question && is_same_job(&rows[k], &rows[i]);
        if (!repeated && kept != i)
            rows[kept] = rows[i];
        kept += !repeated;
    }
    search->proposed = kept;
}

enum dtp_status dtp_whatif(const struct dtp_scenario *scenario, const struct dtp_catalog *catalog,
                           const struct dtp_predictor *predictor, const struct dtp_predictor *otherwise,
                           struct dtp_whatif *out, struct dtp_faults *faults)
{
    struct search search = {.scenario = scenario, .catalog = catalog, .predictor = predictor, .otherwise = otherwise};
    memset(out, 0, sizeof *out);
    search.out = out;
    search.job = &out->base.job;
    enum dtp_status status = dtp_scenario_resolve(scenario, catalog, &out->base.job, faults);
    if (status == DTP_OK)
        status = predict_base(&search, faults);
    if (status != DTP_OK)
        return status;
    propose(&search);
    const struct dtp_parallel rows = {.count = search.proposed, .chunk_items = 1, .context = &search, .work = work};
    status = dtp_parallel_run(&rows, NULL, faults);
    if (status != DTP_OK)
        return faults->count ? status : dtp_fault(faults, status, NULL, 0, "out of memory");
    drop_repeated(&search);
    for (size_t i = 0; i < search.proposed; i++)
        out->refused_count += out->rows[i].refused;
    out->count = search.proposed - out->refused_count;
    qsort(out->rows, search.proposed, sizeof *out->rows, by_rank);
    return DTP_OK;
}

bool dtp_whatif_answers(const struct dtp_whatif *whatif, enum dtp_question question, char *out, size_t bytes)
{
    for (size_t i = 0; i < whatif->count; i++)
        if (whatif->rows[i].question == question)
            return true;
    snprintf(out, bytes, "%s", dtp_question_none(question, &whatif->base.job.plan));
    for (size_t i = whatif->count; i < whatif->count + whatif->refused_count; i++)
        if (whatif->rows[i].question == question) {
            const char *why = whatif->rows[i].why, *key_end = strstr(why, ": ");
            bool names_key = key_end && strcspn(why, " ") == (size_t)(key_end + 1 - why);
            snprintf(out, bytes, "%s", names_key ? key_end + 2 : why);
            break;
        }
    return false;
}
