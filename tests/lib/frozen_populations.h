/* Which frozen job (frozen_jobs.h) is of which kind. A kind that comes later takes numbers behind all others, so that
 * no job before it changes. */
#ifndef TEST_FROZEN_POPULATIONS_H
#define TEST_FROZEN_POPULATIONS_H

#include "runtime/runtimes.h"

enum frozen_of {
    FROZEN_OF_ANY,
    FROZEN_OF_NANOTRON,
    FROZEN_OF_PEFT,
    FROZEN_OF_ROUTED,
    FROZEN_OF_HOOKED,
    FROZEN_OF_SLOTTED,
    FROZEN_OF_PIPED,
    FROZEN_OF_LATENT,
    FROZEN_OF_NARROW,
    FROZEN_OF_CLAMPED,
    FROZEN_OF_ROUTED_IN,
    FROZEN_OF_FILTERED,
    FROZEN_OF_CUT,
    FROZEN_OF_PREPARED,
    FROZEN_OF_WAITING,
    FROZEN_OF_ROOMY,
    FROZEN_OF_LEARNT,
    FROZEN_OF_PROJECTED,
    FROZEN_OF_DELAYED,
    FROZEN_OF_NATIVE,
    FROZEN_OF_KEPT,
    FROZEN_OF_LAYERED,
    FROZEN_OF_HELD,
    FROZEN_OF_ROUNDS,
    FROZEN_OF_SORTED,
    FROZEN_OF_STAGED,
    FROZEN_OF_SPREAD,
    FROZEN_OF_CARRIED,
    FROZEN_OF_GATHERED,
    FROZEN_OF_BRIDGED,
    FROZEN_OF_EXCHANGED,
    FROZEN_OF_COUNT
};

/* `runtime` NULL: of those that random plans draw. */
struct frozen_population {
    uint32_t from;
    const struct dtp_runtime *runtime;
    bool experts;
};

static const struct frozen_population frozen_populations[FROZEN_OF_COUNT] = {
    [FROZEN_OF_ANY] = {0, NULL, false},
    [FROZEN_OF_NANOTRON] = {2000, &dtp_runtime_nanotron, false},
    [FROZEN_OF_PEFT] = {2200, &dtp_runtime_peft, false},
    [FROZEN_OF_ROUTED] = {2500, &dtp_runtime_megatron, true},    /* models with experts */
    [FROZEN_OF_HOOKED] = {2580, &dtp_runtime_dtplan, false},     /* what replicas sum in place of gradients */
    [FROZEN_OF_SLOTTED] = {2620, &dtp_runtime_deepspeed, true},  /* models with experts */
    [FROZEN_OF_PIPED] = {2660, &dtp_runtime_megatron, false},    /* every schedule of a pipeline */
    [FROZEN_OF_LATENT] = {2740, &dtp_runtime_megatron, true},    /* DeepSeek-V3 in small */
    [FROZEN_OF_NARROW] = {2780, &dtp_runtime_megatron, true},    /* recipes of fp8 and fp4 */
    [FROZEN_OF_CLAMPED] = {2820, &dtp_runtime_torch, true},      /* gpt-oss in small */
    [FROZEN_OF_ROUTED_IN] = {2850, &dtp_runtime_torch, true},    /* Llama 4 in small */
    [FROZEN_OF_FILTERED] = {2880, &dtp_runtime_torch, false},    /* torchao's recipes and later optimizers */
    [FROZEN_OF_CUT] = {2940, &dtp_runtime_dtplan, false},        /* our executor with tp or cp */
    [FROZEN_OF_PREPARED] = {2980, &dtp_runtime_peft, false},     /* packed bases as TRL prepares them */
    [FROZEN_OF_WAITING] = {3010, &dtp_runtime_deepspeed, false}, /* pipelines of DeepSpeed; a host that waits */
    [FROZEN_OF_ROOMY] = {3050, &dtp_runtime_dtplan, true},       /* our executor with experts that ranks divide */
    [FROZEN_OF_LEARNT] = {3080, &dtp_runtime_torch, false},      /* optimizers of whole tensors */
    [FROZEN_OF_PROJECTED] = {3100, &dtp_runtime_torch, false},   /* projected gradients, moments of rows */
    [FROZEN_OF_DELAYED] = {3130, &dtp_runtime_dtplan, false},    /* stages of our executor */
    [FROZEN_OF_NATIVE] = {3160, &dtp_runtime_megatron, false},   /* Megatron-Core's own fused loss */
    [FROZEN_OF_KEPT] = {3180, &dtp_runtime_megatron, true},      /* weights that are casts, narrow optimizers */
    [FROZEN_OF_LAYERED] = {3220, &dtp_runtime_torch, false},     /* tp, pp and cp of PyTorch */
    [FROZEN_OF_HELD] = {3300, &dtp_runtime_peft, false},         /* adapters beside FSDP1's frozen units */
    [FROZEN_OF_ROUNDS] = {3330, &dtp_runtime_torch, false},      /* rounds of any size, ends that are units */
    [FROZEN_OF_SORTED] = {3390, &dtp_runtime_peft, true},        /* experts of Transformers 5 */
    [FROZEN_OF_STAGED] = {3430, &dtp_runtime_dtplan, false},     /* adapters in stages, beside shared sequences */
    [FROZEN_OF_SPREAD] = {3470, &dtp_runtime_torch, false},      /* the same of PyTorch */
    [FROZEN_OF_CARRIED] = {3510, &dtp_runtime_torch, false},     /* checkpoints on the host */
    [FROZEN_OF_GATHERED] = {3540, &dtp_runtime_torch, false},    /* logits that tensor parallel ranks gather */
    [FROZEN_OF_BRIDGED] = {3560, &dtp_runtime_megatron, false},  /* adapters with tp, pp and cp of Megatron */
    [FROZEN_OF_EXCHANGED] = {3600, &dtp_runtime_torch, true},    /* experts in stages of PyTorch, kept by operators */
};

#define FROZEN_JOBS 3660u

static inline enum frozen_of frozen_population(uint64_t number)
{
    int i = FROZEN_OF_COUNT - 1;
    while (number < frozen_populations[i].from)
        i--;
    return (enum frozen_of)i;
}

#endif
