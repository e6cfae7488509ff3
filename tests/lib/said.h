/* What faults say. */
#ifndef TEST_SAID_H
#define TEST_SAID_H

#include "base/status.h"

#include <string.h>

/* One of those that were kept has these words. */
static inline void assert_said(const struct dtp_faults *faults, const char *words)
{
    for (size_t i = 0; i < faults->count && i < DTP_FAULTS_KEPT; i++)
        if (strstr(faults->text[i], words))
            return;
    fail_msg("'%s' is not said; the first of %zu: '%s'", words, faults->count, faults->text[0]);
}

#endif
