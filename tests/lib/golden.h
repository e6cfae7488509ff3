/* Golden files: what a report looks like, to the letter. DTPLAN_UPDATE=1 ./test.sh -R NAME rewrites them; the change is
 * then reviewed as a diff. */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline char *golden_read(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    if (file) {
        text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
        fclose(file);
    }
    return text;
}

/* Points at the first line that differs, then fails. */
static inline void golden_fail(const char *name, const char *wanted, const char *got)
{
    for (int line = 1; *wanted || *got; line++) {
        size_t w = strcspn(wanted, "\n"), g = strcspn(got, "\n");
        if (w != g || strncmp(wanted, got, w) != 0) {
            fprintf(stderr, "golden/%s:%d\n  wanted: %.*s\n  got:    %.*s\n", name, line, (int)w, wanted, (int)g, got);
            break;
        }
        wanted += w + (wanted[w] == '\n');
        got += g + (got[g] == '\n');
    }
    fail_msg("golden/%s differs; DTPLAN_UPDATE=1 rewrites it", name);
}

static inline void golden_compare(const char *name, const char *got)
{
    char path[512];
    snprintf(path, sizeof path, TEST_SOURCE_DIR "/tests/golden/%s", name);
    if (getenv("DTPLAN_UPDATE")) {
        FILE *file = fopen(path, "wb");
        assert_non_null(file);
        fputs(got, file);
        assert_int_equal(fclose(file), 0);
    }
    char *wanted = golden_read(path);
    if (strcmp(wanted, got) != 0)
        golden_fail(name, wanted, got);
    free(wanted);
}

#endif
