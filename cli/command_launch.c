/* dtplan launch: the files that start a plan, in its framework's own words. */
#include "cli/command.h"

#include "import/write.h"
#include "page/output_file.h"
#include "page/shell_word.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct launch {
    const struct dtp_launcher *launcher;
    struct dtp_launch_file files[DTP_LAUNCH_FILES_MOST];
    size_t count;
    char typed[2048]; /* flags that stand beside --from */
};

static void release(struct launch *launch)
{
    for (size_t i = 0; i < launch->count; i++)
        free(launch->files[i].text);
}

static enum dtp_status write_file(const struct dtp_launch_file *file, const char *path, struct dtp_faults *faults)
{
    struct dtp_output_file output;
    enum dtp_status status = dtp_output_open(path, &output, faults);
    if (status != DTP_OK)
        return status;
    fputs(file->text, output.file);
    status = dtp_output_close(&output, faults);
    size_t length = strlen(path);
    if (status == DTP_OK && length > 3 && strcmp(path + length - 3, ".sh") == 0 && chmod(path, 0755) != 0)
        status = dtp_fault(faults, DTP_ENVIRONMENT, path, 0, "cannot be made executable: %s", strerror(errno));
    return status;
}

static char *path_of(const char *folder, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* All files are judged before the first is written. */
static enum dtp_status write_folder(const struct dtp_context *context, const struct launch *launch, const char *folder)
{
    char *paths[DTP_LAUNCH_FILES_MOST] = {NULL};
    enum dtp_status status = DTP_OK;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return dtp_fault(context->faults, DTP_ENVIRONMENT, folder, 0, "cannot be made: %s", strerror(errno));
    for (size_t i = 0; i < launch->count; i++) {
        paths[i] = path_of(folder, launch->files[i].name);
        status = dtp_worse(status, paths[i] ? dtp_call_files_add_output(context->files, paths[i], "--output",
                                                                        context->arguments->force, context->faults)
                                            : dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory"));
    }
    for (size_t i = 0; i < launch->count && status == DTP_OK; i++)
        status = write_file(&launch->files[i], paths[i], context->faults);
    for (size_t i = 0; i < launch->count; i++)
        free(paths[i]);
    return status;
}

/* "dtplan plan --from DIR/ds_config.json --model ...", which gives the same plan. */
static void say_back(const struct launch *launch, const char *folder, const struct dtp_page *page)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return;
    fputs("dtplan plan", out);
    for (size_t i = 0; i < DTP_LAUNCH_CONFIGS_MOST && launch->launcher->files[i]; i++) {
        char *path = path_of(folder, launch->launcher->files[i]);
        fputs(" --from ", out);
        dtp_shell_word(out, path ? path : launch->launcher->files[i]);
        free(path);
    }
    fputs(launch->typed, out);
    if (fclose(out) == 0)
        dtp_page_wrap_command(page, 0, 2, text);
    free(text);
}

static void say(const struct launch *launch, const char *folder, const struct dtp_page *page)
{
    if (!folder)
        return;
    for (size_t i = 0; i < launch->count; i++)
        dtp_page_say(page, 0, 2, "%s/%s", folder, launch->files[i].name);
    dtp_page_say(page, 0, 2, "Read back they give the same plan:");
    say_back(launch, folder, page);
}

/* To standard output: each file behind its name. */
static void print_files(const struct launch *launch, FILE *out)
{
    for (size_t i = 0; i < launch->count; i++)
        fprintf(out, "%s---- %s ----\n%s", i ? "\n" : "", launch->files[i].name, launch->files[i].text);
}

static enum dtp_status launch_scenario(const struct dtp_context *context, const struct dtp_catalog *catalog,
                                       struct dtp_scenario *scenario)
{
    const char *folder = context->arguments->output;
    struct launch *launch = calloc(1, sizeof *launch);
    struct dtp_job *job = calloc(1, sizeof *job);
    enum dtp_status status = launch && job ? dtp_scenario_resolve(scenario, catalog, job, context->faults)
                                           : dtp_fault(context->faults, DTP_ENVIRONMENT, NULL, 0, "out of memory");
    if (status == DTP_OK && !(launch->launcher = dtp_launcher_of(context->arguments->to, job, context->faults)))
        status = DTP_BAD_INPUT;
    if (status == DTP_OK)
        status = dtp_launch_write(launch->launcher, scenario, catalog, job, launch->files, &launch->count,
                                  launch->typed, sizeof launch->typed, context->faults);
    if (status == DTP_OK && folder)
        status = write_folder(context, launch, folder);
    if (status == DTP_OK && folder)
        say(launch, folder, &context->page);
    else if (status == DTP_OK)
        print_files(launch, context->out);
    if (launch)
        release(launch);
    free(launch);
    free(job);
    return status;
}

enum dtp_status dtp_command_launch(const struct dtp_context *context)
{
    return dtp_context_with_scenario(context, launch_scenario);
}
