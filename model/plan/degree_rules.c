/* Which degrees of tensor, context and pipeline parallelism there are: each refusal says the rule and the nearest
 * degrees that keep it. Rules of schedules and stages are model/schedule's, said here of the plan's keys. */
#include "plan/degrees.h"

#include "base/append.h"
#include "plan/context.h"
#include "plan/slice.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool divides(uint64_t part, uint64_t whole)
{
    return part && whole % part == 0;
}

/* ---- degrees ----------------------------------------------------------------------------------------------------- */

/* What is wrong with a degree, in words; false where nothing is. The words may be cut. */
#define RULE_BYTES 256
static bool breaks_rule(char *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool breaks_rule(char *out, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out, RULE_BYTES, format, arguments);
    va_end(arguments);
    return true;
}

static bool product_fault(const struct dtp_resolver *r, const struct dtp_plan *p, char *out)
{
    const struct {
        const char *word;
        uint32_t size;
    } axes[] = {{"tp", p->tp}, {"cp", p->cp}, {"pp", p->pp}};
    char sizes[64] = "";
    if (dtp_plan_degrees_divide(p, r->cluster->gpus))
        return false;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (axes[i].size > 1)
            dtp_append_part(sizes, sizeof sizes, " x ", "%s %" PRIu32, axes[i].word, axes[i].size);
    return breaks_rule(out, "%s do%s not divide %" PRIu32 " GPUs", sizes, strchr(sizes, 'x') ? "" : "es",
                       r->cluster->gpus);
}

/* Heads, the MLP's columns and, with sequence parallelism, tokens are shared out evenly. Groups lie in a node or fill
 * whole ones. */
static bool tensor_fault(const struct dtp_resolver *r, const struct dtp_plan *p, char *out)
{
    const struct dtp_transformer *t = r->transformer;
    uint32_t tp = p->tp, node = r->cluster->gpus_per_node;
    if (tp == 1)
        return false;
    if (!divides(tp, t->heads))
        return breaks_rule(out, "%" PRIu32 " does not divide %" PRIu64 " heads", tp, t->heads);
    if (!divides(tp, t->kv_heads) && !divides(t->kv_heads, tp))
        return breaks_rule(out, "%" PRIu32 " and %" PRIu64 " key/value heads: neither divides the other", tp,
                           t->kv_heads);
    if (dtp_transformer_has_mlp(t) && !divides(tp, t->ffn))
        return breaks_rule(out, "%" PRIu32 " does not divide ffn %" PRIu64, tp, t->ffn);
    if (!divides(tp, t->shared_expert_ffn))
        return breaks_rule(out, "%" PRIu32 " does not divide shared_expert_ffn %" PRIu64, tp, t->shared_expert_ffn);
    if (p->sequence_parallel && !divides((uint64_t)tp * p->cp, p->sequence))
        return breaks_rule(out,
                           "%" PRIu32 "%s does not divide seq %" PRIu64 ", which sequence_parallel spreads over it", tp,
                           p->cp > 1 ? " x cp" : "", p->sequence);
    if (!divides(tp, node) && !divides(node, tp))
        return breaks_rule(out, "%" PRIu32 " neither divides a node of %" PRIu32 " GPUs nor fills whole nodes", tp,
                           node);
    return false;
}

/* A rank has a piece from the front and one from the back of a sequence, so that all have as much to do under the
 * causal mask; exchanging heads for tokens needs heads for all. */
static bool context_fault(const struct dtp_resolver *r, const struct dtp_plan *p, char *out)
{
    const struct dtp_transformer *t = r->transformer;
    uint32_t cp = p->cp, tp = p->tp, pieces = p->cp_comm == DTP_CP_A2A ? 1 : 2;
    uint32_t exchanged = dtp_context_exchanged(p, r->cluster);
    if (cp == 1)
        return false;
    if (!divides((uint64_t)pieces * cp, p->sequence))
        return breaks_rule(out, "%" PRIu32 " x %" PRIu32 " piece%s a rank do%s not divide seq %" PRIu64, cp, pieces,
                           pieces > 1 ? "s" : "", pieces > 1 ? "" : "es", p->sequence);
    if (!divides((uint64_t)exchanged * tp, t->heads) || !divides((uint64_t)exchanged * tp, t->kv_heads))
        return breaks_rule(out,
                           "%s over %" PRIu32 " ranks%s does not divide %" PRIu64 " heads and %" PRIu64
                           " key/value heads; cp_comm p2p takes any",
                           dtp_cp_comm_text(p->cp_comm), exchanged, tp > 1 ? " x tp" : "", t->heads, t->kv_heads);
    return false;
}

