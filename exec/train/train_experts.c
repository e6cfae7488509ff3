/* Rows of tokens that each expert got, where ranks divide them: of those that divide the same ones each has heard all,
 * so one of them says it, and sums over these are of all ranks. */
#include "train/trainer.h"

#include <stdlib.h>
#include <string.h>

enum dtp_status dtp_train_say_experts(struct dtp_trainer *t)
{
    const struct dtp_expert_rows *heard = dtp_run_heard(t->run);
    const uint32_t divide = dtp_bind_expert_place(&t->binding.job).ranks;
    const size_t count = (size_t)heard->layers * heard->experts;
    if (!count || count > UINT32_MAX / sizeof *heard->rows)
        return DTP_OK;
    uint64_t *all = calloc(t->ranks * count, sizeof *all), *sum = calloc(count, sizeof *sum);
    enum dtp_status status =
        all && sum ? dtp_world_exchange(&t->world, heard->rows, (uint32_t)(count * sizeof *all), all, t->faults)
                   : dtp_fault(t->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    for (uint32_t rank = 0; status == DTP_OK && rank < t->ranks; rank += divide)
        for (size_t i = 0; i < count; i++)
            sum[i] += all[rank * count + i];
    if (status == DTP_OK)
        dtp_event_experts(t->events, &(struct dtp_expert_rows){sum, heard->layers, heard->experts});
    free(all);
    free(sum);
    return status;
}
