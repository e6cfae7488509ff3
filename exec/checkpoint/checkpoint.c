/* Words and names that writing and reading share. */
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const kind_words[DTP_STATE_KIND_COUNT] = {
#define X(suffix, text) text,
    DTP_STATE_TABLE(X)
#undef X
};
static const char *const element_words[] = {[DTP_ELEMENT_FP32] = "fp32", [DTP_ELEMENT_BF16] = "bf16"};

const char *dtp_state_kind_text(enum dtp_state_kind kind)
{
    return kind_words[kind];
}

bool dtp_state_kind_parse(const char *text, enum dtp_state_kind *out)
{
    for (int i = 0; i < DTP_STATE_KIND_COUNT; i++)
        if (strcmp(text, kind_words[i]) == 0) {
            *out = (enum dtp_state_kind)i;
            return true;
        }
    return false;
}

uint64_t dtp_state_element_bytes(enum dtp_element element)
{
    return element == DTP_ELEMENT_BF16 ? 2 : 4;
}

const char *dtp_state_element_text(enum dtp_element element)
{
    return element_words[element];
}

bool dtp_state_element_parse(const char *text, enum dtp_element *out)
{
    *out = strcmp(text, element_words[DTP_ELEMENT_BF16]) == 0 ? DTP_ELEMENT_BF16 : DTP_ELEMENT_FP32;
    return strcmp(text, element_words[*out]) == 0;
}

static void insert(uint64_t *steps, size_t count, size_t limit, uint64_t step)
{
    size_t at = count < limit ? count : limit;
    while (at > 0 && steps[at - 1] < step) {
        if (at < limit)
            steps[at] = steps[at - 1];
        at--;
    }
    if (at < limit)
        steps[at] = step;
}

size_t dtp_checkpoint_list(const char *directory, uint64_t *steps, size_t limit)
{
    DIR *folder = opendir(directory);
    size_t count = 0;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        uint64_t step;
        int end = 0;
        if (sscanf(entry->d_name, "step-%" SCNu64 "%n", &step, &end) == 1 && entry->d_name[end] == '\0')
            insert(steps, count++, limit, step);
    }
    if (folder)
        closedir(folder);
    return count;
}
