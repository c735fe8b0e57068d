#include "cli/bench_step.h"

#include "base/error.h"
#include "base/half.h"
#include "base/mem.h"
#include "base/pool.h"
#include "cli/triad.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_LORA = 448, BLOCKS = 32, CHUNK = 1 << 16 };

/* A set of tensors in one allocation each for parameters and gradients. */
typedef struct tensors {
    uint64_t n[N_LORA];
    uint64_t n_tensors;
    uint64_t elements;
    uint64_t element_bytes;
    spw_type type;
} tensors;

/* One optimizer over the tensors, on its own device. */
typedef struct rig {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    void *p;
} rig;

/* Hidden 4096, intermediate 11008, rank 64: A [r, in] and B [out, r] of q, k, v, o, gate, up, down.
 */
static void lora_shapes(tensors *t)
{
    static const uint64_t in[] = {4096, 4096, 4096, 4096, 4096, 4096, 11008};
    static const uint64_t out[] = {4096, 4096, 4096, 4096, 11008, 11008, 4096};
    for (int block = 0; block < BLOCKS; block++)
        for (int i = 0; i < 7; i++) {
            t->n[t->n_tensors++] = 64 * in[i];
            t->n[t->n_tensors++] = 64 * out[i];
        }
}

static void make_tensors(const spw__bench_step *bench, tensors *t)
{
    *t = (tensors){.type = bench->dtype, .element_bytes = bench->dtype == SPW_FP32 ? 4 : 2};
    if (bench->lora448)
        lora_shapes(t);
    else
        t->n[t->n_tensors++] = bench->params;
    for (uint64_t i = 0; i < t->n_tensors; i++)
        t->elements += t->n[i];
}

/* A value in -1..1 that depends on the element alone (the finaliser of splitmix64). */
static float made_up(uint64_t element, uint64_t salt)
{
    uint64_t z = element + salt * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (float)((double)((z ^ (z >> 31)) >> 40) / (1 << 23) - 1.0);
}

typedef struct filling {
    void *data;
    const tensors *t;
    uint64_t salt;
    float scale;
} filling;

static void fill_chunk(void *context, size_t chunk)
{
    const filling *f = context;
    uint64_t end = (chunk + 1) * (uint64_t)CHUNK;
    end = end < f->t->elements ? end : f->t->elements;
    for (uint64_t i = chunk * (uint64_t)CHUNK; i < end; i++) {
        float value = made_up(i, f->salt) * f->scale;
        if (f->t->type == SPW_FP32)
            ((float *)f->data)[i] = value;
        else if (f->t->type == SPW_BF16)
            ((uint16_t *)f->data)[i] = spw__bf16_of_float(value);
        else
            ((uint16_t *)f->data)[i] = spw__fp16_of_float(value);
    }
}

/* Made on the host, then copied. */
static int fill(spw_device *device, spw__pool *pool, const tensors *t, void *data, uint64_t salt,
                float scale)
{
    uint64_t bytes = t->elements * t->element_bytes;
    void *host = spw__map(bytes);
    if (!host)
        return SPW_EHOSTMEM;
    filling f = {host, t, salt, scale};
    spw__pool_run(pool, (size_t)((t->elements + CHUNK - 1) / CHUNK), fill_chunk, &f);
    int rc = spw_device_copy(device, data, host, bytes);
    spw__unmap(host, bytes);
    return rc;
}

static int add_tensors(rig *r, const tensors *t, char *gradients)
{
    uint64_t at = 0;
    for (uint64_t i = 0; i < t->n_tensors; i++) {
        spw_param param = {.name = "bench",
                           .data = (char *)r->p + at,
                           .grad = gradients + at,
                           .n = t->n[i],
                           .type = t->type,
                           .grad_type = t->type};
        int64_t rc = spw_optim_add(r->optim, &param);
        if (rc < 0)
            return (int)rc;
        at += t->n[i] * t->element_bytes;
    }
    return 0;
}

static void rig_close(rig *r)
{
    spw_optim_destroy(r->optim);
    spw_free(r->pager, r->p);
    spw_pager_destroy(r->pager);
    spw_device_close(r->device);
    *r = (rig){.device = NULL};
}

