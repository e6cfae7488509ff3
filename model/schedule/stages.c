#include "schedule/stages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

void dtp_stages_destroy(struct dtp_stages *stages)
{
    free(stages->parts);
    *stages = (struct dtp_stages){0};
}

static enum dtp_status check_model(const struct dtp_stages_model *model, uint32_t count, struct dtp_faults *faults)
{
    if (model->layers < 1 || model->layers > DTP_STAGES_MAX_LAYERS || model->mtp_layers > DTP_STAGES_MAX_LAYERS)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "stages: a model has 1 to %u layers, not %" PRIu32,
                         DTP_STAGES_MAX_LAYERS, model->layers);
    if (count < 1 || count > DTP_STAGES_MAX)
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "stages: a model is cut into 1 to %u stages, not %" PRIu32,
                         DTP_STAGES_MAX, count);
    return DTP_OK;
}

/* Empty stages with embedding, MTP layers and head where they belong. */
static enum dtp_status start(const struct dtp_stages_model *model, uint32_t count, struct dtp_stages *out,
                             struct dtp_faults *faults)
{
    *out = (struct dtp_stages){0};
    enum dtp_status status = check_model(model, count, faults);
    if (status != DTP_OK)
        return status;
    out->parts = calloc(count, sizeof *out->parts);
    if (!out->parts)
        return dtp_fault(faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    out->count = count;
    out->parts[0].embedding = true;
    out->parts[count - 1].head = true;
    out->parts[count - 1].mtp_layers = model->mtp_layers;
    return DTP_OK;
}

/* The first layer of each, by their numbers. */
static void number_layers(struct dtp_stages *stages)
{
    uint32_t first = 0;
    for (uint32_t i = 0; i < stages->count; i++) {
        stages->parts[i].first_layer = first;
        first += stages->parts[i].layers;
    }
}

enum dtp_status dtp_stages_even(const struct dtp_stages_model *model, uint32_t count, bool embedding_counts,
                                bool head_counts, struct dtp_stages *out, struct dtp_faults *faults)
{
    enum dtp_status status = start(model, count, out, faults);
    if (status != DTP_OK)
        return status;
    uint32_t extra = (uint32_t)embedding_counts + head_counts, parts = model->layers + extra;
    uint32_t each = parts / count, rest = parts % count;
    if (rest) {
        dtp_stages_destroy(out);
        char below[32] = "";
        if (each > 0 && parts - rest > extra)
            snprintf(below, sizeof below, "%" PRIu32 " and ", model->layers - rest);
        return dtp_fault(faults, DTP_BAD_INPUT, NULL, 0,
                         "stages: %" PRIu32 " layers%s do not divide evenly into %" PRIu32
                         " stages; the nearest numbers are %s%" PRIu32 ", or cut by cost, by a layout, or best",
                         model->layers,
                         extra == 2         ? " with embedding and head counted"
                         : embedding_counts ? " with the embedding counted"
                         : head_counts      ? " with the head counted"
                                            : "",
                         count, below, model->layers - rest + count);
    }
    for (uint32_t i = 0; i < count; i++)
        out->parts[i].layers = each;
    out->parts[0].layers -= embedding_counts;
    out->parts[count - 1].layers -= head_counts;
    number_layers(out);
    return DTP_OK;
}

enum dtp_status dtp_stages_spread(const struct dtp_stages_model *model, uint32_t count, bool ends_count,
                                  struct dtp_stages *out, struct dtp_faults *faults)
{
    enum dtp_status status = start(model, count, out, faults);
    if (status != DTP_OK)
        return status;
    uint32_t ends = count == 1 || !ends_count ? 0 : 2, parts = model->layers + ends;
    if (count > parts) {
        dtp_stages_destroy(out);
        return dtp_fault(
            faults, DTP_BAD_INPUT, NULL, 0, "stages: %" PRIu32 " stages of %" PRIu32 " layers; at most %" PRIu32 "%s",
            count, model->layers, parts, ends ? ", the first with the embedding alone, the last with the head" : "");
    }
    for (uint32_t i = 0; i < count; i++)
        out->parts[i].layers = parts / count + (i < parts % count);
    out->parts[0].layers -= ends / 2;
    out->parts[count - 1].layers -= ends / 2;
    number_layers(out);
    return DTP_OK;
}

/* A share met exactly is full, as logs of nanotron's runs show: 10 of 16 layers on the first of two stages where the
 * head costs as much as 4. */
#define TIE 1e-12

enum dtp_status dtp_stages_by_cost(const struct dtp_stages_model *model, uint32_t count, double layer, double head,
                                   struct dtp_stages *out, struct dtp_faults *faults)
{
    enum dtp_status status = start(model, count, out, faults);
    if (status != DTP_OK)
        return status;
    double whole = layer * model->layers + head, given = 0;
    uint32_t stage = 0;
    for (uint32_t i = 0; i < model->layers; i++) {
        out->parts[stage].layers++;
        given += layer;
        if (stage + 1 < count && given * (1 + TIE) >= whole * ((double)(stage + 1) / count))
            stage++;
    }
    number_layers(out);
    return DTP_OK;
}

static void add_part(struct dtp_stage_cost *stage, const struct dtp_part_cost *part, double times)
{
    stage->forward_s += times * part->forward_s;
    stage->backward_s += times * part->backward_s;
    stage->weight_s += times * part->weight_s;
    stage->kept += times * part->kept;
    stage->kept_for_weight += times * part->kept_for_weight;
}

void dtp_stages_cost(const struct dtp_stages *stages, const struct dtp_model_cost *cost, struct dtp_stage_cost *out)
{
    for (uint32_t i = 0; i < stages->count; i++) {
        const struct dtp_stage_parts *p = &stages->parts[i];
        out[i] = (struct dtp_stage_cost){.send_s = cost->send_s};
        if (p->embedding)
            add_part(&out[i], &cost->embedding, 1);
        for (uint32_t layer = p->first_layer; layer < p->first_layer + p->layers; layer++)
            add_part(&out[i], &cost->layers[layer], 1);
        for (uint32_t k = 0; k < p->layers && k < cost->delayed_layers; k++)
            out[i].delayed_s += cost->layers[p->first_layer + k].weight_s;
        if (p->mtp_layers)
            add_part(&out[i], &cost->mtp_layer, p->mtp_layers);
        if (p->head)
            add_part(&out[i], &cost->head, 1);
    }
}
