/* Of frozen jobs, rows of FROZEN_DRAWS (frozen_jobs.h) for keys of adapters. */
#ifndef TEST_FROZEN_ADAPTER_DRAWS_H
#define TEST_FROZEN_ADAPTER_DRAWS_H

#define FROZEN_ADAPTER_DRAWS(X)                                                                                        \
    X(lora, ADAPTED, 12, "8|16|64")                                                                                    \
    X(lora_alpha, ADAPTED, 4, "16|32")                                                                                 \
    X(lora_targets, ADAPTED, 3, "attention|q+v|up+down|gate")                                                          \
    X(lora_dtype, ADAPTED, 3, "fp32")                                                                                  \
    X(lora_dropout, ADAPTED, 4, "0.05")                                                                                \
    X(base, ADAPTED, 2, "nf4|nf4|int8|fp8|int4")                                                                       \
    X(train_ends, ADAPTED, 2, "true")

#endif
