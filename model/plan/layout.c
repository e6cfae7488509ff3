#include "plan/layout.h"

#include "base/append.h"

#include <stdio.h>
#include <string.h>

static const char *const words[DTP_AXIS_COUNT] = {
#define AXIS_WORD(suffix, word) word,
    DTP_AXIS_TABLE(AXIS_WORD)
#undef AXIS_WORD
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

bool dtp_layout_parse_order(const char *text, struct dtp_layout *layout)
{
    unsigned seen = 0;
    int count = 0;
    enum dtp_mesh_axis order[DTP_AXIS_COUNT];
    for (const char *at = text; at; at = (at = strchr(at, '-')) ? at + 1 : NULL) {
        char word[32];
        snprintf(word, sizeof word, "%.*s", (int)strcspn(at, "-"), at);
        unsigned axes = axes_of_word(word);
        if (!axes || seen & axes)
            return false;
        seen |= axes;
        for (int i = 0; i < DTP_AXIS_COUNT; i++)
            if (axes & (1u << i))
                order[count++] = (enum dtp_mesh_axis)i;
    }
    for (int i = 0; i < DTP_AXIS_COUNT; i++)
        if (!(seen & (1u << i)))
            order[count++] = (enum dtp_mesh_axis)i;
    memcpy(layout->order, order, sizeof order);
    return true;
}

char *dtp_layout_order_text(const struct dtp_layout *layout, char *out, size_t bytes)
{
    out[0] = '\0';
    for (int i = 0; i < DTP_AXIS_COUNT; i++)
        dtp_append_part(out, bytes, "-", "%s", words[layout->order[i]]);
    return out;
}

/* ---- groups --------------------------------------------------------------------------------------------------------
 */

uint32_t dtp_layout_stride(const struct dtp_layout *layout, enum dtp_mesh_axis axis)
{
    uint32_t stride = 1;
    for (int i = 0; layout->order[i] != axis; i++)
        stride *= layout->size[layout->order[i]];
    return stride;
}

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

struct dtp_rank_group dtp_layout_group(const struct dtp_layout *layout, unsigned axes)
{
    struct dtp_rank_group group = {.size = 1};
    uint32_t stride = 1;
    if (axes >> DTP_AXIS_COUNT) { /* of experts */
        for (int axis = DTP_AXIS_ETP; axis < DTP_AXIS_ALL_COUNT; stride *= layout->size[axis++])
            if (axes & (1u << axis))
                add_fold(layout, &group, stride, layout->size[axis]);
        return group;
    }
    for (int i = 0; i < DTP_AXIS_COUNT; stride *= layout->size[layout->order[i++]])
        if (axes & (1u << layout->order[i]))
            add_stretch(&group, stride, layout->size[layout->order[i]]);
    return group;
}
