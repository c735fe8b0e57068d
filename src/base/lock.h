/*
 * lock.h - mutexes with a rank: a thread takes them in rising order only.
 *
 * In builds with SPW_CHECKS a thread that takes a lock of a rank it already passed, or calls
 * spw__lock_assert_none() (the wrappers of devices and stores do) with a pager's lock held, aborts
 * there and then: a deadlock found by the first test that comes by. Elsewhere it costs nothing.
 */
#ifndef SPW_BASE_LOCK_H
#define SPW_BASE_LOCK_H

#include <pthread.h>

/* The order of locks. A pager's lock is never held over a device or store call. */
typedef enum spw__rank {
    SPW__RANK_REGISTRY = 1, /* the list of pagers */
    SPW__RANK_PAGER,        /* page table, frames, counters */
    SPW__RANK_STORE,        /* a store's queue */
    SPW__RANK_FEED,         /* tables on their way to a GPU; held over its launches */
    SPW__RANK_DEVICE,       /* a table of allocations */
} spw__rank;

typedef struct spw__lock {
    pthread_mutex_t mutex;
    spw__rank rank;
} spw__lock;

/* For one that lives as long as the process. */
#define SPW__LOCK_INIT(its_rank) {PTHREAD_MUTEX_INITIALIZER, its_rank}

void spw__lock_init(spw__lock *lock, spw__rank rank);
void spw__lock_deinit(spw__lock *lock);
void spw__lock_take(spw__lock *lock);
void spw__lock_drop(spw__lock *lock);
void spw__lock_wait(spw__lock *lock, pthread_cond_t *condition); /* drops, waits, takes */

/* The calling thread holds no lock of this file. */
void spw__lock_assert_none(void);

#endif
