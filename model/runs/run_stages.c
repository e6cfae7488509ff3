/* The stages of a pipeline as a row's column has them: of each rank, apart by semicolons, its stages, apart by blanks,
 * each a number and what it holds: "0:emb+0-3 4:16-19;1:4-7 5:20-23+head". Ranks that share a stage say it again. */
#include "runs/run_writer.h"
#include "schedule/schedule.h"

#include <stdlib.h>

enum { MOST_STAGES = 512 };

/* What one stage holds, and its rank. */
struct held {
    bool said, embedding, head;
    uint64_t first, layers;
    uint32_t rank;
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
            uint64_t last = 0;
            out->first = strtoull(text, &behind, 10);
            last = *behind == '-' ? strtoull(behind + 1, &behind, 10) : 0;
            if (out->layers || behind != text + length || last < out->first)
                return false;
            out->layers = last - out->first + 1;
        }
        text += length + (text + length < end && text[length] == '+');
    }
    return true;
}

/* How many stages there are, numbered from 0 without a gap; 0 where the text is no such list. Ranks that say the same,
 * of one part of the model, are one of the pipeline. */
static uint32_t read_stages(const char *text, struct held stages[MOST_STAGES])
{
    const char *before = text;
    uint32_t count = 0, rank = 0;
    while (*text) {
        size_t length = strcspn(text, ";");
        bool again = text > before && strcspn(before, ";") == length && strncmp(text, before, length) == 0;
        rank += text > before && !again;
        before = text;
        for (const char *at = text; at < text + length;) {
            char *colon;
            uint64_t stage = strtoull(at, &colon, 10);
            const char *end = at + strcspn(at, " ;");
            if (colon == at || *colon != ':' || stage >= MOST_STAGES || (stages[stage].said && !again) ||
                !read_parts(colon + 1, end, &stages[stage]))
                return 0;
            stages[stage].rank = rank;
            count = stage >= count ? (uint32_t)stage + 1 : count;
            at = end + (*end == ' ');
        }
        text += length + (text[length] != '\0');
    }
    uint64_t layers = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!stages[i].said || (stages[i].layers && stages[i].first != layers))
            return 0;
        layers += stages[i].layers;
    }
    return count;
}

/* Stage after stage goes to rank after rank, and of a V the second half the other way. */
static bool placed_by(enum dtp_chunk_placement placement, const struct held *stages, uint32_t count, uint32_t pp)
{
    for (uint32_t i = 0; i < count; i++) {
        bool back = placement == DTP_CHUNKS_VEE && i / pp % 2;
        if (stages[i].rank != (back ? pp - 1 - i % pp : i % pp))
            return false;
    }
    return true;
}

void dtp_run_write_stages(struct writer *w, const char *schedule)
{
    enum dtp_schedule_kind kind = DTP_SCHEDULE_1F1B;
    struct held stages[MOST_STAGES] = {0};
    uint32_t count = read_stages(w->run->stages, stages);
    char layout[MOST_STAGES * sizeof "Et*4294967295L|"];
    size_t at = 0;
    if (!count) {
        REFUSE(w, "stages_ranks '%.40s' is no list of stages like 0:emb+0-7;1:8-15+head", w->run->stages);
        return;
    }
    dtp_schedule_parse(schedule, &kind); /* another word is refused as that */
    if (!placed_by(dtp_schedule_row(kind)->placement, stages, count, (uint32_t)w->run->pp)) {
        REFUSE(w, "stages_ranks places stages otherwise than pp %" PRIu64 " and pp_schedule '%.20s'", w->run->pp,
               w->run->schedule);
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
