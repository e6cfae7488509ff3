#include "base/execution.h"

const char *dtp_issuer_text(enum dtp_issuer issuer)
{
    static const char *const texts[] = {
#define DTP_ISSUER_TEXT(suffix, text) text,
        DTP_ISSUER_TABLE(DTP_ISSUER_TEXT)
#undef DTP_ISSUER_TEXT
    };
    return texts[issuer];
}

const char *dtp_allocator_text(enum dtp_allocator allocator)
{
    static const char *const texts[] = {
#define DTP_ALLOCATOR_TEXT(suffix, text) text,
        DTP_ALLOCATOR_TABLE(DTP_ALLOCATOR_TEXT)
#undef DTP_ALLOCATOR_TEXT
    };
    return texts[allocator];
}
