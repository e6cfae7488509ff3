#include "plan/layout.h"

#include "base/append.h"
#include "base/nearest.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const words[DTP_AXIS_ALL_COUNT] = {
#define AXIS_WORD(suffix, word) word,
    DTP_AXIS_TABLE(AXIS_WORD)
#undef AXIS_WORD
        [DTP_AXIS_ETP] = "etp",
    [DTP_AXIS_EP] = "ep",
    [DTP_AXIS_EDP] = "edp",
};

struct dtp_layout dtp_layout_default(void)
{
    struct dtp_layout layout = {.order = DTP_LAYOUT_ORDER};
    for (int i = 0; i < DTP_AXIS_ALL_COUNT; i++)
        layout.size[i] = 1;
    return layout;
}

/* ---- the order -----------------------------------------------------------------------------------------------------
 */

/* The axes that a word of an order names, as a set; 0: it is none. */
static unsigned axes_of_word(const char *word)
{
    if (strcmp(word, "dp") == 0)
        return DTP_AXES(DP_SHARD) | DTP_AXES(DP_REPLICATE);
    for (int i = 0; i < DTP_AXIS_COUNT; i++)
        if (strcmp(word, words[i]) == 0)
            return 1u << i;
    return 0;
}

static enum dtp_status unknown_axis(const char *word, struct dtp_faults *faults)
{
    struct dtp_nearest nearest;
    char hint[128];
    dtp_nearest_begin(&nearest, word);
    for (int i = 0; i < DTP_AXIS_COUNT; i++)
        dtp_nearest_offer(&nearest, words[i]);
    dtp_nearest_text(&nearest, hint, sizeof hint);
    return dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, "order", "'%s' is no axis of ranks; %s", word,
                           hint[0] ? hint : "write tp-cp-dp-pp");
}

enum dtp_status dtp_layout_parse_order(const char *text, struct dtp_layout *layout, struct dtp_faults *faults)
{
    unsigned seen = 0;
    int count = 0;
    enum dtp_mesh_axis order[DTP_AXIS_COUNT];
    for (const char *at = text; at; at = (at = strchr(at, '-')) ? at + 1 : NULL) {
        char word[32];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "-"), at);
        unsigned axes = axes_of_word(word);
        if (!axes)
            return unknown_axis(word, faults);
        if (seen & axes)
            return dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, "order", "'%s' is named twice in '%.64s'", word,
                                   text);
        seen |= axes;
        for (int i = 0; i < DTP_AXIS_COUNT; i++)
            if (axes & (1u << i))
                order[count++] = (enum dtp_mesh_axis)i;
    }
    for (int i = 0; i < DTP_AXIS_COUNT; i++)
        if (!(seen & (1u << i)))
            order[count++] = (enum dtp_mesh_axis)i;
    memcpy(layout->order, order, sizeof order);
    return DTP_OK;
}

char *dtp_layout_order_text(const struct dtp_layout *layout, char *out, size_t bytes)
{
    out[0] = '\0';
    for (int i = 0; i < DTP_AXIS_COUNT; i++)
        dtp_append_part(out, bytes, "-", "%s", words[layout->order[i]]);
    return out;
}

/* ---- sizes ---------------------------------------------------------------------------------------------------------
 */

uint32_t dtp_layout_ranks_of_stage(const struct dtp_layout *layout)
{
    return dtp_layout_ranks(layout) / layout->size[DTP_AXIS_PP];
}

uint32_t dtp_layout_ranks(const struct dtp_layout *layout)
{
    uint32_t ranks = 1;
    for (int i = 0; i < DTP_AXIS_COUNT; i++)
        ranks *= layout->size[i];
    return ranks;
}

uint32_t dtp_layout_stride(const struct dtp_layout *layout, enum dtp_mesh_axis axis)
{
    uint32_t stride = 1;
    for (int i = 0; layout->order[i] != axis; i++)
        stride *= layout->size[layout->order[i]];
    return stride;
}

/* An axis of experts, of which neighbours are `stride` apart among the ranks of a stage: its groups are regular among
 * all ranks where none begins within the ranks before pp's and ends behind them at another place. */
static bool folds(const struct dtp_layout *layout, uint32_t stride, uint32_t size)
{
    uint32_t inner = dtp_layout_stride(layout, DTP_AXIS_PP);
    return layout->size[DTP_AXIS_PP] == 1 || inner % ((uint64_t)stride * size) == 0 || stride % inner == 0 ||
           (inner % stride == 0 && size % (inner / stride) == 0);
}

