/* Rows that the libraries themselves were measured for (scenarios/library_runs.csv), whose notes have their settings by
 * the libraries' names: of Transformers' Trainer with peft and bitsandbytes, of DeepSpeed's engine. */
#include "runs/run_writer.h"

static bool noted(const struct writer *w, const char *words)
{
    return strstr(w->run->notes, words) != NULL;
}

/* The number behind "name=" sets `key`; a note that has none leaves it. */
static void set_noted(struct writer *w, const char *name, const char *key)
{
    const char *at = strstr(w->run->notes, name);
    char value[32];
    if (!at)
        return;
    at += strlen(name);
    snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "; "), at);
    set_text(w, key, value);
}

/* trainer_optimizer.py's words, by ours; a paged one's state stays where memory is not short. */
static void write_optimizer(struct writer *w)
{
    static const struct {
        const char *theirs, *ours;
    } words[] = {{"adamw_torch_fused", "adamw"},
                 {"adamw_torch", "adamw-foreach"},
                 {"adamw_8bit", "adam8bit"},
                 {"paged_adamw_8bit", "adam8bit"}};
    const char *at = strstr(w->run->notes, "optim=");
    if (!at)
        return;
    at += strlen("optim=");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].theirs) == strcspn(at, "; ") && strncmp(at, words[i].theirs, strcspn(at, "; ")) == 0) {
            set_text(w, "optimizer", words[i].ours);
            return;
        }
    REFUSE(w, "optim %.*s of Transformers' Trainer is not modelled", (int)strcspn(at, "; "), at);
}

void dtp_run_write_clipping(struct writer *w, const char *runtime)
{
    bool torch = strcmp(runtime, "torch") == 0 || strcmp(runtime, "peft") == 0;
    if (torch && (w->framework->clips || noted(w, "clip_grad_norm 1")))
        set_text(w, "clip_norm", "1");
}

void dtp_run_write_libraries(struct writer *w)
{
    if (!w->framework->notes_settings)
        return;
    if (strcmp(w->framework->runtime, "deepspeed") == 0) {
        set_noted(w, "reduce_bucket_size=", "reduce_bucket_size");
        set_noted(w, "overlap_comm=", "deepspeed_overlap");
        if (noted(w, "grad_accum_dtype fp32"))
            set_switch(w, "bf16_optimizer", true);
        if (noted(w, "Trainer") && !w->run->lora_rank) /* with adapters it always has them */
            set_switch(w, "transformers_layers", true);
        return;
    }
    write_optimizer(w);
    if (!w->run->lora_rank && noted(w, "weights bf16") && noted(w, "bf16 autocast") &&
        strstr(w->run->precision_recipe, "pure"))
        set_switch(w, "autocast", true);
    if (noted(w, "q, k and v are one linear"))
        set_switch(w, "fused_qkv", true);
    if (noted(w, "gate and up are one linear"))
        set_switch(w, "fused_gate_up", true);
    if (w->run->experts) /* experts_implementation of release 5 */
        set_switch(w, "grouped_experts", true);
    if (!w->run->lora_rank)
        return;
    set_noted(w, "dropout of adapters ", "lora_dropout");
    if (noted(w, "DoRA"))
        set_switch(w, "dora", true);
    if (noted(w, "embedding and head stay fp32"))
        set_switch(w, "fp32_ends", true);
}
