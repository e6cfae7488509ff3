/* What a shape from a file is called. */
#include "net/hf_reader.h"

#include <stdio.h>
#include <string.h>

void dtp_hf_keep_printable(char *text)
{
    for (; *text; text++)
        if (*text < 0x20 || *text > 0x7e)
            *text = '?';
}

/* Of ".../models--meta-llama--Llama-3.1-8B/snapshots/0e9e39f/config.json", as huggingface_hub lays out its cache, the
 * repository: "meta-llama/Llama-3.1-8B", whose parts are joined by "--" there. False for any other path. */
static bool name_after_repository(const char *path, char *out, size_t bytes)
{
    static const char folder[] = "models--", inside[] = "/snapshots/";
    const char *start = NULL, *end = NULL;
    for (const char *at = strstr(path, folder); at; at = strstr(at + 1, folder))
        if (at == path || at[-1] == '/')
            start = at + strlen(folder);
    if (start)
        end = strchr(start, '/');
    if (!end || end == start || strncmp(end, inside, strlen(inside)) != 0)
        return false;
    size_t used = 0;
    for (const char *c = start; c < end && used + 1 < bytes; c++) {
        bool joint = c[0] == '-' && c[1] == '-' && c + 2 < end;
        out[used++] = joint ? '/' : *c;
        c += joint;
    }
    out[used] = '\0';
    return true;
}

/* "models/llama/config.json" -> "llama", "my-model.json" -> "my-model", "config.json" -> the model_type. */
static void name_after_file(const char *path, const char *type, char *out, size_t bytes)
{
    const char *end = strrchr(path, '/'), *stem = end ? end + 1 : path;
    size_t length = strlen(stem);
    if (length > 5 && !strcmp(stem + length - 5, ".json"))
        length -= 5;
    if (length == 6 && !strncmp(stem, "config", 6)) {
        const char *folder = end ? end : path;
        while (folder > path && folder[-1] != '/')
            folder--;
        length = end ? (size_t)(end - folder) : 0;
        stem = folder;
    }
    bool nameless = length == 0 || *stem == '.';
    snprintf(out, bytes, "%.*s", nameless ? (int)bytes : (int)(length < bytes ? length : bytes),
             nameless ? type : stem);
}

void dtp_hf_name_after(const char *path, const char *type, char *out, size_t bytes)
{
    if (!name_after_repository(path, out, bytes))
        name_after_file(path, type, out, bytes);
    dtp_hf_keep_printable(out);
}
