/*
 * file.h - the file store's inside: one file descriptor and an engine that keeps transfers going.
 *
 * The engine is io_uring where the kernel allows it, else a team of threads (or SPW_IO=threads).
 * Both serve at most `depth` transfers at once, retry a failed one once, and let any thread start
 * and wait. Used by file.c alone.
 */
#ifndef SPW_STORE_FILE_H
#define SPW_STORE_FILE_H

#include "base/lock.h"
#include "store/store.h"

typedef struct spw__file_engine spw__file_engine;

typedef struct spw__file_engine_ops {
    void (*close)(spw__file_engine *engine); /* no transfer is under way */
    void (*start)(spw__file_engine *engine, spw__store_io *io);
    int (*wait)(spw__file_engine *engine, spw__store_io *io); /* io->result */
} spw__file_engine_ops;

struct spw__file_engine {
    const spw__file_engine_ops *ops;
    int fd;
};

int spw__file_threads_open(int fd, uint32_t depth, spw__file_engine **engine);

/* SPW_ENOTSUP: the kernel, a sandbox or the build has no io_uring. */
int spw__file_uring_open(int fd, uint32_t depth, spw__file_engine **engine);

/* Moves what is left of a transfer with pread or pwrite, from byte `done` of the slot on; sets
 * io->result and io->os_error. */
void spw__file_transfer(int fd, spw__store_io *io, uint64_t done);

#endif
