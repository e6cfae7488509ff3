#include "closed/closed_form.h"

const char *dtp_verdict_text(enum dtp_verdict verdict)
{
    switch (verdict) {
    case DTP_VERDICT_FITS: return "fits";
    case DTP_VERDICT_TIGHT: return "tight";
    case DTP_VERDICT_OOM: return "oom";
    }
    return "?";
}
