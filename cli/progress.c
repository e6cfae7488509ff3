#include "cli/progress.h"

#include "base/clock.h"
#include "page/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BAR_WIDTH 30
#define QUIET_S 5 /* between lines where stderr is no terminal */

struct dtp_progress dtp_progress_start(const char *what, uint64_t first)
{
    const char *term = getenv("TERM");
    bool moves = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    double start_s = dtp_now_s();
    return (struct dtp_progress){false, moves, start_s, start_s, first, what};
}

struct dtp_progress dtp_progress_none(void)
{
    return (struct dtp_progress){.silent = true, .what = ""};
}

double dtp_progress_elapsed_s(const struct dtp_progress *progress)
{
    return dtp_now_s() - progress->start_s;
}

/* "42 s", "3 min 20 s", "2 h 05 min". */
static void write_left(double left_s, char *out, size_t bytes)
{
    unsigned long s = left_s < 1e9 ? (unsigned long)(left_s + 0.5) : 1000000000ul;
    if (s < 60)
        snprintf(out, bytes, "%lu s", s);
    else if (s < 3600)
        snprintf(out, bytes, "%lu min %02lu s", s / 60, s % 60);
    else
        snprintf(out, bytes, "%lu h %02lu min", s / 3600, s % 3600 / 60);
}

/* "1,234 of 5,000 rows, 42 s left". */
static void write_counts(const struct dtp_progress *progress, uint64_t done, uint64_t count, char *out, size_t bytes)
{
    char left[32] = "?", done_text[32], count_text[32];
    if (done > progress->first)
        write_left(dtp_progress_elapsed_s(progress) * (double)(count - done) / (double)(done - progress->first), left,
                   sizeof left);
    snprintf(out, bytes, "%s of %s %s, %s left", dtp_page_grouped(done, done_text, sizeof done_text),
             dtp_page_grouped(count, count_text, sizeof count_text), progress->what, left);
}

void dtp_progress_draw(struct dtp_progress *progress, uint64_t done, uint64_t count)
{
    char bar[BAR_WIDTH + 1], counts[160];
    double now = dtp_now_s();
    bool due = progress->moves || now - progress->said_s >= QUIET_S;
    if (!due || progress->silent || count == 0 || (!progress->moves && done >= count))
        return;
    double share = (double)done / (double)count;
    size_t filled = (size_t)(share * BAR_WIDTH);
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', filled);
    bar[BAR_WIDTH] = '\0';
    write_counts(progress, done, count, counts, sizeof counts);
    if (progress->moves)
        fprintf(stderr, "\r[%s] %3.0f %%  %s\x1b[K", bar, 100 * share, counts);
    else
        fprintf(stderr, "dtplan: %.0f %%: %s\n", 100 * share, counts);
    fflush(stderr);
    progress->said_s = now;
}

void dtp_progress_end(const struct dtp_progress *progress)
{
    if (progress->moves)
        fputs("\r\x1b[K", stderr);
}