/* The next degree below and above that breaks no rule, all others as they are. */
struct degree {
    const char *key;
    size_t offset;                                                                    /* of the field in the plan */
    bool (*fault)(const struct dtp_resolver *r, const struct dtp_plan *p, char *out); /* NULL: stages have rules */
};

static uint32_t nearest(const struct dtp_resolver *r, const struct degree *d, int step)
{
    struct dtp_plan plan = *r->plan;
    uint32_t *value = (uint32_t *)(void *)((char *)&plan + d->offset);
    char ignored[RULE_BYTES];
    for (*value += (uint32_t)step; *value >= 1 && *value <= r->cluster->gpus; *value += (uint32_t)step)
        if (!(d->fault && d->fault(r, &plan, ignored)) && !product_fault(r, &plan, ignored))
            return *value;
    return 0;
}

/* "; the nearest that fit are 2 and 4", for somebody to read; "" where none is. */
static const char *nearest_words(const struct dtp_resolver *r, const struct degree *d, char *out, size_t bytes)
{
    uint32_t below = r->faults ? nearest(r, d, -1) : 0, above = r->faults ? nearest(r, d, 1) : 0;
    out[0] = '\0';
    if (below && above)
        snprintf(out, bytes, "; the nearest that fit are %" PRIu32 " and %" PRIu32, below, above);
    else if (below || above)
        snprintf(out, bytes, "; the nearest that fits is %" PRIu32, below ? below : above);
    return out;
}

static bool degrees_fit(const struct dtp_resolver *r)
{
    char ignored[RULE_BYTES];
    return !tensor_fault(r, r->plan, ignored) && !context_fault(r, r->plan, ignored) &&
           !product_fault(r, r->plan, ignored);
}

static unsigned split_axes(const struct dtp_plan *p)
{
    return (p->tp > 1 ? DTP_AXES(TP) : 0) | (p->cp > 1 ? DTP_AXES(CP) : 0) | (p->pp > 1 ? DTP_AXES(PP) : 0);
}

/* Each degree by its own rules, then their product: there the one is named of which another value would do. False: one
 * is refused. */
static bool check_degrees(struct dtp_resolver *r)
{
    const struct degree degrees[] = {
        {"pp", offsetof(struct dtp_plan, pp), NULL},
        {"cp", offsetof(struct dtp_plan, cp), context_fault},
        {"tp", offsetof(struct dtp_plan, tp), tensor_fault},
    };
    const size_t count = sizeof degrees / sizeof *degrees;
    char rule[RULE_BYTES], words[96] = "";
    bool refused = false;
    for (size_t i = 0; i < count; i++)
        if (degrees[i].fault && degrees[i].fault(r, r->plan, rule)) {
            dtp_plan_refuse(r, degrees[i].key, "%s%s", rule, nearest_words(r, &degrees[i], words, sizeof words));
            refused = true;
        }
    if (refused || !product_fault(r, r->plan, rule))
        return !refused;
    const char *key = degrees[0].key;
    for (size_t i = 0; i < count && !words[0]; i++)
        if (*nearest_words(r, &degrees[i], words, sizeof words))
            key = degrees[i].key;
    dtp_plan_refuse(r, key, "%s%s", rule, words);
    return false;
}

/* ---- schedule and stages ----------------------------------------------------------------------------------------- */

/* The faults of model/schedule, "KEY: words" of its own keys, as those of the plan's. */
static void refuse_as(struct dtp_resolver *r, const struct dtp_faults *faults, const char *stages_key)
{
    const char *keys[][2] = {{"stages: ", stages_key},
                             {"layout: ", stages_key},
                             {"micro_batches: ", "accumulate"},
                             {"virtual_stages: ", "virtual_stages"},
                             {"group: ", "microbatch_group"}};
    if (faults->status == DTP_ENVIRONMENT) { /* nothing is wrong with the plan */
        r->status = dtp_fault(r->faults, DTP_ENVIRONMENT, NULL, 0, "%s", faults->text[0]);
        return;
    }
    for (size_t i = 0; i < faults->count && i < DTP_FAULTS_KEPT; i++) {
        const char *text = faults->text[i], *key = stages_key;
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (strncmp(text, keys[k][0], strlen(keys[k][0])) == 0) {
                text += strlen(keys[k][0]);
                key = keys[k][1];
                break;
            }
        dtp_plan_refuse(r, key, "%s", text);
    }
}

