#include "closed/closed_form.h"

const char *dtp_owner_key(enum dtp_owner owner)
{
    static const char *const keys[] = {
#define DTP_OWNER_KEY(suffix, key, words) key,
        DTP_OWNER_TABLE(DTP_OWNER_KEY)
#undef DTP_OWNER_KEY
    };
    return (unsigned)owner < DTP_OWNER_COUNT ? keys[owner] : "?";
}

const char *dtp_owner_words(enum dtp_owner owner)
{
    static const char *const words_of[] = {
#define DTP_OWNER_WORDS(suffix, key, words) words,
        DTP_OWNER_TABLE(DTP_OWNER_WORDS)
#undef DTP_OWNER_WORDS
    };
    return (unsigned)owner < DTP_OWNER_COUNT ? words_of[owner] : "?";
}

const char *dtp_phase_key(enum dtp_phase phase)
{
    static const char *const keys[] = {
#define DTP_PHASE_KEY(suffix, key, words) key,
        DTP_PHASE_TABLE(DTP_PHASE_KEY)
#undef DTP_PHASE_KEY
    };
    return (unsigned)phase < DTP_PHASE_COUNT ? keys[phase] : "?";
}

const char *dtp_phase_words(enum dtp_phase phase)
{
    static const char *const words_of[] = {
#define DTP_PHASE_WORDS(suffix, key, words) words,
        DTP_PHASE_TABLE(DTP_PHASE_WORDS)
#undef DTP_PHASE_WORDS
    };
    return (unsigned)phase < DTP_PHASE_COUNT ? words_of[phase] : "?";
}

const char *dtp_collective_text(enum dtp_collective collective)
{
    static const char *const texts[] = {
#define DTP_COLLECTIVE_NAME(suffix, text) text,
        DTP_COLLECTIVE_TABLE(DTP_COLLECTIVE_NAME)
#undef DTP_COLLECTIVE_NAME
    };
    return (unsigned)collective < DTP_COLLECTIVE_COUNT ? texts[collective] : "?";
}

const char *dtp_verdict_text(enum dtp_verdict verdict)
{
    switch (verdict) {
    case DTP_VERDICT_FITS: return "fits";
    case DTP_VERDICT_TIGHT: return "tight";
    case DTP_VERDICT_OOM: return "oom";
    }
    return "?";
}
