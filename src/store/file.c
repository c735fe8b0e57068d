/* The file store: an unlinked scratch file with room for every slot. */
#include "store/file.h"

#include "base/error.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct file_store {
    spw__store store; /* first: a spw__store is a file_store */
    spw__file_engine *engine;
    char *path;
    int fd;
} file_store;

static void file_close(spw__store *store)
{
    file_store *file = (file_store *)store;
    if (file->engine)
        file->engine->ops->close(file->engine);
    if (file->fd >= 0)
        close(file->fd);
    free(file->path);
    free(file);
}

/* Past the limit on the size of files the system sends a signal that ends the process unless
 * somebody ignores it: such a file is not asked for. */
static bool is_over_limit(uint64_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
           bytes > limit.rlim_cur;
}

/* Real blocks, so that a full disk is found here; where the file system cannot promise them, the
 * length alone (reads of what was never written give zero bytes either way). */
static int take_space(int fd, uint64_t bytes)
{
    int failed;
    do
        failed = posix_fallocate(fd, 0, (off_t)bytes);
    while (failed == EINTR);
    if (failed == EINVAL || failed == EOPNOTSUPP)
        failed = ftruncate(fd, (off_t)bytes) < 0 ? errno : 0;
    return failed;
}

static int file_grow(spw__store *store, uint64_t n_slots)
{
    file_store *file = (file_store *)store;
    uint64_t bytes = n_slots * store->slot_bytes;
    if (is_over_limit(bytes))
        return spw__error(SPW_ENOSPC,
                          "%s: cannot take %" PRIu64
                          " bytes for the optimizer state: over the limit "
                          "on the size of files (ulimit -f)",
                          file->path, bytes);
    int failed = take_space(file->fd, bytes);
    if (!failed)
        return 0;
    /* What was taken before the disk was full goes back. */
    if (ftruncate(file->fd, (off_t)(store->n_slots * store->slot_bytes)) < 0)
        failed = errno;
    if (failed == EFBIG) /* the file system's own limit */
        failed = ENOSPC;
    return spw__error_errno(failed, "%s: cannot take %" PRIu64 " bytes for the optimizer state",
                            file->path, bytes);
}

static void file_start(spw__store *store, spw__store_io *io)
{
    file_store *file = (file_store *)store;
    file->engine->ops->start(file->engine, io);
}

static int file_wait(spw__store *store, spw__store_io *io)
{
    file_store *file = (file_store *)store;
    int rc = file->engine->ops->wait(file->engine, io);
    if (rc == 0)
        return 0;
    return spw__error_errno(io->os_error, "%s: cannot %s %" PRIu64 " bytes at %" PRIu64, file->path,
                            io->write ? "write" : "read", store->slot_bytes,
                            io->slot * store->slot_bytes);
}

static const spw__store_ops file_ops = {
    .name = "file",
    .close = file_close,
    .grow = file_grow,
    .start = file_start,
    .wait = file_wait,
};

static int open_file(file_store *file)
{
    int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
    file->fd = open(file->path, flags | O_DIRECT, 0600);
    file->store.direct_io = file->fd >= 0;
    if (file->fd < 0 && errno == EINVAL) {
        /* Some file systems make the file before they refuse O_DIRECT. */
        (void)unlink(file->path);
        file->fd = open(file->path, flags, 0600);
    }
    if (file->fd < 0 && errno == EEXIST)
        return spw__error(SPW_EEXIST,
                          "%s: already exists; a store file is scratch, name one that does not",
                          file->path);
    if (file->fd < 0)
        return spw__error_errno(errno, "%s: cannot create the store file", file->path);
    (void)unlink(file->path);
    return 0;
}

static int open_engine(file_store *file, uint32_t depth)
{
    const char *wish = getenv("SPW_IO");
    int rc = SPW_ENOTSUP;
    if (!wish || strcmp(wish, "threads") != 0)
        rc = spw__file_uring_open(file->fd, depth, &file->engine);
    return rc < 0 ? spw__file_threads_open(file->fd, depth, &file->engine) : rc;
}

int spw__store_file_open(const spw__store_config *config, const char *path, spw__store **store)
{
    file_store *file = spw__calloc(1, sizeof *file);
    if (!file)
        return SPW_EHOSTMEM;
    file->fd = -1;
    file->store.ops = &file_ops;
    file->path = spw__strdup(path);
    int rc = file->path ? open_file(file) : SPW_EHOSTMEM;
    if (rc == 0)
        rc = open_engine(file, config->io_depth ? config->io_depth : 1);
    if (rc < 0) {
        file_close(&file->store);
        return rc;
    }
    *store = &file->store;
    return 0;
}

/* Returns 0 or an errno value. */
static int transfer_once(int fd, spw__store_io *io, uint64_t done)
{
    uint64_t slot_bytes = io->store->slot_bytes;
    while (done < slot_bytes) {
        char *memory = (char *)io->memory + done;
        off_t at = (off_t)(io->slot * slot_bytes + done);
        size_t left = (size_t)(slot_bytes - done);
        ssize_t n = io->write ? pwrite(fd, memory, left, at) : pread(fd, memory, left, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            return EIO; /* the file is shorter than grow made it */
        done += (uint64_t)n;
    }
    return 0;
}

void spw__file_transfer(int fd, spw__store_io *io, uint64_t done)
{
    int failed = transfer_once(fd, io, done);
    if (failed)
        failed = transfer_once(fd, io, 0);
    io->os_error = failed;
    io->result = failed ? SPW_EIO : 0;
}
