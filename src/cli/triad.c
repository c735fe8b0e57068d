#include "cli/triad.h"

#include "base/mem.h"

#include <stdint.h>
#include <time.h>

enum { PASSES = 10, PARTS = 64 };

#define ELEMENTS (UINT64_C(1) << 24)

typedef struct triad {
    double *a, *b, *c;
} triad;

static void fill_part(void *context, size_t index)
{
    const triad *t = context;
    uint64_t n = ELEMENTS / PARTS;
    for (uint64_t i = index * n; i < (index + 1) * n; i++) {
        t->a[i] = 0.0;
        t->b[i] = 1.0;
        t->c[i] = 2.0;
    }
}

static void triad_part(void *context, size_t index)
{
    const triad *t = context;
    uint64_t n = ELEMENTS / PARTS, at = index * n;
    double *restrict a = t->a + at;
    const double *restrict b = t->b + at, *restrict c = t->c + at;
    for (uint64_t i = 0; i < n; i++)
        a[i] = b[i] + 3.0 * c[i];
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double best_pass(spw__pool *pool, triad *t)
{
    double best = 1e30;
    spw__pool_run(pool, PARTS, fill_part, t);
    for (int pass = 0; pass < PASSES; pass++) {
        double begin = seconds();
        spw__pool_run(pool, PARTS, triad_part, t);
        double took = seconds() - begin;
        best = took < best ? took : best;
    }
    return best;
}

double spw__triad_gbs(spw__pool *pool)
{
    uint64_t bytes = ELEMENTS * sizeof(double);
    double *memory = spw__map(3 * bytes);
    if (!memory)
        return 0.0;
    triad t = {memory, memory + ELEMENTS, memory + 2 * ELEMENTS};
    double gbs = 3e-9 * (double)bytes / best_pass(pool, &t);
    spw__unmap(memory, 3 * bytes);
    return gbs;
}
