/* Words of the text form that no other module spells. */
#ifndef DTP_PROGRAM_TEXT_WORDS_H
#define DTP_PROGRAM_TEXT_WORDS_H

/* Numbers of struct dtp_demand under their keys. */
#define DTP_DEMAND_TABLE(X) X(flops) X(m) X(n) X(k) X(bytes) X(sent_bytes) X(tokens)

/* By enum dtp_space and enum dtp_memory_kernel. */
#define DTP_SPACE_WORDS                                                                                                \
    {                                                                                                                  \
        "device", "host", "storage"                                                                                    \
    }
#define DTP_MEMORY_KERNEL_WORDS                                                                                        \
    {                                                                                                                  \
        "eager", "fused", "streaming"                                                                                  \
    }

#endif