static enum dtp_status check_experts(struct dtp_layout *layout, struct dtp_faults *faults)
{
    uint32_t *size = layout->size, of_stage = dtp_layout_ranks_of_stage(layout);
    uint64_t divided = (uint64_t)size[DTP_AXIS_ETP] * size[DTP_AXIS_EP];
    if (divided == 1 && size[DTP_AXIS_EDP] <= 1) {
        size[DTP_AXIS_EDP] = 1;
        return DTP_OK;
    }
    if (divided == 0 || of_stage % divided)
        return dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, "ep",
                               "etp %" PRIu32 " x ep %" PRIu32 " does not divide the %" PRIu32
                               " ranks of a stage (tp x cp x dp)",
                               size[DTP_AXIS_ETP], size[DTP_AXIS_EP], of_stage);
    if (size[DTP_AXIS_EDP] == 0)
        size[DTP_AXIS_EDP] = (uint32_t)(of_stage / divided);
    if (divided * size[DTP_AXIS_EDP] != of_stage)
        return dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, "edp",
                               "etp %" PRIu32 " x ep %" PRIu32 " x edp %" PRIu32 " are not the %" PRIu32
                               " ranks of a stage (tp x cp x dp); edp %" PRIu64 " would be",
                               size[DTP_AXIS_ETP], size[DTP_AXIS_EP], size[DTP_AXIS_EDP], of_stage, of_stage / divided);
    if (folds(layout, 1, size[DTP_AXIS_ETP]) && folds(layout, size[DTP_AXIS_ETP], size[DTP_AXIS_EP]))
        return DTP_OK;
    return dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, "order",
                           "with pp before other axes, the %" PRIu32
                           " ranks before it cut groups of etp and ep irregularly; put pp last",
                           dtp_layout_stride(layout, DTP_AXIS_PP));
}

enum dtp_status dtp_layout_resolve(struct dtp_layout *layout, uint32_t ranks, struct dtp_faults *faults)
{
    uint64_t product = 1;
    enum dtp_status status = DTP_OK;
    char sizes[160] = "";
    for (int i = 0; i < DTP_AXIS_COUNT; i++) {
        uint32_t size = layout->size[i];
        dtp_append_part(sizes, sizeof sizes, " x ", "%s %" PRIu32, words[i], size);
        if (size == 0)
            status = dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, words[i], "is 0; 1 is not parallel that way");
        product = product > UINT32_MAX ? product : product * size;
    }
    if (status == DTP_OK && product != ranks)
        status = dtp_fault_about(faults, DTP_BAD_INPUT, NULL, 0, "ranks", "%s are not the %" PRIu32 " ranks of the job",
                                 sizes, ranks);
    return status == DTP_OK ? check_experts(layout, faults) : status;
}

/* ---- ranks and coordinates -----------------------------------------------------------------------------------------
 */

/* The place of a rank among those of its stage, and back. */
static uint32_t place_in_stage(const struct dtp_layout *layout, uint32_t rank)
{
    uint32_t inner = dtp_layout_stride(layout, DTP_AXIS_PP);
    return rank / (inner * layout->size[DTP_AXIS_PP]) * inner + rank % inner;
}

static uint32_t rank_of_place(const struct dtp_layout *layout, uint32_t stage, uint32_t place)
{
    uint32_t inner = dtp_layout_stride(layout, DTP_AXIS_PP);
    return (place / inner * layout->size[DTP_AXIS_PP] + stage) * inner + place % inner;
}

void dtp_layout_coordinates(const struct dtp_layout *layout, uint32_t rank, uint32_t *coordinates)
{
    uint32_t rest = rank, place = place_in_stage(layout, rank);
    for (int i = 0; i < DTP_AXIS_COUNT; i++) {
        enum dtp_mesh_axis axis = layout->order[i];
        coordinates[axis] = rest % layout->size[axis];
        rest /= layout->size[axis];
    }
    for (int axis = DTP_AXIS_ETP; axis < DTP_AXIS_ALL_COUNT; axis++) {
        coordinates[axis] = place % layout->size[axis];
        place /= layout->size[axis];
    }
}

uint32_t dtp_layout_rank(const struct dtp_layout *layout, const uint32_t *coordinates)
{
    uint32_t rank = 0;
    for (int i = 0; i < DTP_AXIS_COUNT; i++)
        rank += coordinates[i] * dtp_layout_stride(layout, (enum dtp_mesh_axis)i);
    return rank;
}

/* ---- groups --------------------------------------------------------------------------------------------------------
 */

