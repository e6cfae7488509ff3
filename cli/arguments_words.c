/* Words of flags: what those that nobody knows may have meant, and values that are numbers. */
#include "cli/arguments.h"

#include "base/nearest.h"
#include "base/number.h"
#include "job/scenario.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void dtp_key_of_flag(const char *flag, char *key, size_t bytes)
{
    size_t length = strcspn(flag + 2, "=");
    if (length >= bytes)
        length = bytes - 1;
    for (size_t i = 0; i < length; i++)
        key[i] = flag[2 + i] == '-' ? '_' : flag[2 + i];
    key[length] = '\0';
}

/* "micro_batch" as it is typed: "--micro-batch". */
static const char *flag_of_name(const char *name, char *out, size_t bytes)
{
    snprintf(out, bytes, "%s%s", name[0] == '-' ? "" : "--", name);
    for (char *c = out; *c; c++)
        *c = *c == '_' ? '-' : *c;
    return out;
}

/* Words of other programs for what is a value here, or whose letters are near to none of ours; NULL: it is none. */
static const char *meant_by(const char *key)
{
    static const struct {
        const char *word, *meant;
    } rows[] = {
        {"zero", "--strategy zero1, zero2 or zero3"},
        {"zero_stage", "--strategy zero1, zero2 or zero3"},
        {"fsdp", "--strategy full_shard"},
        {"ddp", "--strategy ddp"},
        {"dtype", "--precision bf16-mixed"},
        {"bf16", "--precision bf16-mixed"},
        {"fp16", "--precision fp16-mixed"},
        {"fp8", "--precision fp8-tensorwise"},
        {"mixed_precision", "--precision bf16-mixed"},
        {"tensor_parallel", "--tp N"},
        {"pipeline_parallel", "--pp N"},
        {"context_parallel", "--cp N"},
        {"expert_parallel", "--ep N"},
        {"batch", "--micro-batch N, of each GPU, or --global-batch N"},
        {"context", "--seq N"},
        {"context_length", "--seq N"},
        {"gradient_checkpointing", "--checkpointing full"},
        {"activation_checkpointing", "--checkpointing full"},
        {"recompute", "--checkpointing full"},
        {"fsdp2", "--strategy full_shard, which is FSDP2"},
        {"deepspeed", "--runtime deepspeed --strategy zero3, or --from ds_config.json"},
        {"megatron", "--runtime megatron --tp N --pp N"},
        {"qlora", "--lora 16 --base nf4"},
        {"load_in_4bit", "--lora 16 --base nf4"},
        {"load_in_8bit", "--lora 16 --base int8"},
        {"quantization", "--lora 16 --base nf4 for frozen weights, --precision for matmuls"},
        {"peft", "--lora 16, and --runtime peft for Transformers' layers"},
        {"lora_r", "--lora RANK"},
        {"lora_rank", "--lora RANK"},
        {"rank", "--lora RANK"},
        {"full_finetune", "nothing: all weights are trained unless --lora says otherwise"},
        {"config", "--from FILE of a framework's configuration, --model FILE of a model's config.json"},
        {"gpu_type", "--gpu NAME (dtplan catalog gpus lists them)"},
        {"hardware", "--gpu NAME (dtplan catalog gpus lists them)"},
        {"num_gpus", "--gpus N"},
        {"world_size", "--gpus N"},
        {"num_nodes", "--nodes N"},
        {"data_parallel", "--gpus N: of them those that tp, cp and pp leave are data parallel"},
        {"tensor_parallel_size", "--tp N"},
        {"pipeline_parallel_size", "--pp N"},
        {"expert_model_parallel_size", "--ep N"},
        {"grad_accum", "--accumulate N"},
        {"max_length", "--seq N"},
        {"max_seq_len", "--seq N"},
        {"block_size", "--seq N"},
        {"epochs", "--tokens N, of all epochs together"},
        {"num_train_epochs", "--tokens N, of all epochs together"},
        {"liger", "--loss fused"},
        {"flash_attn", "--attention flash, the default"},
        {"torch_compile", "--compile"},
        {"tokens_per_s",
         "dtplan compare LOG, with a log, a trace or a history of memory of the run and the plan's keys"},
        {"measured", "dtplan compare LOG, with a log, a trace or a history of memory of the run and the plan's keys"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].word, key) == 0)
            return rows[i].meant;
    return NULL;
}

