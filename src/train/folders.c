#include "train/folders.h"

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 256 << 10 };

int spw__folder_each(const char *path, int (*visit)(void *context, const char *name), void *context)
{
    DIR *folder = opendir(path);
    if (!folder && errno == ENOENT)
        return 0;
    if (!folder)
        return spw__error_errno(errno, "%s: cannot be listed", path);
    int rc = 0;
    for (struct dirent *entry; rc == 0 && (entry = readdir(folder));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = visit(context, entry->d_name);
    (void)closedir(folder);
    return rc;
}

static int remove_file(void *context, const char *name)
{
    char *path = spw__path_join(context, name);
    if (path)
        (void)unlink(path);
    free(path);
    return 0;
}

void spw__folder_remove(const char *path)
{
    (void)spw__folder_each(path, remove_file, (void *)(uintptr_t)path);
    if (rmdir(path) < 0 && errno == ENOTDIR)
        (void)unlink(path);
}

int spw__folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fsync(fd) < 0 ? errno : 0;
    if (fd >= 0)
        (void)close(fd);
    /* Some file systems cannot sync a folder and say EINVAL: then there is no more to be done. */
    return failed && failed != EINVAL ? spw__error_errno(failed, "%s: cannot sync", path) : 0;
}

static int checksum(int fd, char *chunk, uint64_t *bytes, uint32_t *crc)
{
    for (;;) {
        ssize_t n = read(fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? errno : 0;
        *crc = spw__crc32c(*crc, chunk, (size_t)n);
        *bytes += (uint64_t)n;
    }
}

int spw__folder_checksum(const char *path, uint64_t *bytes, uint32_t *crc)
{
    char *chunk = spw__calloc(CHUNK, 1);
    if (!chunk)
        return SPW_EHOSTMEM;
    *bytes = 0;
    *crc = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int failed = fd < 0 ? errno : checksum(fd, chunk, bytes, crc);
    if (fd >= 0)
        (void)close(fd);
    free(chunk);
    return failed ? spw__error_errno(failed, "%s: cannot be read", path) : 0;
}