static void check_schedule_exists(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    char known[160] = "";
    if (p->runtime->schedules & 1u << p->schedule)
        return;
    for (int i = 0; i < DTP_SCHEDULE_COUNT; i++)
        if (p->runtime->schedules & 1u << i)
            dtp_append_part(known, sizeof known, ", ", "%s", dtp_schedule_row((enum dtp_schedule_kind)i)->word);
    dtp_plan_refuse(r, "schedule", "%s is not modelled under runtime %s, which runs %s",
                    dtp_schedule_row(p->schedule)->word, p->runtime->name, known);
}

/* What predicts further ahead reads what the last layer made, and its loss the head's weights. Megatron-Core sends both
 * streams on where a stage before the head's has it. */
static void check_ahead(struct dtp_resolver *r, const struct dtp_stages *stages)
{
    for (uint32_t i = 0; i < stages->count; i++)
        if (stages->parts[i].mtp_layers && !stages->parts[i].head)
            dtp_plan_refuse(r, "stages",
                            "with MTP layers in another stage than the head's is not modelled; put m before L");
}

/* A layout text says by its stages how many chunks a rank has. False where it is refused. */
static bool count_chunks(struct dtp_resolver *r, struct dtp_faults *faults)
{
    struct dtp_plan *p = r->plan;
    struct dtp_stages stages;
    if (p->stages.cut != DTP_STAGE_CUT_LAYOUT)
        return true;
    if (dtp_plan_stages(p, r->transformer, &stages, faults) != DTP_OK) {
        refuse_as(r, faults, "stages");
        return false;
    }
    bool two_ways = dtp_schedule_row(p->schedule)->placement == DTP_CHUNKS_TWO_WAY;
    uint32_t chunks = two_ways ? 2 : stages.count / p->pp, count = stages.count;
    dtp_stages_destroy(&stages);
    if ((p->virtual_stages > 1 && p->virtual_stages != chunks) || (two_ways && count != p->pp)) {
        dtp_plan_refuse(r, "stages", "has %" PRIu32 " stages where pp %" PRIu32 " x virtual_stages has %" PRIu32, count,
                        p->pp, two_ways ? p->pp : p->pp * p->virtual_stages);
        return false;
    }
    p->virtual_stages = chunks;
    return true;
}

