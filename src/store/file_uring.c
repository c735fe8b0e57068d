/*
 * The engine on io_uring. One ring; at most `depth` transfers are with the kernel, others wait in a
 * queue. Whoever waits for a transfer reaps for everybody: one waiter at a time blocks in the
 * kernel, with the lock dropped, and the others sleep on `done` until it comes back.
 */
#include "store/file.h"

#include "base/error.h"
#include "base/mem.h"

#ifdef SPW_HAVE_LIBURING

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <time.h>

typedef struct uring_engine {
    spw__file_engine engine; /* first */
    spw__lock lock;          /* guards all below, the submission side, and every io->done */
    pthread_cond_t done;     /* some transfer is over, or the reaper left */
    struct io_uring ring;    /* the completion side is the reaper's */
    spw__store_io *head, *tail;
    uint32_t depth;
    uint32_t in_flight;
    bool reaping;
} uring_engine;

/* Lock held. Gives queued transfers to the kernel while there is room. */
static void submit(uring_engine *u)
{
    uint32_t n = 0;
    while (u->head && u->in_flight < u->depth) {
        struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
        if (!sqe)
            break;
        spw__store_io *io = u->head;
        u->head = io->next;
        uint64_t bytes = io->store->slot_bytes;
        if (io->write)
            io_uring_prep_write(sqe, u->engine.fd, io->memory, (unsigned)bytes, io->slot * bytes);
        else
            io_uring_prep_read(sqe, u->engine.fd, io->memory, (unsigned)bytes, io->slot * bytes);
        io_uring_sqe_set_data(sqe, io);
        u->in_flight++;
        n++;
    }
    if (n)
        (void)io_uring_submit(&u->ring); /* what it left in the ring goes with the next one */
}

static void uring_start(spw__file_engine *engine, spw__store_io *io)
{
    uring_engine *u = (uring_engine *)engine;
    spw__lock_take(&u->lock);
    io->next = NULL;
    if (u->head)
        u->tail->next = io;
    else
        u->head = io;
    u->tail = io;
    submit(u);
    spw__lock_drop(&u->lock);
}

/* Lock not held. A short or failed transfer is finished, or tried again, the plain way. */
static void finish(uring_engine *u, spw__store_io *io, int result)
{
    if (result >= 0 && (uint64_t)result == io->store->slot_bytes)
        io->result = 0;
    else
        spw__file_transfer(u->engine.fd, io, result > 0 ? (uint64_t)result : 0);
}

/* The kernel took nothing (it may be short of memory), so there is nothing to wait for. */
static int try_later(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return -EAGAIN;
}

/* Lock held on entry and exit, dropped between. */
static void reap(uring_engine *u)
{
    struct io_uring_cqe *cqe;
    u->reaping = true;
    (void)io_uring_submit(&u->ring);
    bool kernel_has_some = u->in_flight > io_uring_sq_ready(&u->ring);
    spw__lock_drop(&u->lock);
    int rc = kernel_has_some ? io_uring_wait_cqe(&u->ring, &cqe) : try_later();
    spw__store_io *io = NULL;
    if (rc == 0) {
        io = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        /* It may be over before the thread that started it dropped the lock: what that thread
         * wrote is ours only after it did. */
        spw__lock_take(&u->lock);
        spw__lock_drop(&u->lock);
        finish(u, io, result);
    }
    spw__lock_take(&u->lock);
    u->reaping = false;
    if (io) {
        io->done = true;
        u->in_flight--;
        submit(u);
    }
    pthread_cond_broadcast(&u->done);
}

static int uring_wait(spw__file_engine *engine, spw__store_io *io)
{
    uring_engine *u = (uring_engine *)engine;
    spw__lock_take(&u->lock);
    while (!io->done) {
        if (u->reaping)
            spw__lock_wait(&u->lock, &u->done);
        else
            reap(u);
    }
    spw__lock_drop(&u->lock);
    return io->result;
}

static void uring_close(spw__file_engine *engine)
{
    uring_engine *u = (uring_engine *)engine;
    io_uring_queue_exit(&u->ring);
    pthread_cond_destroy(&u->done);
    spw__lock_deinit(&u->lock);
    free(u);
}

static const spw__file_engine_ops uring_ops = {uring_close, uring_start, uring_wait};

int spw__file_uring_open(int fd, uint32_t depth, spw__file_engine **engine)
{
    uring_engine *u = spw__calloc(1, sizeof *u);
    if (!u)
        return SPW_EHOSTMEM;
    int rc = io_uring_queue_init(depth, &u->ring, 0);
    if (rc < 0) {
        free(u);
        return spw__error(SPW_ENOTSUP, "io_uring cannot be had (error %d)", -rc);
    }
    u->engine = (spw__file_engine){&uring_ops, fd};
    u->depth = depth;
    spw__lock_init(&u->lock, SPW__RANK_STORE);
    pthread_cond_init(&u->done, NULL);
    *engine = &u->engine;
    return 0;
}

#else

int spw__file_uring_open(int fd, uint32_t depth, spw__file_engine **engine)
{
    (void)fd;
    (void)depth;
    (void)engine;
    return spw__error(SPW_ENOTSUP, "this build has no io_uring");
}

#endif
