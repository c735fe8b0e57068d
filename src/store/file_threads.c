/* The engine of threads: a queue, and `depth` workers that take from it. */
#include "store/file.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdlib.h>

typedef struct threads_engine {
    spw__file_engine engine; /* first */
    spw__lock lock;          /* guards the queue, stop and every io->done */
    pthread_cond_t work;     /* something is queued, or stop */
    pthread_cond_t done;     /* some transfer is over */
    spw__store_io *head, *tail;
    bool stop;
    uint32_t n_workers;
    pthread_t workers[];
} threads_engine;

static spw__store_io *next_io(threads_engine *t)
{
    spw__lock_take(&t->lock);
    while (!t->head && !t->stop)
        spw__lock_wait(&t->lock, &t->work);
    spw__store_io *io = t->head;
    if (io)
        t->head = io->next;
    spw__lock_drop(&t->lock);
    return io;
}

static void *worker(void *argument)
{
    threads_engine *t = argument;
    spw__store_io *io;
    while ((io = next_io(t))) {
        spw__file_transfer(t->engine.fd, io, 0);
        spw__lock_take(&t->lock);
        io->done = true;
        pthread_cond_broadcast(&t->done);
        spw__lock_drop(&t->lock);
    }
    return NULL;
}

static void threads_start(spw__file_engine *engine, spw__store_io *io)
{
    threads_engine *t = (threads_engine *)engine;
    spw__lock_take(&t->lock);
    io->next = NULL;
    if (t->head)
        t->tail->next = io;
    else
        t->head = io;
    t->tail = io;
    pthread_cond_signal(&t->work);
    spw__lock_drop(&t->lock);
}

static int threads_wait(spw__file_engine *engine, spw__store_io *io)
{
    threads_engine *t = (threads_engine *)engine;
    spw__lock_take(&t->lock);
    while (!io->done)
        spw__lock_wait(&t->lock, &t->done);
    spw__lock_drop(&t->lock);
    return io->result;
}

static void threads_close(spw__file_engine *engine)
{
    threads_engine *t = (threads_engine *)engine;
    spw__lock_take(&t->lock);
    t->stop = true;
    pthread_cond_broadcast(&t->work);
    spw__lock_drop(&t->lock);
    for (uint32_t i = 0; i < t->n_workers; i++)
        pthread_join(t->workers[i], NULL);
    pthread_cond_destroy(&t->work);
    pthread_cond_destroy(&t->done);
    spw__lock_deinit(&t->lock);
    free(t);
}

static const spw__file_engine_ops threads_ops = {threads_close, threads_start, threads_wait};

int spw__file_threads_open(int fd, uint32_t depth, spw__file_engine **engine)
{
    threads_engine *t = spw__calloc(1, sizeof *t + depth * sizeof *t->workers);
    if (!t)
        return SPW_EHOSTMEM;
    t->engine = (spw__file_engine){&threads_ops, fd};
    spw__lock_init(&t->lock, SPW__RANK_STORE);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->done, NULL);
    for (; t->n_workers < depth; t->n_workers++)
        if (pthread_create(&t->workers[t->n_workers], NULL, worker, t) != 0)
            break;
    if (t->n_workers == 0) {
        threads_close(&t->engine);
        return spw__error(SPW_EHOSTMEM, "cannot start a thread for the file store");
    }
    *engine = &t->engine;
    return 0;
}