static void resolve_pipeline(struct dtp_resolver *r)
{
    struct dtp_plan *p = r->plan;
    struct dtp_faults faults; /* 16 kB: cleared as far as it is read */
    struct dtp_stages stages;
    faults.count = 0;
    faults.status = DTP_OK;
    if (!count_chunks(r, &faults))
        return;
    if (dtp_plan_interleaves(p))
        p->schedule = DTP_SCHEDULE_INTERLEAVED;
    check_schedule_exists(r);
    p->round = 0;
    struct dtp_schedule_shape shape = dtp_plan_schedule(p);
    if (dtp_schedule_resolve(&shape, &faults) != DTP_OK) {
        refuse_as(r, &faults, "pp");
        return;
    }
    p->virtual_stages = shape.chunks;
    if (dtp_plan_interleaves(p))
        p->microbatch_group = shape.group;
    else
        p->round = shape.group;
    if (dtp_plan_stages(p, r->transformer, &stages, &faults) == DTP_OK) {
        check_ahead(r, &stages);
        dtp_plan_count_layers(p, &stages);
        dtp_stages_destroy(&stages);
    } else {
        refuse_as(r, &faults,
                  p->stages.cut != DTP_STAGE_CUT_EVEN ? "stages"
                  : p->virtual_stages > 1             ? "virtual_stages"
                                                      : "pp");
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static bool check_given(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    const struct {
        const char *key, *words;
        uint32_t value;
    } axes[] = {{"tp", "no tensor parallelism", p->tp},
                {"pp", "no pipeline parallelism", p->pp},
                {"cp", "no context parallelism", p->cp},
                {"virtual_stages", "as many chunks as the schedule has", p->virtual_stages}};
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
        if (axes[i].value == 0)
            dtp_plan_refuse(r, axes[i].key, "is 0; use 1 for %s", axes[i].words);
    return dtp_plan_axes_given(p);
}

/* Steps of a ring see all of what is at hand, and only exchanged heads all of the sequence at once. */
static void check_context(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    char known[64] = "";
    if (p->cp == 1)
        return;
    for (int i = 0; i <= DTP_CP_A2A_P2P; i++)
        if (p->runtime->cp_comms & 1u << i)
            dtp_append_part(known, sizeof known, ", ", "%s", dtp_cp_comm_text((enum dtp_cp_comm)i));
    if (!(p->runtime->cp_comms & 1u << p->cp_comm))
        dtp_plan_refuse(r, "cp_comm", "%s is not modelled under runtime %s, which has %s", dtp_cp_comm_text(p->cp_comm),
                        p->runtime->name, known);
    if (p->attention == DTP_ATTENTION_MATH)
        dtp_plan_refuse(r, "attention", "math has no parts that context parallel ranks could merge; use flash");
    if (r->transformer->sliding_window && r->transformer->sliding_window < p->sequence && p->cp_comm != DTP_CP_A2A)
        dtp_plan_refuse(r, "sliding_window", "with cp is modelled where ranks exchange heads alone; use cp_comm a2a");
    if (p->strategy != DTP_DDP && p->shard_group % p->cp)
        dtp_plan_refuse(r, "shard_group", "%" PRIu32 " is not a multiple of cp %" PRIu32 ", whose ranks shard as well",
                        p->shard_group, p->cp);
}

/* A group is its ranks evenly spaced: programs and prices know no others. So no other axis of more than one rank stands
 * between those that it is made of. Context parallel ranks follow tensor parallel ones, as attention's exchange takes
 * for granted. */
static void check_order(struct dtp_resolver *r)
{
    static const struct {
        unsigned axes;
        const char *words;
    } groups[] = {{DTP_AXES(TP), "tp"}, {DTP_AXES(CP), "cp"}, {DTP_AXES_DENSE_DATA, "cp, dp_shard and dp_replicate"}};
    const struct dtp_plan *p = r->plan;
    struct dtp_layout layout = dtp_plan_layout(p, r->cluster);
    const uint32_t *size = layout.size;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        struct dtp_rank_group group = dtp_layout_group(&layout, groups[i].axes);
        uint32_t stride = group.stretch_count ? group.stretches[0].stride : 1, node = r->cluster->gpus_per_node;
        if (group.stretch_count > 1)
            dtp_plan_refuse(r, "layout_order",
                            "other ranks stand between those of %s, over which gradients are summed; name them one "
                            "behind the other",
                            groups[i].words);
        else if (node % stride && stride % node)
            dtp_plan_refuse(r, "layout_order",
                            "ranks of %s are %" PRIu32 " apart, which neither divides a node of %" PRIu32
                            " GPUs nor fills whole nodes",
                            groups[i].words, stride, node);
    }
    if (size[DTP_AXIS_DP_SHARD] > 1 && size[DTP_AXIS_DP_REPLICATE] > 1 &&
        dtp_layout_stride(&layout, DTP_AXIS_DP_REPLICATE) < dtp_layout_stride(&layout, DTP_AXIS_DP_SHARD))
        dtp_plan_refuse(r, "layout_order", "dp_shard stands before dp_replicate: replicas are of whole shard groups");
    if (size[DTP_AXIS_CP] > 1 && dtp_layout_stride(&layout, DTP_AXIS_CP) != size[DTP_AXIS_TP])
        dtp_plan_refuse(r, "layout_order", "cp follows tp, as in tp-cp-pp-dp");
}

bool dtp_plan_layout_exists(const struct dtp_plan *plan, const struct dtp_transformer *transformer,
                            const struct dtp_cluster *cluster)
{
    struct dtp_plan copy = *plan;
    struct dtp_resolver r = {.plan = &copy, .transformer = transformer, .cluster = cluster};
    return plan->tp && plan->pp && plan->cp && !(split_axes(plan) & ~plan->runtime->splits) && degrees_fit(&r);
}

void dtp_plan_check_degrees(struct dtp_resolver *r)
{
    const struct dtp_plan *p = r->plan;
    unsigned axes = split_axes(p);
    if (!check_given(r) || !axes || axes & ~p->runtime->splits) /* these are refused by their rows */
        return;
    if (p->offload != DTP_OFFLOAD_NONE)
        dtp_plan_refuse(r, "offload", "is not modelled together with tp, cp or pp; use none");
    check_context(r);
    if (check_degrees(r))
        check_order(r);
    if (p->pp > 1)
        resolve_pipeline(r);
}
