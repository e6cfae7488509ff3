#include "plan/executor_choices.h"

void dtp_executor_choices(const struct dtp_plan *plan, struct dtp_executor_choice out[DTP_EXECUTOR_CHOICE_COUNT])
{
#define AS_CHOICE(field, kind)                                                                                         \
    out[DTP_EXECUTOR_CHOICE_##field] =                                                                                 \
        (struct dtp_executor_choice){#field, DTP_CHOICE_##kind, (double)plan->executor.field};
    DTP_EXECUTOR_CHOICE_TABLE(AS_CHOICE)
#undef AS_CHOICE
}

const char *dtp_executor_choice_word(const struct dtp_executor_choice *choice)
{
    return choice->kind == DTP_CHOICE_ENGINE ? dtp_engine_text((enum dtp_engine)choice->value) : NULL;
}