/* Adds a stretch behind the others, to the last where it goes on at its stride. */
static void add_stretch(struct dtp_rank_group *group, uint32_t stride, uint32_t size)
{
    if (size == 1)
        return;
    group->size *= size;
    struct dtp_stretch *last = group->stretch_count ? &group->stretches[group->stretch_count - 1] : NULL;
    if (last && last->stride * last->size == stride)
        last->size *= size;
    else
        group->stretches[group->stretch_count++] = (struct dtp_stretch){stride, size};
}

/* Of experts: `stride` among the ranks of a stage, which pp's others lie between from `inner` on. */
static void add_fold(const struct dtp_layout *layout, struct dtp_rank_group *group, uint32_t stride, uint32_t size)
{
    uint32_t inner = dtp_layout_stride(layout, DTP_AXIS_PP), stages = layout->size[DTP_AXIS_PP];
    if (stages == 1 || (uint64_t)stride * size <= inner) {
        add_stretch(group, stride, size);
    } else if (stride >= inner) {
        add_stretch(group, stride * stages, size);
    } else {
        add_stretch(group, stride, inner / stride);
        add_stretch(group, inner * stages, size / (inner / stride));
    }
}

static struct dtp_rank_group expert_group(const struct dtp_layout *layout, unsigned axes, uint32_t rank)
{
    struct dtp_rank_group group = {.size = 1};
    uint32_t coordinates[DTP_AXIS_ALL_COUNT], stride = 1, place = place_in_stage(layout, rank);
    dtp_layout_coordinates(layout, rank, coordinates);
    for (int axis = DTP_AXIS_ETP; axis < DTP_AXIS_ALL_COUNT; axis++) {
        if (axes & (1u << axis)) {
            place -= coordinates[axis] * stride;
            add_fold(layout, &group, stride, layout->size[axis]);
        }
        stride *= layout->size[axis];
    }
    group.first = rank_of_place(layout, coordinates[DTP_AXIS_PP], place);
    return group;
}

struct dtp_rank_group dtp_layout_group(const struct dtp_layout *layout, unsigned axes, uint32_t rank)
{
    struct dtp_rank_group group = {.first = rank, .size = 1};
    uint32_t coordinates[DTP_AXIS_ALL_COUNT], stride = 1;
    if (axes & (DTP_AXES(ETP) | DTP_AXES(EP) | DTP_AXES(EDP)))
        return expert_group(layout, axes, rank);
    dtp_layout_coordinates(layout, rank, coordinates);
    for (int i = 0; i < DTP_AXIS_COUNT; i++) {
        enum dtp_mesh_axis axis = layout->order[i];
        if (axes & (1u << axis)) {
            group.first -= coordinates[axis] * stride;
            add_stretch(&group, stride, layout->size[axis]);
        }
        stride *= layout->size[axis];
    }
    return group;
}

uint32_t dtp_rank_group_member(const struct dtp_rank_group *group, uint32_t i)
{
    uint32_t rank = group->first;
    for (uint32_t k = 0; k < group->stretch_count; k++) {
        rank += i % group->stretches[k].size * group->stretches[k].stride;
        i /= group->stretches[k].size;
    }
    return rank;
}

#define MOST_RAILS 4096 /* a node has far fewer GPUs */

struct dtp_group_spread dtp_group_spread_of(const struct dtp_rank_group *group, const struct dtp_cluster *cluster)
{
    struct dtp_group_spread spread = {.least_of_node = UINT32_MAX};
    uint32_t below_leaf = cluster->leaf_nodes > 1 ? cluster->leaf_nodes : 1, of_node = 0;
    uint32_t node = 0, leaf = UINT32_MAX;
    bool seen[MOST_RAILS] = {false};
    for (uint32_t i = 0; i < group->size; i++) {
        uint32_t rank = dtp_rank_group_member(group, i), rail = rank % cluster->gpus_per_node % MOST_RAILS;
        uint32_t next = rank / cluster->gpus_per_node;
        bool last = i + 1 == group->size;
        if (i == 0 || next != node) {
            spread.nodes++;
            of_node = 0;
            node = next;
        }
        of_node++;
        if (last || dtp_rank_group_member(group, i + 1) / cluster->gpus_per_node != node) {
            spread.most_of_node = of_node > spread.most_of_node ? of_node : spread.most_of_node;
            spread.least_of_node = of_node < spread.least_of_node ? of_node : spread.least_of_node;
        }
        spread.leaves += node / below_leaf != leaf;
        leaf = node / below_leaf;
        spread.rails += !seen[rail];
        seen[rail] = true;
    }
    return spread;
}
