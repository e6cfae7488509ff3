/* Rows of tokens that each expert got, where ranks divide them: of those that divide the same ones each has heard all,
 * so one of them says it, and sums over these are of all ranks, whatever layers theirs are. */
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>

/* A rank's place among the ranks of its stage. */
static uint32_t place_of(const struct dtp_trainer *t, uint32_t rank)
{
    const struct dtp_program_set *set = t->binding.job.set;
    return set ? dtp_program_set_place(set, rank) : rank;
}

/* Experts of the model, which all ranks hear of: a stage without layers knows of none. */
static enum dtp_status most_experts(struct dtp_trainer *t, uint32_t *out)
{
    uint32_t *all = calloc(t->ranks, sizeof *all);
    *out = dtp_run_heard(t->run)->experts;
    enum dtp_status status = all ? dtp_world_exchange(&t->world, out, sizeof *out, all, t->faults)
                                 : dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint32_t rank = 0; status == DTP_OK && rank < t->ranks; rank++)
        *out = all[rank] > *out ? all[rank] : *out;
    free(all);
    return status;
}

enum dtp_status dtp_train_say_experts(struct dtp_trainer *t)
{
    const struct dtp_expert_rows *heard = dtp_run_heard(t->run);
    const uint32_t divide = dtp_bind_expert_place(&t->binding.job).ranks;
    uint32_t experts;
    if (!heard->layers) /* said of all ranks or of none */
        return DTP_OK;
    enum dtp_status status = most_experts(t, &experts);
    const size_t count = (size_t)heard->layers * experts;
    if (status != DTP_OK || !count || count > UINT32_MAX / sizeof *heard->rows)
        return status;
    uint64_t *own = calloc(count, sizeof *own), *sum = calloc(count, sizeof *sum);
    uint64_t *all = calloc(t->ranks * count, sizeof *all);
    if (own && heard->experts == experts)
        memcpy(own, heard->rows, count * sizeof *own);
    status = all && own && sum ? dtp_world_exchange(&t->world, own, (uint32_t)(count * sizeof *own), all, t->faults)
                               : dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint32_t rank = 0; status == DTP_OK && rank < t->ranks; rank++)
        for (size_t i = 0; i < count && place_of(t, rank) % divide == 0; i++)
            sum[i] += all[rank * count + i];
    if (status == DTP_OK)
        dtp_event_experts(t->events, &(struct dtp_expert_rows){sum, heard->layers, experts});
    free(own);
    free(all);
    free(sum);
    return status;
}
