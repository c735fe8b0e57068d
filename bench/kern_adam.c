/*
 * kern_adam [ELEMENTS [THREADS [STEPS]]]: the resident AdamW step of the CPU kernels beside triad.
 *
 * Bytes are those a step must move: parameter, moments and absmax read and written, the gradient
 * read. One line a case: median and range of GB/s, and the median's share of triad (the mean of a
 * run before and one after, to show drift).
 */
#include "base/half.h"
#include "base/mem.h"
#include "cli/triad.h"
#include "dev/dev.h"
#include "kern/kern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct bench {
    spw_device device;
    uint64_t n;
    int steps;
    spw__update_run run;
    void *memory;
    uint64_t memory_bytes;
} bench;

static const spw__adam_consts consts = {
    .grad_factor = 1.0f,
    .lerp_weight = 0.1f,
    .lerp_from_m = UINT32_MAX,
    .beta2 = 0.999f,
    .one_minus_beta2 = 0.001f,
    .step_size = 1e-5f,
    .root_bias2 = 1.0f / 1.5f,
    .inv_root_bias2 = 1.5f,
    .eps = 1e-8f,
    .decay = 1.0f,
};

static void *take(char **at, uint64_t bytes)
{
    void *taken = *at;
    *at += spw__round_up(bytes, 4096);
    return taken;
}

/* Gradients of either sign over a few binades, by a counter: no two blocks alike. */
static void fill_gradients(const bench *b)
{
    uint64_t x = 88172645463325252u;
    for (uint64_t i = 0; i < b->n; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        float g = ((float)(x & 0xFFFF) - 32767.5f) * 1e-6f * (float)(x >> 60);
        uint32_t bits;
        memcpy(&bits, &g, sizeof bits);
        if (b->run.g_type == SPW_FP32)
            ((float *)b->run.g)[i] = g;
        else if (b->run.g_type == SPW_BF16)
            ((uint16_t *)b->run.g)[i] = (uint16_t)(bits >> 16);
        else
            ((uint16_t *)b->run.g)[i] = spw__fp16_of_float(g);
    }
}

static int prepare(bench *b, spw_type type, bool is_8bit)
{
    uint64_t state = is_8bit ? 1 : 4, blocks = (b->n + SPW__BLOCK - 1) / SPW__BLOCK;
    b->memory_bytes = b->n * (2 * spw__type_bytes(type) + 2 * state) + 8 * blocks + 6 * 4096;
    char *at = b->memory = spw__map(b->memory_bytes);
    if (!at)
        return SPW_EHOSTMEM;
    memset(b->memory, 0, b->memory_bytes);
    b->run = (spw__update_run){.n = b->n, .consts = &consts, .p_type = type, .g_type = type};
    b->run.p = take(&at, b->n * spw__type_bytes(type));
    b->run.g = take(&at, b->n * spw__type_bytes(type));
    b->run.m = take(&at, b->n * state);
    b->run.v = take(&at, b->n * state);
    if (is_8bit) {
        b->run.absmax_m = take(&at, 4 * blocks);
        b->run.absmax_v = take(&at, 4 * blocks);
    }
    fill_gradients(b);
    return 0;
}

static double bytes_moved(const bench *b)
{
    double element = 3.0 * (double)spw__type_bytes(b->run.p_type);
    element += b->run.absmax_m ? 4.0 + 16.0 / SPW__BLOCK : 16.0;
    return element * (double)b->n;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(bench *b, spw_type type, bool is_8bit)
{
    static const char *const names[SPW__TYPES] = {"fp32", "bf16", "fp16"};
    double gbs[64];
    if (prepare(b, type, is_8bit) < 0)
        return -1;
    double triad = spw__triad_gbs(b->device.pool);
    spw__kern_update(&b->device, SPW_ADAMW, &b->run, 1, NULL);
    for (int i = 0; i < b->steps; i++) {
        double begin = seconds();
        spw__kern_update(&b->device, SPW_ADAMW, &b->run, 1, NULL);
        gbs[i] = bytes_moved(b) * 1e-9 / (seconds() - begin);
    }
    triad = (triad + spw__triad_gbs(b->device.pool)) / 2;
    qsort(gbs, (size_t)b->steps, sizeof *gbs, ascending);
    double median = gbs[b->steps / 2];
    printf("%s p and g, %s state: %.2f GB/s (%.2f .. %.2f), triad %.2f, share %.2f\n", names[type],
           is_8bit ? "8-bit" : "32-bit", median, gbs[0], gbs[b->steps - 1], triad, median / triad);
    spw__unmap(b->memory, b->memory_bytes);
    return 0;
}

int main(int argc, char **argv)
{
    bench b = {.n = argc > 1 ? strtoull(argv[1], NULL, 10) : 32u << 20, .steps = 11};
    if (argc > 3)
        b.steps = atoi(argv[3]);
    if (b.steps < 1 || b.steps > 64 || b.n == 0) {
        fprintf(stderr, "kern_adam: ELEMENTS from 1, STEPS from 1 to 64\n");
        return 2;
    }
    int rc = spw__pool_create(argc > 2 ? (unsigned)atoi(argv[2]) : 0, &b.device.pool);
    for (int i = 0; i < 2 * SPW__TYPES && rc == 0; i++)
        rc = measure(&b, (spw_type)(i % SPW__TYPES), i / SPW__TYPES);
    if (rc < 0)
        fprintf(stderr, "kern_adam: %s\n", spw_last_error());
    spw__pool_destroy(b.device.pool);
    return rc < 0;
}
