/* A file, or a folder with all that is in it, taken away; nothing happens where there is none. */
#ifndef TEST_REMOVE_ALL_H
#define TEST_REMOVE_ALL_H

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static inline void remove_all(const char *path)
{
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char name[3500];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(name, sizeof name, "%.3000s/%.255s", path, entry->d_name);
        remove_all(name);
    }
    if (folder)
        closedir(folder);
    remove(path);
}

#endif
