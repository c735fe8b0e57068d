#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static void remove_folder(void)
{
    char path[512];
    const struct dirent *entry;
    DIR *list = opendir(folder);
    while (list && (entry = readdir(list))) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        (void)unlink(path);
    }
    if (list)
        (void)closedir(list);
    (void)rmdir(folder);
}

const char *fuzz_folder(void)
{
    struct stat info;
    if (folder[0])
        return folder;
    const char *root = stat("/dev/shm", &info) == 0 ? "/dev/shm" : "/tmp";
    (void)snprintf(folder, sizeof folder, "%s/spw-fuzz-XXXXXX", root);
    fuzz_require(mkdtemp(folder) != NULL, "a folder for the inputs");
    (void)atexit(remove_folder);
    return folder;
}

const char *fuzz_put(const char *name, const void *data, size_t bytes)
{
    static char path[256];
    (void)snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
    FILE *file = fopen(path, "we");
    fuzz_require(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0,
                 "an input written to its folder");
    return path;
}

void fuzz_require(bool promise, const char *what)
{
    if (promise)
        return;
    (void)fprintf(stderr, "not kept: %s\n", what);
    abort();
}
