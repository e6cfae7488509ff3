/* Words and names that writing and reading share. */
#include "checkpoint/checkpoint.h"

#include "base/word_table.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *const element_words[] = {
    [DTP_ELEMENT_FP32] = "fp32", [DTP_ELEMENT_BF16] = "bf16", [DTP_ELEMENT_FP16] = "fp16",
    [DTP_ELEMENT_E4M3] = "e4m3", [DTP_ELEMENT_E5M2] = "e5m2", [DTP_ELEMENT_INT8] = "int8"};
DTP_TEXT_AND_PARSE(state_kind, DTP_STATE_TABLE, 0)
DTP_WORDS_OF_ARRAY(dtp_state_element_text, dtp_element, element_words)
DTP_PARSE_OF_ARRAY(dtp_state_element_parse, dtp_element, element_words, 0)

uint64_t dtp_state_element_bytes(enum dtp_element element)
{
    return element == DTP_ELEMENT_FP32 ? 4 : element == DTP_ELEMENT_BF16 || element == DTP_ELEMENT_FP16 ? 2 : 1;
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
