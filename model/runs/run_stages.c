/* The stages of a pipeline as a row's column has them: of each rank, apart by semicolons, its stages, apart by blanks,
 * each a number and what it holds: "0:emb+0-3 4:16-19;1:4-7 5:20-23+head". Ranks that share a stage say it again. */
#include "runs/run_writer.h"

#include <stdlib.h>

enum { MOST_STAGES = 512 };

/* What one stage holds. */
struct held {
    bool said, embedding, head;
    uint64_t layers;
};

/* "emb+0-3", "16-19", "7-7+head", "head", "": false where it is none of these. */
static bool read_parts(const char *text, const char *end, struct held *out)
{
    *out = (struct held){.said = true};
    while (text < end) {
        size_t length = strcspn(text, "+ ;");
        char *behind;
        if (length == strlen("emb") && memcmp(text, "emb", length) == 0)
            out->embedding = true;
        else if (length == strlen("head") && memcmp(text, "head", length) == 0)
            out->head = true;
        else {
            uint64_t first = strtoull(text, &behind, 10), last = *behind == '-' ? strtoull(behind + 1, &behind, 10) : 0;
            if (behind != text + length || last < first)
                return false;
            out->layers = last - first + 1;
        }
        text += length + (text + length < end && text[length] == '+');
    }
    return true;
}

/* How many stages there are, numbered from 0 without a gap; 0 where the text is no such list. */
static uint32_t read_stages(const char *text, struct held stages[MOST_STAGES])
{
    uint32_t count = 0;
    while (*text) {
        char *colon;
        uint64_t stage = strtoull(text, &colon, 10);
        const char *end = text + strcspn(text, " ;");
        if (colon == text || *colon != ':' || stage >= MOST_STAGES || !read_parts(colon + 1, end, &stages[stage]))
            return 0;
        count = stage >= count ? (uint32_t)stage + 1 : count;
        text = end + (*end != '\0');
    }
    for (uint32_t i = 0; i < count; i++)
        if (!stages[i].said)
            return 0;
    return count;
}

void dtp_run_write_stages(struct writer *w)
{
    struct held stages[MOST_STAGES] = {0};
    uint32_t count = read_stages(w->run->stages, stages);
    char layout[MOST_STAGES * sizeof "Et*4294967295L|"];
    size_t at = 0;
    if (!count) {
        REFUSE(w, "stages_ranks '%.40s' is no list of stages like 0:emb+0-7;1:8-15+head", w->run->stages);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        at += (size_t)snprintf(layout + at, sizeof layout - at, "%s%s", i ? "|" : "", stages[i].embedding ? "E" : "");
        if (stages[i].layers)
            at += (size_t)snprintf(layout + at, sizeof layout - at, "t*%" PRIu32, (uint32_t)stages[i].layers);
        at += (size_t)snprintf(layout + at, sizeof layout - at, "%s", stages[i].head ? "L" : "");
    }
    set_text(w, "stages", layout);
}
