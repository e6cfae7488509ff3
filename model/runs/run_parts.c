/* What a row has beyond a dense model of plain attention whose weights are all trained in 16 bits: columns of run
 * tables that say more than the program can predict are refused here, by the name of what is missing. Each subject is a
 * function of its own; once it is modelled, its columns become settings there. */
#include "runs/run_writer.h"

#include <stdlib.h>
#include <strings.h>

/* ---- experts --------------------------------------------------------------------------------------------------- */

/* Whether tokens were dropped, or moved by another way than PyTorch's all-to-alls, say the notes of some rows. */
static void refuse_ways(struct writer *w)
{
    static const char *const words[] = {"capacity factor", "ScatterMoE", "scattermoe", "DeepEP", "HybridEP", "deepep"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(w->run->notes, words[i]))
            REFUSE(w, "experts by '%s', as notes say, are not modelled; dropless grouped matmuls are", words[i]);
}

/* The model's dimensions are the shape's (run_shape.c); here how ranks divide its experts. Which runtimes have experts
 * says resolving. */
static void write_experts(struct writer *w)
{
    const struct dtp_run *run = w->run;
    if (run->experts && (!run->top_k || !run->expert_ffn))
        REFUSE(w, "n_experts %" PRIu64 " without top_k or moe_ffn_hidden: what a token passes is not stated",
               run->experts);
    if (run->etp > 1)
        REFUSE(w, "etp %" PRIu64 " (tensor parallel experts) is not modelled; 1 is", run->etp);
    if (run->experts) {
        refuse_ways(w);
        if (run->ep > 1)
            set_count(w, "ep", run->ep);
    } else if (run->ep > 1 || run->etp > 1)
        REFUSE(w, "ep %" PRIu64 " or etp %" PRIu64 " without n_experts: which layers have experts is not stated",
               run->ep, run->etp);
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

static void write_attention(struct writer *w)
{
    static const char *const plain[] = {"", "mha", "gqa", "mqa"};
    const char *word = w->run->attention;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcasecmp(word, plain[i]) == 0)
            return;
    if (strcasecmp(word, "mla") == 0)
        REFUSE(w, "latent attention (attention mla) is not modelled; mha, gqa and mqa are");
    else
        REFUSE(w, "attention '%.20s' is unknown; known: mha, gqa, mqa, mla", word);
}

/* ---- adapters -------------------------------------------------------------------------------------------------- */

/* Words of notes for the linears that have adapters, the longer ones first; q, k and v packed are as good as three of
 * the same rank in what is kept. */
static const struct {
    const char *words, *targets;
} target_notes[] = {{"all seven linears", "all"},
                    {"c_attn,c_proj,w1,w2", "all"},
                    {"q_proj k_proj v_proj o_proj", "attention"},
                    {"on q,k,v,o", "attention"},
                    {"all-linear", "all"}};

static const char *noted_targets(const char *notes)
{
    for (size_t i = 0; i < sizeof target_notes / sizeof *target_notes; i++)
        if (strstr(notes, target_notes[i].words))
            return target_notes[i].targets;
    return NULL;
}

/* Where neither the recipe nor notes say that adapters are in 16 bits, peft makes them fp32 beside a 16-bit base
 * (autocast_adapter_dtype of get_peft_model, true by default). */
static bool narrow_adapters(const struct dtp_run *run)
{
    return strstr(run->notes, "adapters stored in bf16") || strstr(run->precision_recipe, "pure");
}

/* A row that says how its frozen base is kept has adapters, whether it states their rank or not. */
static void write_adapters(struct writer *w)
{
    const struct dtp_run *run = w->run;
    const char *targets = noted_targets(run->notes), *base = run->quantised_base;
    if (!run->lora_rank && !*base)
        return;
    if (!run->lora_rank) {
        REFUSE(w, "lora_rank is not stated (quantised_base %.20s): how many weights are trained is unknown", base);
        return;
    }
    if (!targets) {
        REFUSE(w, "which linears have adapters (lora_rank %" PRIu64 ") is not stated in notes", run->lora_rank);
        return;
    }
    if (run->experts)
        REFUSE(w, "adapters (lora_rank %" PRIu64 ") of a mixture of experts are not modelled", run->lora_rank);
    set_count(w, "lora", run->lora_rank);
    set_text(w, "lora_targets", targets);
    if (!narrow_adapters(run))
        set_text(w, "lora_dtype", "fp32");
    if (*base)
        set_text(w, "base", base);
}

/* ---- recipes of precision -------------------------------------------------------------------------------------- */

/* Those whose precision param_dtype, fp8 and the words "pure" and "rowwise" say in full; Transformer Engine calls its
 * scaling by tensor in this step "current". */
static const char *const plain_recipes[] = {"",
                                            "bf16",
                                            "fp16",
                                            "bf16 pure",
                                            "bf16-pure",
                                            "bf16-mixed",
                                            "fp16-mixed",
                                            "bf16 autocast",
                                            "fp16 autocast",
                                            "fp8-tensorwise",
                                            "fp8-current-tensorwise",
                                            "fp8 (per-tensor)",
                                            "fp8 (per-tensor; scaling not stated)",
                                            "fp8-rowwise",
                                            "fp8-tensorwise bf16 state",
                                            "fp8-rowwise bf16 state"};

static void write_recipe(struct writer *w)
{
    for (size_t i = 0; i < sizeof plain_recipes / sizeof *plain_recipes; i++)
        if (strcmp(w->run->precision_recipe, plain_recipes[i]) == 0)
            return;
    REFUSE(w, "precision_recipe '%.60s' is not modelled; fp8-tensorwise and fp8-rowwise are", w->run->precision_recipe);
}

/* ---- hooks of DDP ---------------------------------------------------------------------------------------------- */

/* "comm hook powersgd rank 4", "comm hook fp16_compress_hook". */
static void write_hooks(struct writer *w)
{
    static const char *const words[] = {"fp16", "bf16", "powersgd"};
    const char *note = strstr(w->run->notes, "comm hook ");
    if (!note)
        return;
    note += strlen("comm hook ");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]);
        if (strncasecmp(note, words[i], length) != 0)
            continue;
        set(w, "comm_hook", "%s", words[i]);
        if (strncasecmp(note + length, " rank ", strlen(" rank ")) == 0)
            set_count(w, "powersgd_rank", strtoull(note + length + strlen(" rank "), NULL, 10));
        return;
    }
    REFUSE(w, "DDP's communication hook '%.*s' is not modelled; fp16, bf16, powersgd and plain all-reduce are",
           (int)strcspn(note, " ;,"), note);
}

/* ---- the row --------------------------------------------------------------------------------------------------- */

bool dtp_run_write_parts(struct writer *w)
{
    static void (*const parts[])(struct writer *) = {write_experts, write_attention, write_adapters, write_recipe,
                                                     write_hooks};
    enum dtp_status before = w->status;
    w->status = DTP_OK;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        parts[i](w);
    bool modelled = w->status == DTP_OK;
    w->status = w->status > before ? w->status : before;
    return modelled;
}
