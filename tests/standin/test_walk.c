/*
 * Random runs of an optimizer on the cuda device, beside the same run on the cpu: whatever moves,
 * whoever takes memory meanwhile, on whichever stream, the bits are the same and all is ordered.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "standin.h"

#include <spillway/spillway.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const uint64_t sizes[] = {1, 255, 4096, 0, 70001, 256, 5000, 331072, 33};
enum { N_TENSORS = sizeof sizes / sizeof *sizes, STEPS = 8, BIG = 7, PART_TIME = 6, MIB = 1 << 20 };

/* One side of the comparison. On the cpu `memory` and `grads` are the host's arrays. */
typedef struct rig {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    float *host_p[N_TENSORS], *host_g[N_TENSORS];
    void *p[N_TENSORS], *g[N_TENSORS];
    bool is_cuda;
} rig;

typedef struct walk {
    uint64_t seed, chance;
    rig cpu, cuda;
    void *stream; /* the caller's; NULL: the default one */
    bool waits;   /* the host, after every step; else gradients stay what they are */
} walk;

static void must(const walk *w, int64_t rc, const char *what)
{
    if (rc < 0)
        fail_msg("%s; seed %llu; %s", what, (unsigned long long)w->seed, spw_last_error());
}

static uint64_t chance(walk *w, uint64_t n)
{
    w->chance ^= w->chance >> 12;
    w->chance ^= w->chance << 25;
    w->chance ^= w->chance >> 27;
    return (w->chance * UINT64_C(0x2545F4914F6CDD1D) >> 16) % n;
}

/* ------------------------------------------------------------------------------ the two rigs -- */

static float value(int tensor, uint64_t i, uint64_t salt)
{
    return (float)((double)((i * 40503 + (uint64_t)tensor * 77 + salt * 1234567) % 2001) / 1000 -
                   1);
}

static void add_tensors(const walk *w, rig *r)
{
    for (int t = 0; t < N_TENSORS; t++) {
        uint64_t bytes = sizes[t] * sizeof(float);
        r->p[t] = r->host_p[t] = calloc(sizes[t] + 1, sizeof(float));
        r->g[t] = r->host_g[t] = calloc(sizes[t] + 1, sizeof(float));
        assert_true(r->host_p[t] && r->host_g[t]);
        for (uint64_t i = 0; i < sizes[t]; i++)
            r->host_p[t][i] = value(t, i, 99);
        if (r->is_cuda) {
            must(w, spw_malloc(r->pager, bytes, &r->p[t]), "parameter");
            must(w, spw_malloc(r->pager, bytes, &r->g[t]), "gradient");
            must(w, spw_device_copy(r->device, r->p[t], r->host_p[t], bytes), "upload");
        }
        spw_param param = {.name = "t", .data = r->p[t], .grad = r->g[t], .n = sizes[t]};
        must(w, spw_optim_add(r->optim, &param), "add");
    }
}

static void open_rig(const walk *w, rig *r, const spw_pager_config *config, uint64_t mem,
                     spw_state state)
{
    spw_device_config device_config;
    spw_device_config_default(&device_config);
    device_config.mem = mem;
    device_config.threads = 2;
    must(w, spw_device_open(r->is_cuda ? "cuda:0" : "cpu", &device_config, &r->device), "open");
    must(w, spw_pager_create(r->device, config, &r->pager), "pager");
    spw_optim_config optim_config;
    spw_optim_config_default(&optim_config);
    optim_config.state = state;
    optim_config.group.weight_decay = 0.01;
    must(w, spw_optim_create(r->pager, &optim_config, &r->optim), "optimizer");
    add_tensors(w, r);
}

static void close_rig(rig *r)
{
    spw_optim_destroy(r->optim);
    for (int t = 0; t < N_TENSORS; t++) {
        if (r->is_cuda) {
            spw_free(r->pager, r->p[t]);
            spw_free(r->pager, r->g[t]);
        }
        free(r->host_p[t]);
        free(r->host_g[t]);
    }
    spw_pager_destroy(r->pager);
    spw_device_close(r->device);
}

