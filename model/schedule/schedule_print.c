#include "schedule/schedule_print.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIN_COLUMNS 40
#define MOST_STRETCH 4 /* of a lane over one whose passes are all as wide as their labels */

/* How time is laid out. */
struct layout {
    int margin;      /* of the names of ranks */
    size_t width;    /* characters of a line for time */
    size_t length;   /* of a lane, all lines together */
    double per_unit; /* characters */
};

static int digits(uint32_t number)
{
    return snprintf(NULL, 0, "%" PRIu32, number);
}

static struct layout lay_out(const struct dtp_schedule *schedule, const struct dtp_schedule_timing *timing, int columns)
{
    const struct dtp_schedule_shape *s = &schedule->shape;
    int label = 1 + digits(s->micro_batches - 1);
    double shortest_s = INFINITY, most = 0;
    for (uint32_t r = 0; r < s->ranks; r++) {
        double passes = schedule->first[r + 1] - schedule->first[r];
        most = passes > most ? passes : most;
    }
    for (size_t i = 0; i < dtp_schedule_pass_count(schedule); i++) {
        double takes_s = timing->end_s[i] - timing->begin_s[i];
        if (takes_s > 0 && takes_s < shortest_s)
            shortest_s = takes_s;
    }
    double wanted = isfinite(shortest_s) ? timing->makespan_s / shortest_s * label : label;
    double length = fmin(wanted, MOST_STRETCH * most * label);
    struct layout l = {.margin = (int)strlen("rank ") + digits(s->ranks - 1) + 2};
    l.width = (size_t)((columns < MIN_COLUMNS ? MIN_COLUMNS : columns) - l.margin);
    l.length = (size_t)ceil(length - 1e-6);
    l.length = l.length ? l.length : 1;
    l.per_unit = timing->makespan_s > 0 ? length / timing->makespan_s : 0;
    return l;
}

size_t dtp_schedule_print_lines(const struct dtp_schedule *schedule, const struct dtp_schedule_timing *timing,
                                int columns)
{
    struct layout l = lay_out(schedule, timing, columns);
    size_t parts = (l.length + l.width - 1) / l.width;
    return parts * (schedule->shape.ranks + (parts > 1)) + (parts > 1 ? parts - 1 : 0);
}

static char letter(const struct dtp_pass *pass)
{
    char capital = dtp_pass_text((enum dtp_pass_kind)pass->kind)[0];
    return (char)(pass->chunk % 2 ? capital - 'A' + 'a' : capital);
}

static void draw_lane(const struct dtp_schedule *schedule, const struct dtp_schedule_timing *timing, uint32_t rank,
                      const struct layout *l, char *lane)
{
    memset(lane, ' ', l->length);
    for (uint32_t i = schedule->first[rank]; i < schedule->first[rank + 1]; i++) {
        const struct dtp_pass *pass = &schedule->passes[i];
        char label[64];
        size_t from = (size_t)lround(timing->begin_s[i] * l->per_unit);
        size_t to = (size_t)lround(timing->end_s[i] * l->per_unit);
        int wrote = snprintf(label, sizeof label, "%c%" PRIu32, letter(pass), pass->micro_batch);
        if (pass->paired) {
            i++;
            snprintf(label + wrote, sizeof label - (size_t)wrote, "&%c%" PRIu32, letter(pass + 1), pass[1].micro_batch);
        }
        for (size_t at = from, k = 0; at < to && at < l->length; at++)
            lane[at] = label[k] ? label[k++] : '-';
    }
}

bool dtp_schedule_print(const struct dtp_schedule *schedule, const struct dtp_schedule_timing *timing, int columns,
                        FILE *file)
{
    struct layout l = lay_out(schedule, timing, columns);
    uint32_t ranks = schedule->shape.ranks;
    char *lanes = malloc(ranks * l.length);
    if (!lanes)
        return false;
    for (uint32_t rank = 0; rank < ranks; rank++)
        draw_lane(schedule, timing, rank, &l, lanes + rank * l.length);
    for (size_t from = 0; from < l.length; from += l.width) {
        size_t wide = l.length - from < l.width ? l.length - from : l.width;
        if (from > 0)
            fputc('\n', file);
        if (l.length > l.width)
            fprintf(file, "%*sfrom %.4g\n", l.margin, "", (double)from / l.per_unit);
        for (uint32_t rank = 0; rank < ranks; rank++) {
            const char *lane = lanes + rank * l.length + from;
            size_t used = wide;
            while (used > 0 && lane[used - 1] == ' ')
                used--;
            if (used)
                fprintf(file, "rank %-*" PRIu32 "%.*s\n", l.margin - (int)strlen("rank "), rank, (int)used, lane);
            else
                fprintf(file, "rank %" PRIu32 "\n", rank);
        }
    }
    free(lanes);
    return true;
}
