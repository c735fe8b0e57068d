#include "base/file.h"

#include "base/error.h"
#include "base/fault.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static spw__fault countdown;

void spw__file_fail(uint64_t nth)
{
    atomic_store(&countdown, nth);
}

/* True, with errno set, for the call that is to fail. */
static bool fault_is_due(void)
{
    bool due = spw__fault_is_due(&countdown);
    if (due)
        errno = EIO;
    return due;
}

static int read_all(int fd, const char *path, char *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = read(fd, data + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return spw__error_errno(errno, "%s: cannot read", path);
        if (n == 0)
            return spw__error(SPW_EIO, "%s: ends after %zu of %zu bytes", path, done, bytes);
        done += (size_t)n;
    }
    return 0;
}

static int check_size(const char *path, const struct stat *info, uint64_t max_bytes)
{
    if (!S_ISREG(info->st_mode))
        return spw__error(SPW_EINVAL, "%s: not a regular file", path);
    if ((uint64_t)info->st_size > max_bytes)
        return spw__error(SPW_EFORMAT, "%s: %" PRIu64 " bytes, at most %" PRIu64 " are read", path,
                          (uint64_t)info->st_size, max_bytes);
    return 0;
}

int spw__file_read(const char *path, uint64_t max_bytes, char **data, size_t *bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return spw__error_errno(errno, "%s: cannot open", path);
    struct stat info;
    char *buffer = NULL;
    int rc = fstat(fd, &info) < 0 ? spw__error_errno(errno, "%s: cannot stat", path)
                                  : check_size(path, &info, max_bytes);
    if (rc == 0 && !(buffer = spw__calloc((size_t)info.st_size + 1, 1)))
        rc = SPW_EHOSTMEM;
    if (rc == 0)
        rc = read_all(fd, path, buffer, (size_t)info.st_size);
    close(fd);
    if (rc < 0) {
        free(buffer);
        return rc;
    }
    *data = buffer;
    *bytes = (size_t)info.st_size;
    return 0;
}

int spw__file_begin(spw__file_writer *writer, const char *path)
{
    *writer = (spw__file_writer){.fd = -1};
    size_t bytes = strlen(path) + 32;
    writer->path = spw__strdup(path);
    writer->temporary = spw__calloc(bytes, 1);
    if (!writer->path || !writer->temporary) {
        spw__file_abandon(writer);
        return SPW_EHOSTMEM;
    }
    (void)snprintf(writer->temporary, bytes, "%s.tmp-%ld", path, (long)getpid());
    if (!fault_is_due())
        writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (writer->fd < 0) {
        int rc = spw__error_errno(errno, "%s: cannot create", path);
        spw__file_abandon(writer);
        return rc;
    }
    return 0;
}

int spw__file_write(spw__file_writer *writer, const void *data, size_t bytes)
{
    int rc = spw__file_write_at(writer, writer->end, data, bytes);
    if (rc == 0)
        writer->end += bytes;
    return rc;
}

int spw__file_write_at(spw__file_writer *writer, uint64_t offset, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes) {
        ssize_t n = fault_is_due() ? -1 : pwrite(writer->fd, from, bytes, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return spw__error_errno(errno, "%s: cannot write %zu bytes at %" PRIu64, writer->path,
                                    bytes, offset);
        from += n;
        offset += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return 0;
}

/* So that the new name survives a power cut, not only the bytes. */
static int sync_folder_of(const char *path)
{
    char *folder = spw__strdup(path);
    if (!folder)
        return SPW_EHOSTMEM;
    char *slash = strrchr(folder, '/');
    if (slash == folder)
        slash[1] = '\0';
    else if (slash)
        *slash = '\0';
    int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || fault_is_due() || fsync(fd) < 0;
    int saved_errno = errno;
    if (fd >= 0)
        close(fd);
    free(folder);
    /* Some file systems cannot sync a folder and say EINVAL: then there is no more to be done. */
    if (failed && saved_errno != EINVAL)
        return spw__error_errno(saved_errno, "%s: cannot sync its folder", path);
    return 0;
}

int spw__file_commit(spw__file_writer *writer)
{
    int rc = 0;
    if (fault_is_due() || fsync(writer->fd) < 0)
        rc = spw__error_errno(errno, "%s: cannot sync", writer->path);
    if (close(writer->fd) < 0 && rc == 0)
        rc = spw__error_errno(errno, "%s: cannot close", writer->path);
    writer->fd = -1;
    if (rc == 0 && (fault_is_due() || rename(writer->temporary, writer->path) < 0))
        rc = spw__error_errno(errno, "%s: cannot rename into place", writer->path);
    if (rc == 0) {
        free(writer->temporary);
        writer->temporary = NULL;
        rc = sync_folder_of(writer->path);
    }
    spw__file_abandon(writer);
    return rc;
}

void spw__file_abandon(spw__file_writer *writer)
{
    if (writer->temporary) {
        if (writer->fd >= 0) {
            close(writer->fd);
        }
        (void)unlink(writer->temporary);
    }
    free(writer->temporary);
    free(writer->path);
    *writer = (spw__file_writer){.fd = -1};
}

int spw__file_put(const char *path, const void *data, size_t bytes)
{
    spw__file_writer writer;
    int rc = spw__file_begin(&writer, path);
    if (rc < 0)
        return rc;
    rc = spw__file_write(&writer, data, bytes);
    if (rc < 0) {
        spw__file_abandon(&writer);
        return rc;
    }
    return spw__file_commit(&writer);
}

char *spw__path_join(const char *folder, const char *name)
{
    size_t bytes = strlen(folder) + strlen(name) + 2;
    char *path = spw__calloc(bytes, 1);
    if (path)
        (void)snprintf(path, bytes, "%s/%s", folder, name);
    return path;
}