/* A stream of the caller's own, in the context that the device shares. */
static void make_stream(walk *w)
{
    CUcontext context;
    unsigned flags = chance(w, 2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    assert_int_equal(cuCtxPushCurrent(context), CUDA_SUCCESS);
    if (chance(w, 2))
        assert_int_equal(cuStreamCreate((CUstream *)&w->stream, flags), CUDA_SUCCESS);
}

static void destroy_stream(const walk *w)
{
    if (w->stream)
        assert_int_equal(cuStreamDestroy(w->stream), CUDA_SUCCESS);
    assert_int_equal(cuCtxPopCurrent(NULL), CUDA_SUCCESS);
    assert_int_equal(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
}

static void open_walk(walk *w, uint64_t seed)
{
    const spw_paging ways[] = {SPW_PAGING_COPY,   SPW_PAGING_COPY, SPW_PAGING_UNIFIED,
                               SPW_PAGING_MAPPED, SPW_PAGING_OFF,  SPW_PAGING_AUTO};
    *w = (walk){.seed = seed, .chance = seed * 77 + 1, .cuda = {.is_cuda = true}};
    spw_pager_config usual, config;
    spw_pager_config_default(&usual);
    config = usual;
    config.paging = ways[chance(w, 6)];
    config.page_bytes = chance(w, 2) ? 64 << 10 : 0;
    config.ring_frames = (uint32_t)(3 + chance(w, 5));
    config.state_percent = chance(w, 2) ? (double)chance(w, 5) * 25 : -1;
    config.occupancy = 0.5 + (double)chance(w, 6) * 0.1;
    w->waits = chance(w, 2);
    bool capped = chance(w, 2) && config.paging != SPW_PAGING_OFF;
    standin_reset();
    standin_seed(seed % 4 ? seed : 0);
    standin_set_capacity((28 + chance(w, 16)) * MIB);
    spw_state state = chance(w, 2) ? SPW_STATE_8BIT : SPW_STATE_32BIT;
    open_rig(w, &w->cpu, &usual, 0, state);
    open_rig(w, &w->cuda, &config, capped ? (18 + chance(w, 10)) * MIB : 0, state);
    make_stream(w);
}

static void close_walk(walk *w)
{
    close_rig(&w->cpu);
    close_rig(&w->cuda);
    destroy_stream(w);
    assert_int_equal(standin_live_bytes(), 0);
    assert_int_equal(standin_live_objects(), 0);
}

/* ------------------------------------------------------------------------------------- steps -- */

static void new_gradients(const walk *w, rig *r, int step)
{
    for (int t = 0; t < N_TENSORS; t++) {
        for (uint64_t i = 0; i < sizes[t]; i++)
            r->host_g[t][i] = value(t, i, (uint64_t)step);
        if (step == 4)
            r->host_g[BIG][100] = INFINITY;
        if (r->is_cuda)
            must(w, spw_device_copy(r->device, r->g[t], r->host_g[t], sizes[t] * sizeof(float)),
                 "upload");
    }
}

/* The first step may come while another thread has what the ring needs: it may be repeated. */
static void take_step(const walk *w, rig *r, int step)
{
    spw_step s = {
        .lr = 1e-2, .max_norm = step == 5 ? 0 : 1, .stream = r->is_cuda ? w->stream : NULL};
    if (w->waits || step == 0)
        new_gradients(w, r, step);
    must(w,
         spw_optim_set_pointers(r->optim, PART_TIME, r->p[PART_TIME],
                                step % 2 ? NULL : r->g[PART_TIME]),
         "pointers");
    int rc = spw_optim_step(r->optim, &s);
    for (int tries = 0; rc == SPW_ENOMEM && step == 0 && tries < 1000; tries++)
        rc = spw_optim_step(r->optim, &s);
    must(w, rc, "step");
}

static void read_and_write_part(const walk *w, rig *r)
{
    int64_t bytes = spw_optim_part_bytes(r->optim, BIG, SPW_PART_M);
    void *part = malloc((size_t)bytes);
    assert_non_null(part);
    must(w, spw_optim_get_part(r->optim, BIG, SPW_PART_M, part, (uint64_t)bytes), "get part");
    must(w, spw_optim_set_part(r->optim, BIG, SPW_PART_M, part, (uint64_t)bytes), "set part");
    free(part);
}

static void disturb(walk *w)
{
    spw_pager *pager = w->cuda.pager;
    void *piece;
    switch (chance(w, 5)) {
    case 0:
        must(w, spw_pager_reclaim(pager, chance(w, 4 * MIB), NULL), "reclaim");
        break;
    case 1:
        must(w, spw_pager_reserve(pager, chance(w, 4 * MIB)), "reserve");
        break;
    case 2:
        if (spw_malloc(pager, chance(w, 8 * MIB), &piece) == 0)
            spw_free(pager, piece);
        break;
    case 3:
        read_and_write_part(w, &w->cuda);
        break;
    default:
        break;
    }
}

static void compare_parts(const walk *w, uint64_t t)
{
    for (int part = SPW_PART_M; part <= SPW_PART_ABSMAX_V; part++) {
        int64_t n = spw_optim_part_bytes(w->cpu.optim, t, (spw_part)part);
        uint64_t bytes = n > 0 ? (uint64_t)n : 0;
        char *ours = malloc(bytes + 1), *theirs = malloc(bytes + 1);
        assert_true(ours && theirs);
        if (bytes) {
            must(w, spw_optim_get_part(w->cpu.optim, t, (spw_part)part, theirs, bytes), "part");
            must(w, spw_optim_get_part(w->cuda.optim, t, (spw_part)part, ours, bytes), "part");
        }
        if (memcmp(ours, theirs, bytes) != 0)
            fail_msg("part %d of tensor %d differs; seed %llu", part, (int)t,
                     (unsigned long long)w->seed);
        free(ours);
        free(theirs);
    }
}

static void compare(const walk *w)
{
    spw_optim_info info[2];
    for (uint64_t t = 0; t < N_TENSORS; t++) {
        uint64_t bytes = sizes[t] * sizeof(float);
        must(w, spw_device_copy(w->cuda.device, w->cuda.host_p[t], w->cuda.p[t], bytes), "copy");
        if (memcmp(w->cuda.host_p[t], w->cpu.host_p[t], bytes) != 0)
            fail_msg("tensor %d differs; seed %llu", (int)t, (unsigned long long)w->seed);
        compare_parts(w, t);
    }
    must(w, spw_optim_info_get(w->cpu.optim, &info[0]), "info");
    must(w, spw_optim_info_get(w->cuda.optim, &info[1]), "info");
    assert_memory_equal(&info[0], &info[1], sizeof info[0]);
}

static void run(walk *w)
{
    for (int step = 0; step < STEPS; step++) {
        take_step(w, &w->cpu, step);
        take_step(w, &w->cuda, step);
        disturb(w);
        if (w->waits)
            must(w, spw_device_sync(w->cuda.device, w->stream), "sync");
    }
    must(w, spw_device_sync(w->cuda.device, w->stream), "sync");
    compare(w);
}

/* ------------------------------------------------------------------------------------- tests -- */

static void steps_have_the_cpus_bits(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        walk w;
        open_walk(&w, seed);
        run(&w);
        close_walk(&w);
    }
}

typedef struct tenant {
    spw_pager *pager;
    uint64_t chance;
    atomic_bool *is_over;
} tenant;

static void *take_and_free(void *argument)
{
    tenant *t = argument;
    while (!*t->is_over) {
        void *piece;
        t->chance = t->chance * UINT64_C(6364136223846793005) + 1;
        if (spw_malloc(t->pager, (t->chance >> 40) % (3 * MIB), &piece) == 0)
            spw_free(t->pager, piece);
        if (t->chance >> 61 == 3)
            (void)spw_pager_reclaim(t->pager, MIB, NULL);
        (void)usleep(300); /* the step must come to its turn */
    }
    return NULL;
}

static void so_they_have_while_others_take_memory(void **state)
{
    (void)state;
    for (uint64_t seed = 101; seed <= 106; seed++) {
        walk w;
        atomic_bool is_over = false;
        pthread_t threads[2];
        open_walk(&w, seed);
        tenant tenants[2] = {{w.cuda.pager, seed, &is_over}, {w.cuda.pager, ~seed, &is_over}};
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, take_and_free, &tenants[i]), 0);
        run(&w);
        is_over = true;
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_join(threads[i], NULL), 0);
        close_walk(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_have_the_cpus_bits),
        cmocka_unit_test(so_they_have_while_others_take_memory),
    };
    (void)cuInit(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
