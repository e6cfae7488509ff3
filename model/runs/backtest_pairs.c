/* Pairs of runs of one sweep that differ in one setting: whether the faster of both is predicted to be the faster. */
#include "runs/backtest_statistics.h"

#include <math.h>
#include <string.h>

/* Closer runs are not told apart: of one configuration that was measured again by its own makers, speeds differ by as
 * much (Megatron-Bridge's DeepSeek-V3 on GB300 over three releases, 0.8 %, and by node at most this). */
#define MEASURED_APART 0.02

static int differ(const char *a, const char *b)
{
    return strcmp(a, b) != 0;
}

/* Columns of settings in which two runs of a sweep differ. What follows from others is no setting of its own:
 * data-parallel ranks, and micro-steps where the global batch is the same; formats of numbers are one. */
static int settings_apart(const struct dtp_run *a, const struct dtp_run *b)
{
    int texts = differ(a->strategy_key, b->strategy_key) + differ(a->offload_key, b->offload_key) +
                differ(a->checkpointing, b->checkpointing) + differ(a->flash_attention, b->flash_attention) +
                differ(a->compile, b->compile) + differ(a->schedule, b->schedule) +
                differ(a->sequence_parallel, b->sequence_parallel) + differ(a->quantised_base, b->quantised_base) +
                differ(a->links, b->links) + differ(a->network, b->network);
    int formats = differ(a->param_dtype, b->param_dtype) + differ(a->fp8, b->fp8) +
                  differ(a->precision_recipe, b->precision_recipe);
    int ways = (a->tp != b->tp) + (a->pp != b->pp) + (a->cp != b->cp) + (a->ep != b->ep) + (a->etp != b->etp) +
               (a->virtual_stages != b->virtual_stages) + (a->gpus != b->gpus) + (a->shard_group != b->shard_group);
    int batch =
        (a->micro_batch != b->micro_batch) + (a->global_batch != b->global_batch && a->accumulate != b->accumulate);
    return texts + (formats > 0) + ways + batch + (a->lora_rank != b->lora_rank);
}

/* A run that its makers measured again with newer software differs in nothing that a table states. */
static bool again(const struct dtp_run *run)
{
    return strstr(run->notes, "re-measure") || strstr(run->notes, "measured again");
}

static bool one_apart(const struct dtp_run *a, const struct dtp_run *b)
{
    int apart = settings_apart(a, b);
    bool told = differ(a->notes, b->notes) && again(a) == again(b);
    return apart == 1 ? again(a) == again(b) : apart == 0 && told;
}

void dtp_backtest_judge_pairs(struct dtp_backtest_choices *choices, struct dtp_backtest_row *const *rows, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < i; k++) {
            double one = rows[i]->measured_tokens_per_s_per_gpu, other = rows[k]->measured_tokens_per_s_per_gpu;
            if (!(one > 0 && other > 0) || fabs(one / other - 1) < MEASURED_APART ||
                !one_apart(&rows[i]->run, &rows[k]->run))
                continue;
            double first = rows[i]->forecast.prediction.throughput.tokens_per_s_per_gpu,
                   second = rows[k]->forecast.prediction.throughput.tokens_per_s_per_gpu;
            choices->pairs++;
            choices->pairs_alike += fabs(first / second - 1) < 1e-9;
            choices->pairs_right += (one > other) == (first > second) && fabs(first / second - 1) >= 1e-9;
        }
}
