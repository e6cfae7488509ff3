/* Feeds every file of a folder to a fuzz target once: inputs that once broke a parser stay tests, without clang. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return -1;
    size_t size = 0;
    uint8_t *data = NULL;
    if (!fseek(file, 0, SEEK_END)) {
        long end = ftell(file);
        rewind(file);
        /* Exactly as large as the input, so that a sanitizer sees a read past its end. */
        data = malloc(end > 0 ? (size_t)end : 1);
        size = data && end > 0 ? fread(data, 1, (size_t)end, file) : 0;
    }
    fclose(file);
    if (data)
        LLVMFuzzerTestOneInput(data, size);
    free(data);
    return 0;
}

int main(int count, char **arguments)
{
    size_t replayed = 0;
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    DIR *folder = count > 1 ? opendir(arguments[1]) : NULL;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[4096];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", arguments[1], entry->d_name);
        if (replay(path)) {
            fprintf(stderr, "cannot read %s\n", path);
            return 1;
        }
        replayed++;
    }
    if (folder)
        closedir(folder);
    printf("%zu inputs replayed\n", replayed);
    return 0;
}
