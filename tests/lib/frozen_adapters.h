/* Keys of frozen jobs that came when the jobs stood; of adapters which mean nothing without them, and which they
 * refuse. Part of frozen_jobs.h. */
#ifndef TEST_FROZEN_ADAPTERS_H
#define TEST_FROZEN_ADAPTERS_H

static const enum dtp_key frozen_adapter_keys[] = {
    DTP_KEY_lora_alpha, DTP_KEY_lora_targets,   DTP_KEY_lora_dtype, DTP_KEY_lora_dropout,   DTP_KEY_base,
    DTP_KEY_train_ends, DTP_KEY_gptq_operators, DTP_KEY_dora,       DTP_KEY_lora_parameters};

static inline bool frozen_of_adapters(enum dtp_key key)
{
    for (size_t i = 0; i < sizeof frozen_adapter_keys / sizeof *frozen_adapter_keys; i++)
        if (frozen_adapter_keys[i] == key)
            return true;
    return key == DTP_KEY_lora;
}

/* Keys that came when the jobs stood: where they mean nothing they are not drawn, and leave jobs as they are. */
static inline bool frozen_came_later(enum dtp_key key)
{
    return key == DTP_KEY_layout_order || key == DTP_KEY_schedule || key == DTP_KEY_microbatch_group ||
           key == DTP_KEY_stages || key == DTP_KEY_fast_kernels || key == DTP_KEY_narrow_logits ||
           key == DTP_KEY_unread_loss || key == DTP_KEY_fused_activation || key == DTP_KEY_autocast ||
           key == DTP_KEY_transformers_layers || frozen_of_adapters(key) || key == DTP_KEY_cp_comm ||
           key == DTP_KEY_post_validation || (key >= DTP_KEY_qk_layer_norm && key <= DTP_KEY_norm_without_weight);
}

static inline bool frozen_of_degrees(enum dtp_key key)
{
    return key == DTP_KEY_pp || key == DTP_KEY_cp || key == DTP_KEY_cp_comm || key == DTP_KEY_virtual_stages ||
           key == DTP_KEY_schedule;
}

/* Takes away what one leaves no meaning beside the other. */
static inline void frozen_keep_adapted(struct frozen_job *job)
{
    static const enum dtp_key refused[] = {DTP_KEY_tp,
                                           DTP_KEY_pp,
                                           DTP_KEY_cp,
                                           DTP_KEY_cp_comm,
                                           DTP_KEY_tp_overlap,
                                           DTP_KEY_fsdp1,
                                           DTP_KEY_stages,
                                           DTP_KEY_virtual_stages,
                                           DTP_KEY_microbatch_group,
                                           DTP_KEY_limit_all_gathers,
                                           DTP_KEY_offload,
                                           DTP_KEY_fused_qkv,
                                           DTP_KEY_fused_gate_up,
                                           DTP_KEY_reduce_dtype,
                                           DTP_KEY_fp8_all_gather,
                                           DTP_KEY_schedule,
                                           DTP_KEY_layout_order,
                                           DTP_KEY_experts};
    bool adapted = job->value[DTP_KEY_lora][0], ends = job->value[DTP_KEY_train_ends][0];
    for (size_t i = 0; !adapted && i < sizeof frozen_adapter_keys / sizeof *frozen_adapter_keys; i++)
        job->value[frozen_adapter_keys[i]][0] = '\0';
    bool other = job->value[DTP_KEY_tp][0] || job->value[DTP_KEY_pp][0] || job->value[DTP_KEY_cp][0] ||
                 frozen_is(job, DTP_KEY_megatron_layers, "true") || frozen_is(job, DTP_KEY_loss, "chunked") ||
                 strncmp(job->value[DTP_KEY_checkpointing], "selective", 9) == 0 ||
                 strncmp(job->value[DTP_KEY_checkpointing], "every", 5) == 0;
    if (other)
        job->value[DTP_KEY_transformers_layers][0] = '\0';
    if (frozen_is(job, DTP_KEY_loss, "fused"))
        job->value[DTP_KEY_narrow_logits][0] = '\0';
    if (adapted || !frozen_is(job, DTP_KEY_precision, "bf16-pure"))
        job->value[DTP_KEY_autocast][0] = '\0';
    if (!adapted)
        return;
    const bool held = frozen_population(job->number) == FROZEN_OF_HELD;       /* FSDP1, the base on the host */
    const bool bridged = frozen_population(job->number) == FROZEN_OF_BRIDGED; /* whose ranks divide them */
    const bool sorted = frozen_population(job->number) == FROZEN_OF_SORTED;
    const bool spread = frozen_population(job->number) >= FROZEN_OF_STAGED; /* over stages, over sequences */
    for (size_t i = 0; i < sizeof refused / sizeof *refused && !bridged; i++)
        if (!(spread && frozen_of_degrees(refused[i])) && !(sorted && refused[i] == DTP_KEY_experts) &&
            (!held ||
             (refused[i] != DTP_KEY_fsdp1 && refused[i] != DTP_KEY_offload && refused[i] != DTP_KEY_limit_all_gathers)))
            job->value[refused[i]][0] = '\0';
    if (strncmp(job->value[DTP_KEY_reshard_after_forward], "t", 1) != 0)
        job->value[DTP_KEY_reshard_after_forward][0] = '\0';
    if (strncmp(job->value[DTP_KEY_precision], "fp8", 3) == 0 && !bridged)
        job->value[DTP_KEY_precision][0] = '\0';
    if (frozen_is(job, DTP_KEY_checkpointing, "selective"))
        job->value[DTP_KEY_checkpointing][0] = '\0';
    if (!frozen_is(job, DTP_KEY_base, "int4"))
        job->value[DTP_KEY_gptq_operators][0] = '\0';
    if (frozen_is(job, DTP_KEY_dora, "true"))
        job->value[DTP_KEY_base][0] = job->value[DTP_KEY_gptq_operators][0] = job->value[DTP_KEY_compile][0] = '\0';
    if (ends) /* of a head of its own, in the dtype of the base */
        job->value[DTP_KEY_lora_dtype][0] = job->value[DTP_KEY_tied_head][0] = '\0';
}

#endif
