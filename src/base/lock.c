#include "base/lock.h"

#ifdef SPW_CHECKS
#include <stdlib.h>

/* Bit r: this thread holds a lock of rank r. */
static _Thread_local unsigned held;

static void check_take(spw__rank rank)
{
    if (held >> rank)
        abort(); /* taken out of order, or twice */
    held |= 1u << rank;
}

static void check_drop(spw__rank rank)
{
    held &= ~(1u << rank);
}

void spw__lock_assert_none(void)
{
    if (held)
        abort(); /* a device or store call under a lock */
}
#else
static void check_take(spw__rank rank)
{
    (void)rank;
}

static void check_drop(spw__rank rank)
{
    (void)rank;
}

void spw__lock_assert_none(void)
{
}
#endif

void spw__lock_init(spw__lock *lock, spw__rank rank)
{
    pthread_mutex_init(&lock->mutex, NULL);
    lock->rank = rank;
}

void spw__lock_deinit(spw__lock *lock)
{
    pthread_mutex_destroy(&lock->mutex);
}

void spw__lock_take(spw__lock *lock)
{
    check_take(lock->rank);
    pthread_mutex_lock(&lock->mutex);
}

void spw__lock_drop(spw__lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
    check_drop(lock->rank);
}

void spw__lock_wait(spw__lock *lock, pthread_cond_t *condition)
{
    check_drop(lock->rank);
    pthread_cond_wait(condition, &lock->mutex);
    check_take(lock->rank);
}