void dtp_fault_unknown_flag(const char *flag, enum dtp_command command, struct dtp_faults *faults)
{
    struct dtp_nearest nearest;
    char typed[64], hint[192], fallback[64], key[64], flags[DTP_NEAREST_KEPT][64];
    size_t key_count, alias_count, option_count;
    bool takes_job = dtp_command_takes_job(command);
    const struct dtp_option *options = dtp_options(&option_count);
    const struct dtp_scenario_key *keys = dtp_scenario_keys(&key_count);
    const struct dtp_scenario_alias *aliases = dtp_scenario_aliases(&alias_count);
    dtp_key_of_flag(flag, key, sizeof key);
    if (!takes_job && strncmp(flag, "--", 2) == 0 && dtp_scenario_key_of(key)) {
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: a key of jobs, of which '%s' takes none%s; see dtplan help %s",
                  flag, dtp_command_text(command), command == DTP_COMMAND_BACKTEST ? ": they stand in its table" : "",
                  dtp_command_text(command));
        return;
    }
    if (takes_job && strncmp(flag, "--", 2) == 0 && meant_by(key)) {
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: unknown flag of '%s'; write %s", flag, dtp_command_text(command),
                  meant_by(key));
        return;
    }
    snprintf(typed, sizeof typed, "%.*s", (int)strcspn(flag, "="), flag);
    dtp_nearest_begin(&nearest, typed);
    for (size_t i = 0; i < option_count; i++)
        if (options[i].commands & (1u << command))
            dtp_nearest_offer(&nearest, options[i].flag);
    for (size_t i = 0; i < key_count && takes_job; i++)
        dtp_nearest_offer(&nearest, keys[i].key);
    for (size_t i = 0; i < alias_count && takes_job; i++)
        if (!aliases[i].value)
            dtp_nearest_offer(&nearest, aliases[i].word);
    for (size_t i = 0; i < nearest.count; i++)
        nearest.names[i] = flag_of_name(nearest.names[i], flags[i], sizeof flags[i]);
    dtp_nearest_text(&nearest, hint, sizeof hint);
    snprintf(fallback, sizeof fallback, "see dtplan help %s", dtp_command_text(command));
    dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: unknown flag of '%s'; %s", flag, dtp_command_text(command),
              hint[0] ? hint : fallback);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

void dtp_argument_most(uint32_t *out, const char *flag, const char *value, struct dtp_faults *faults)
{
    uint64_t most;
    if (!dtp_number_parse_integer(value, false, 1, DTP_SOLVE_MAX_GPUS, &most))
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: '%.64s' is not a whole number from 1 to %u", flag, value,
                  DTP_SOLVE_MAX_GPUS);
    else
        *out = (uint32_t)most;
}

void dtp_argument_whole(uint64_t *out, const char *flag, const char *value, uint64_t minimum, uint64_t maximum,
                        struct dtp_faults *faults)
{
    if (!dtp_number_parse_integer(value, false, minimum, maximum, out))
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: '%s' is no whole number from %" PRIu64 " to %" PRIu64, flag,
                  value, minimum, maximum);
}

void dtp_argument_factor(double *out, const char *flag, const char *value, double minimum, double maximum,
                         struct dtp_faults *faults)
{
    if (!dtp_number_parse(value, out) || *out < minimum || *out > maximum)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "%s: '%s' is no number from %g to %g", flag, value, minimum, maximum);
}

/* "5%" or 0.05. */
void dtp_argument_tolerance(struct dtp_arguments *a, const char *value, struct dtp_faults *faults)
{
    char number[64];
    size_t length = strlen(value);
    bool percent = length > 0 && value[length - 1] == '%';
    double most = percent ? 1e5 : 1;
    snprintf(number, sizeof number, "%.*s", (int)(length - percent), value);
    if (!dtp_number_parse(number, &a->tolerance) || !(a->tolerance > 0) || a->tolerance > most)
        dtp_fault(faults, DTP_BAD_INPUT, NULL, 0, "--tolerance: '%.64s' is no share of a step; write 5%%", value);
    a->tolerance /= percent ? 100 : 1;
}
