#include "base/pool.h"

#include "base/error.h"
#include "base/mem.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

struct spw__pool {
    unsigned threads;         /* the caller included */
    unsigned n_started;       /* workers that must be joined */
    pthread_t *workers;       /* threads - 1 of them */
    pthread_mutex_t callers;  /* one run at a time */
    pthread_mutex_t lock;     /* guards what follows down to `stop` */
    pthread_cond_t work;      /* a new run, or stop */
    pthread_cond_t done;      /* n_busy reached 0 */
    unsigned long generation; /* of runs; a worker joins each once */
    unsigned n_busy;          /* workers still inside the current run */
    bool stop;
    void (*task)(void *context, size_t index); /* of the current run; read-only while it lasts */
    void *context;
    size_t n_tasks;
    atomic_size_t next; /* the next task to take */
};

static void take_tasks(spw__pool *pool)
{
    size_t index;
    while ((index = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed)) <
           pool->n_tasks)
        pool->task(pool->context, index);
}

static void *worker(void *argument)
{
    spw__pool *pool = argument;
    unsigned long seen = 0;
    pthread_mutex_lock(&pool->lock);
    for (;;) {
        while (!pool->stop && pool->generation == seen)
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stop)
            break;
        seen = pool->generation;
        pthread_mutex_unlock(&pool->lock);
        take_tasks(pool);
        pthread_mutex_lock(&pool->lock);
        if (--pool->n_busy == 0)
            pthread_cond_signal(&pool->done);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static unsigned usable_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return (unsigned)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than a cpu_set_t holds */
    return online > 0 ? (unsigned)online : 1;
}

static int start_workers(spw__pool *pool)
{
    for (; pool->n_started + 1 < pool->threads; pool->n_started++) {
        int failed = pthread_create(&pool->workers[pool->n_started], NULL, worker, pool);
        if (failed)
            return spw__error(SPW_EHOSTMEM, "cannot start thread %u of %u", pool->n_started + 2,
                              pool->threads);
    }
    return 0;
}

int spw__pool_create(unsigned threads, spw__pool **result)
{
    spw__pool *pool = spw__calloc(1, sizeof *pool);
    if (!pool)
        return SPW_EHOSTMEM;
    pool->threads = threads ? threads : usable_cores();
    pthread_mutex_init(&pool->callers, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->workers = spw__calloc(pool->threads, sizeof *pool->workers);
    int rc = pool->workers ? start_workers(pool) : SPW_EHOSTMEM;
    if (rc < 0) {
        spw__pool_destroy(pool);
        return rc;
    }
    *result = pool;
    return 0;
}

void spw__pool_destroy(spw__pool *pool)
{
    if (!pool)
        return;
    pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->n_started; i++)
        pthread_join(pool->workers[i], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    pthread_mutex_destroy(&pool->callers);
    free(pool->workers);
    free(pool);
}

unsigned spw__pool_threads(const spw__pool *pool)
{
    return pool->threads;
}

static void start_run(spw__pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    pool->n_busy = pool->n_started;
    pool->generation++;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

static void finish_run(spw__pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    while (pool->n_busy)
        pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

void spw__pool_run(spw__pool *pool, size_t n_tasks, void (*task)(void *, size_t), void *context)
{
    pthread_mutex_lock(&pool->callers);
    pool->task = task;
    pool->context = context;
    pool->n_tasks = n_tasks;
    atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
    bool alone = n_tasks < 2 || pool->n_started == 0;
    if (!alone)
        start_run(pool);
    take_tasks(pool);
    if (!alone)
        finish_run(pool);
    pthread_mutex_unlock(&pool->callers);
}
