/* Runs of dtplan-exec on several ranks of the host device, as processes of this machine. */
#ifndef TEST_RANK_FIXTURE_H
#define TEST_RANK_FIXTURE_H

#include "lib/run_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

#define RANK_EXEC                                                                                                      \
    "'" TEST_PROGRAMS "/dtplan-exec' --data-directory '" TEST_SOURCE_DIR                                               \
    "/scenarios' --device host --threads 1 --poison "

/* A line for a shell: a checkout may stand in a folder with spaces. Key=value words become --set of each; `flags` go as
 * they are. */
static inline void rank_command_line(const char *words, const char *flags, char *out, size_t bytes)
{
    char copy[1300], *save = NULL;
    int length = snprintf(copy, sizeof copy, "runtime=dtplan gradient_norm=true precision=fp32 %s", words);
    assert_true(length > 0 && (size_t)length < sizeof copy);
    size_t used = (size_t)snprintf(out, bytes, RANK_EXEC "%s", flags);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
        used += (size_t)snprintf(out + used, bytes - used, " --set %s", word);
    assert_true(used < bytes);
}

/* What a shell's command line says on standard output, and how it ends. */
static inline void rank_run_line(const char *line, struct run_result *out)
{
    static char events[1 << 20];
    FILE *pipe = popen(line, "r");
    assert_non_null(pipe);
    size_t bytes = fread(events, 1, sizeof events - 1, pipe);
    events[bytes] = '\0';
    memset(out, 0, sizeof *out);
    int status = pclose(pipe);
    out->status = WIFEXITED(status) ? (enum dtp_status)WEXITSTATUS(status) : DTP_ENVIRONMENT;
    run_read(events, out);
}

static inline void rank_run(const char *words, const char *flags, struct run_result *out)
{
    char line[4096];
    rank_command_line(words, flags, line, sizeof line);
    rank_run_line(line, out);
}

#endif
