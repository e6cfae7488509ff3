/* Every format there is: a table and, where it needs one, a few lines of code each. */
#ifndef DTP_IMPORT_FORMATS_H
#define DTP_IMPORT_FORMATS_H

#include "import/format.h"

/* X(name), in the order in which they are tried. */
#define DTP_FORMAT_TABLE(X)                                                                                            \
    X(deepspeed)                                                                                                       \
    X(accelerate)                                                                                                      \
    X(torchtitan)                                                                                                      \
    X(trainer)                                                                                                         \
    X(nanotron)                                                                                                        \
    X(nemo)                                                                                                            \
    X(bridge)                                                                                                          \
    X(megatron)                                                                                                        \
    X(torchtune)                                                                                                       \
    X(axolotl)                                                                                                         \
    X(foundry)                                                                                                         \
    X(peft)

#define DTP_FORMAT_DECLARE(name) extern const struct dtp_format dtp_format_##name;
DTP_FORMAT_TABLE(DTP_FORMAT_DECLARE)
#undef DTP_FORMAT_DECLARE

#endif
