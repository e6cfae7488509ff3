#include "observed/kernel_kind.h"

#include <string.h>

static const struct {
    const char *part;
    struct dtp_kernel_kind is;
} rows[] = {
#define X(part, kind, trait) {part, {DTP_OBSERVED_##kind, DTP_TRAIT_##trait}},
#include "observed/kernel_kind.def"
#undef X
};

struct dtp_kernel_kind dtp_kernel_kind_of(const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strstr(name, rows[i].part))
            return rows[i].is;
    return (struct dtp_kernel_kind){DTP_OBSERVED_ELEMENTWISE, DTP_TRAIT_PLAIN};
}

const char *dtp_observed_kind_words(enum dtp_observed_kind kind)
{
    static const char *const words[] = {
#define X(suffix, text) [DTP_OBSERVED_##suffix] = text,
        DTP_OBSERVED_KIND_TABLE(X)
#undef X
    };
    return words[kind];
}

const char *dtp_observed_part_words(enum dtp_observed_part part)
{
    static const char *const words[] = {
#define X(suffix, text) [DTP_OBSERVED_PART_##suffix] = text,
        DTP_OBSERVED_PART_TABLE(X)
#undef X
    };
    return words[part];
}
