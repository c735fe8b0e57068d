/*
 * chance.h - the walks' only source of chance, how far they go, and who disturbs them.
 *
 * SPW_WALK_OPS is how many operations each walk makes (a test's usual number without it),
 * SPW_WALK_SEED the seed of its first episode; a failure names the seed of the episode it is in,
 * and SPW_WALK_SEED=<that> SPW_WALK_OPS=1 is the same episode again.
 */
#ifndef SPW_TESTS_WALK_CHANCE_H
#define SPW_TESTS_WALK_CHANCE_H

#include <spillway/spillway.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* xorshift64*: the state is never 0. */
static inline uint64_t chance_next(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D);
}

/* 0 to n - 1; 0 if n is. */
static inline uint64_t chance_below(uint64_t *state, uint64_t n)
{
    return n ? (chance_next(state) >> 16) % n : 0;
}

static inline uint64_t walk_number(const char *name, uint64_t usual)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : usual;
}

static inline uint64_t walk_ops(uint64_t usual)
{
    return walk_number("SPW_WALK_OPS", usual);
}

static inline uint64_t walk_seed(void)
{
    return walk_number("SPW_WALK_SEED", 1);
}

/* Threads that take device memory, give it back, and ask for state to give way. */
enum { N_TENANTS = 2 };

typedef struct tenant {
    spw_pager *pager;
    uint64_t chance;
    uint64_t most; /* bytes that one holds at once */
    atomic_bool is_over;
    pthread_t thread;
} tenant;

static inline void tenant_turn(tenant *t)
{
    void *piece;
    uint64_t bytes = chance_below(&t->chance, t->most);
    if (spw_malloc(t->pager, bytes, &piece) == 0) {
        memset(piece, 0x5A, bytes < 64 ? bytes : 64);
        spw_free(t->pager, piece);
    }
    if (chance_below(&t->chance, 8) == 0)
        (void)spw_pager_reclaim(t->pager, chance_below(&t->chance, t->most), NULL);
    if (chance_below(&t->chance, 16) == 0)
        (void)spw_pager_reserve(t->pager, chance_below(&t->chance, t->most));
}

static inline void *tenant_run(void *argument)
{
    tenant *t = argument;
    while (!t->is_over) {
        tenant_turn(t);
        (void)usleep(300); /* the step must come to its turn */
    }
    return NULL;
}

/* False: the system has no threads left. */
static inline bool tenants_begin(tenant tenants[N_TENANTS], spw_pager *pager, uint64_t seed,
                                 uint64_t most)
{
    for (uint64_t i = 0; i < N_TENANTS; i++) {
        tenants[i] = (tenant){.pager = pager, .chance = seed * 4 + i + 1, .most = most};
        if (pthread_create(&tenants[i].thread, NULL, tenant_run, &tenants[i]) != 0)
            return false;
    }
    return true;
}

static inline void tenants_end(tenant tenants[N_TENANTS])
{
    for (int i = 0; i < N_TENANTS; i++)
        tenants[i].is_over = true;
    for (int i = 0; i < N_TENANTS; i++)
        (void)pthread_join(tenants[i].thread, NULL);
}

#endif
