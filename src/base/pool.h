/*
 * pool.h - a fixed team of threads for loops whose iterations do not depend on each other.
 *
 * Not a scheduler: one run at a time, no nesting, no futures. Results must not depend on which
 * thread ran which task; a task gets its number and nothing else to key on. One caller at a time
 * (a second one waits). Created and destroyed by the owner of the work: a device, a trainer.
 */
#ifndef SPW_BASE_POOL_H
#define SPW_BASE_POOL_H

#include <stddef.h>

typedef struct spw__pool spw__pool;

/* `threads` counts the caller, which works too: 1 makes no thread. 0: one per usable core. */
int spw__pool_create(unsigned threads, spw__pool **pool);
void spw__pool_destroy(spw__pool *pool);
unsigned spw__pool_threads(const spw__pool *pool);

/* Calls task(context, i) for every i in 0..n_tasks-1, each once, in no order; returns when all are
 * done. Everything the caller wrote before is visible to the tasks, and theirs to the caller. */
void spw__pool_run(spw__pool *pool, size_t n_tasks, void (*task)(void *context, size_t index),
                   void *context);

#endif