static int rig_open(rig *r, const spw__bench_step *bench, const spw_device_config *device,
                    const spw_pager_config *pager)
{
    spw_optim_config optim;
    spw_optim_config_default(&optim);
    optim.rule = bench->rule;
    optim.state = bench->state;
    optim.group.weight_decay = 0.01;
    *r = (rig){.device = NULL};
    int rc = spw_device_open(bench->device_name, device, &r->device);
    if (rc == 0)
        rc = spw_pager_create(r->device, pager, &r->pager);
    if (rc == 0)
        rc = spw_optim_create(r->pager, &optim, &r->optim);
    return rc;
}

/* Parameters at their start; `gradients` is shared by both rigs. */
static int rig_fill(rig *r, spw__pool *pool, const tensors *t, void *gradients)
{
    int rc = spw_malloc(r->pager, t->elements * t->element_bytes, &r->p);
    if (rc < 0)
        return rc;
    rc = fill(r->device, pool, t, r->p, 1, 1.0f);
    return rc < 0 ? rc : add_tensors(r, t, gradients);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int timed_step(rig *r, double *ms)
{
    double begin = now_ms();
    int rc = spw_optim_step(r->optim, &(spw_step){.lr = 1e-3});
    if (rc == 0)
        rc = spw_device_sync(r->device, NULL);
    *ms = now_ms() - begin;
    return rc;
}

static int compare_ms(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static int run_steps(rig *r, uint32_t steps, spw__bench_step_result *result)
{
    double untimed, *ms = spw__calloc(steps, sizeof *ms);
    spw_pager_stats before;
    int rc = ms ? timed_step(r, &untimed) : SPW_EHOSTMEM;
    for (uint32_t i = 0; rc == 0 && i < steps; i++) {
        (void)spw_pager_stats_get(r->pager, &before);
        rc = timed_step(r, &ms[i]);
    }
    if (rc == 0) {
        (void)spw_pager_stats_get(r->pager, &result->pager);
        result->bytes_in = result->pager.bytes_in - before.bytes_in;
        result->bytes_out = result->pager.bytes_out - before.bytes_out;
        qsort(ms, steps, sizeof *ms, compare_ms);
        result->ms_min = ms[0];
        result->ms_median = ms[steps / 2];
        result->ms_max = ms[steps - 1];
    }
    free(ms);
    return rc;
}

/* ------------------------------------------------------------------------------- the limits -- */

typedef struct copying {
    char *dst;
    const char *src;
    uint64_t bytes;
} copying;

static void copy_chunk(void *context, size_t chunk)
{
    const copying *c = context;
    uint64_t at = chunk * (uint64_t)CHUNK;
    uint64_t n = c->bytes - at < CHUNK ? c->bytes - at : CHUNK;
    memcpy(c->dst + at, c->src + at, (size_t)n);
}

/* Every page of `store` to one frame and back again, as a sweep with nothing resident moves them;
 * GB/s of bytes moved both ways together. */
static double probe(spw__pool *pool, uint64_t page_bytes, uint64_t state_bytes)
{
    uint64_t most = UINT64_C(256) << 20;
    uint64_t bytes = state_bytes < most ? state_bytes : most;
    uint64_t n_pages = bytes / page_bytes;
    size_t chunks = (size_t)((page_bytes + CHUNK - 1) / CHUNK);
    char *store = spw__map(bytes), *frame = spw__map(page_bytes);
    double best = 0;
    for (int round = 0; store && frame && n_pages && round < 4; round++) {
        double begin = now_ms();
        for (uint64_t i = 0; i < n_pages; i++) {
            copying in = {frame, store + i * page_bytes, page_bytes};
            copying out = {store + i * page_bytes, frame, page_bytes};
            spw__pool_run(pool, chunks, copy_chunk, &in);
            spw__pool_run(pool, chunks, copy_chunk, &out);
        }
        double gbs = 2.0 * (double)(n_pages * page_bytes) / 1e6 / (now_ms() - begin);
        best = round > 0 && gbs > best ? gbs : best; /* the first round touches the memory */
    }
    spw__unmap(store, bytes);
    spw__unmap(frame, page_bytes);
    return best;
}

/* Read p, g and the moments; written p and the moments. */
static double bytes_needed(const spw__bench_step *bench, const tensors *t)
{
    double moment = bench->state == SPW_STATE_8BIT ? 1 + 4.0 / 256 : 4;
    double state = moment * (bench->rule == SPW_LION ? 1 : bench->rule == SPW_ADEMAMIX ? 3 : 2);
    return (double)t->elements * (3.0 * (double)t->element_bytes + 2 * state);
}

static void find_limits(const spw__bench_step *bench, spw__pool *pool, const tensors *t,
                        spw__bench_step_result *result)
{
    double seconds = result->ms_median / 1e3;
    result->bound_bytes = 2 * (result->pager.state_bytes - result->pager.resident_bytes);
    if (result->pager.paging == SPW_PAGING_MAPPED || result->pager.paging == SPW_PAGING_UNIFIED)
        result->bound_bytes = 0; /* the store is where the step works: nothing moves */
    result->link_in_gbs = (double)result->bytes_in / 1e9 / seconds;
    result->link_out_gbs = (double)result->bytes_out / 1e9 / seconds;
    result->step_gbs = bytes_needed(bench, t) / 1e9 / seconds;
    if (result->on_gpu)
        return; /* measured while the device was open */
    result->limit_gbs = spw__triad_gbs(pool);
    if (strcmp(bench->pager.store, "ram") == 0)
        result->probe_gbs = probe(pool, result->pager.page_bytes, result->pager.state_bytes);
}

static int find_link(rig *r, spw__bench_step_result *result)
{
    spw_link_rates rates;
    int rc = spw_device_link(r->device, result->pager.page_bytes, &rates);
    if (rc < 0)
        return rc;
    result->probe_gbs = rates.both_gbs;
    result->limit_gbs = rates.device_gbs;
    return 0;
}

/* The parameters of both, on the host. */
static int compare(rig rigs[2], uint64_t bytes, bool *identical)
{
    void *host[2] = {spw__map(bytes), spw__map(bytes)};
    int rc = host[0] && host[1] ? 0 : SPW_EHOSTMEM;
    for (int i = 0; rc == 0 && i < 2; i++)
        rc = spw_device_copy(rigs[i].device, host[i], rigs[i].p, bytes);
    *identical = rc == 0 && memcmp(host[0], host[1], (size_t)bytes) == 0;
    for (int i = 0; i < 2; i++)
        spw__unmap(host[i], bytes);
    return rc;
}

/* The same steps, unpaged, where there is no cap. */
static int run_unpaged(const spw__bench_step *bench, spw__pool *pool, const tensors *t,
                       void *gradients, rig *other)
{
    spw_device_config device;
    spw_device_config_default(&device);
    device.threads = bench->device.threads;
    spw_pager_config pager;
    spw_pager_config_default(&pager);
    pager.paging = SPW_PAGING_OFF;
    int rc = rig_open(other, bench, &device, &pager);
    if (rc == 0)
        rc = rig_fill(other, pool, t, gradients);
    for (uint32_t i = 0; rc == 0 && i <= bench->steps; i++)
        rc = spw_optim_step(other->optim, &(spw_step){.lr = 1e-3});
    return rc < 0 ? rc : spw_device_sync(other->device, NULL);
}

static int measure(const spw__bench_step *bench, spw__pool *pool, const tensors *t, rig rigs[2],
                   spw__bench_step_result *result)
{
    uint64_t bytes = t->elements * t->element_bytes;
    void *gradients;
    int rc = rig_open(&rigs[0], bench, &bench->device, &bench->pager);
    if (rc == 0)
        rc = spw_malloc(rigs[0].pager, bytes, &gradients);
    if (rc < 0)
        return rc;
    rc = fill(rigs[0].device, pool, t, gradients, 2, 0.1f);
    if (rc == 0)
        rc = rig_fill(&rigs[0], pool, t, gradients);
    if (rc == 0)
        rc = run_steps(&rigs[0], bench->steps, result);
    result->on_gpu = strcmp(bench->device_name, "cpu") != 0;
    result->params = t->elements;
    if (rc == 0 && result->on_gpu)
        rc = find_link(&rigs[0], result);
    if (rc == 0)
        rc = run_unpaged(bench, pool, t, gradients, &rigs[1]);
    if (rc == 0)
        rc = compare(rigs, bytes, &result->identical);
    spw_free(rigs[0].pager, gradients);
    return rc;
}

int spw__bench_step_run(const spw__bench_step *bench, spw__bench_step_result *result)
{
    tensors t;
    spw__pool *pool;
    rig rigs[2] = {{.device = NULL}, {.device = NULL}};
    *result = (spw__bench_step_result){.identical = false};
    make_tensors(bench, &t);
    int rc = spw__pool_create(bench->device.threads, &pool);
    if (rc < 0)
        return rc;
    rc = measure(bench, pool, &t, rigs, result);
    rig_close(&rigs[1]);
    rig_close(&rigs[0]);
    if (rc == 0)
        find_limits(bench, pool, &t, result);
    spw__pool_destroy(pool);
    return rc;
}
