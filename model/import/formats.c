#include "import/formats.h"

static const struct dtp_format *const formats[] = {
#define DTP_FORMAT_ADDRESS(name) &dtp_format_##name,
    DTP_FORMAT_TABLE(DTP_FORMAT_ADDRESS)
#undef DTP_FORMAT_ADDRESS
};

const struct dtp_format *const *dtp_formats(size_t *count)
{
    *count = sizeof formats / sizeof *formats;
    return formats;
}
