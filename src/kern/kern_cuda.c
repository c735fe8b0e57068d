/*
 * The kernels on a GPU: what goes to the card, when, and on which stream.
 *
 * Tables that a launch reads (runs, hyper-parameters) pass through the feed: a few buffers of
 * pinned memory with as many on the device, each with an event for when its launch is done. A
 * thread that comes back to a buffer waits for that; with so many buffers it does not in practice.
 * A launch over few runs carries them along and needs no buffer.
 */
#include "kern/cuda/args.h"

#ifdef SPW_HAVE_CUDA

#include "base/error.h"
#include "base/mem.h"
#include "dev/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FEED_BUFFERS = 16,
    FEED_BYTES = 256 << 10,
    PAIRS = SPW__TYPES * SPW__TYPES, /* of types: a parameter's and its gradient's */
    KINDS = 2 * PAIRS,               /* of runs: 32-bit state, then 8-bit; each has its kernel */
};

/* The fatbin, embedded by kernels.S. */
extern const unsigned char spw__kernels_fatbin[];

typedef struct feed_buffer {
    void *host;
    CUdeviceptr device;
    void *done; /* event */
} feed_buffer;

typedef struct cuda_kern {
    spw__cuda *cuda;
    CUmodule module;
    CUfunction adam[KINDS];
    CUfunction norm_groups, norm_tensors, norm_total, begin;
    void *maps;     /* spw__code_maps on the device */
    spw__lock lock; /* guards the feed: held from taking a buffer to its launch */
    feed_buffer feed[FEED_BUFFERS];
    void *feed_memory;
    uint32_t next;
} cuda_kern;

/* ---------------------------------------------------------------------------- life of it all -- */

static void kern_close(spw_device *device)
{
    cuda_kern *kern = device->kern;
    for (int i = 0; i < FEED_BUFFERS; i++) {
        (void)spw__dev_event_wait(device, kern->feed[i].done);
        spw__dev_event_destroy(device, kern->feed[i].done);
    }
    spw__dev_free(device, kern->maps);
    spw__dev_free(device, kern->feed_memory);
    if (spw__cuda_enter(kern->cuda) == 0) {
        for (int i = 0; i < FEED_BUFFERS; i++)
            if (kern->feed[i].host)
                (void)kern->cuda->driver->cuMemFreeHost(kern->feed[i].host);
        if (kern->module)
            (void)kern->cuda->driver->cuModuleUnload(kern->module);
        spw__cuda_leave(kern->cuda);
    }
    spw__lock_deinit(&kern->lock);
    free(kern);
    device->kern = NULL;
    device->kern_close = NULL;
}

static int get_function(cuda_kern *kern, const char *name, CUfunction *function)
{
    return SPW__CUDA_TRY(kern->cuda, cuModuleGetFunction(function, kern->module, name));
}

static int get_adam(cuda_kern *kern, int kind)
{
    static const char *const types[SPW__TYPES] = {"fp32", "bf16", "fp16"};
    char name[32];
    (void)snprintf(name, sizeof name, "spw_adam%d_%s_%s", kind < PAIRS ? 32 : 8,
                   types[kind / SPW__TYPES % SPW__TYPES], types[kind % SPW__TYPES]);
    return get_function(kern, name, &kern->adam[kind]);
}

/* In the context. */
static int load_module(cuda_kern *kern)
{
    int rc = SPW__CUDA_TRY(kern->cuda, cuModuleLoadData(&kern->module, spw__kernels_fatbin));
    for (int kind = 0; rc == 0 && kind < KINDS; kind++)
        rc = get_adam(kern, kind);
    if (rc == 0)
        rc = get_function(kern, "spw_norm_groups", &kern->norm_groups);
    if (rc == 0)
        rc = get_function(kern, "spw_norm_tensors", &kern->norm_tensors);
    if (rc == 0)
        rc = get_function(kern, "spw_norm_total", &kern->norm_total);
    if (rc == 0)
        rc = get_function(kern, "spw_begin", &kern->begin);
    for (int i = 0; rc == 0 && i < FEED_BUFFERS; i++)
        rc = SPW__CUDA_TRY(kern->cuda, cuMemAllocHost(&kern->feed[i].host, FEED_BYTES));
    return rc;
}

static int make_feed(cuda_kern *kern)
{
    spw_device *device = &kern->cuda->device;
    int rc = spw__dev_alloc(device, FEED_BUFFERS * FEED_BYTES, SPW__DEV_MEMORY, &kern->feed_memory);
    for (int i = 0; rc == 0 && i < FEED_BUFFERS; i++) {
        kern->feed[i].device = (CUdeviceptr)(uintptr_t)kern->feed_memory + (uint64_t)i * FEED_BYTES;
        rc = spw__dev_event_create(device, &kern->feed[i].done);
    }
    return rc;
}

static int fill_maps(cuda_kern *kern)
{
    spw_device *device = &kern->cuda->device;
    const spw__code_maps *maps = spw__code_maps_get();
    int rc = spw__dev_alloc(device, sizeof *maps, SPW__DEV_MEMORY, &kern->maps);
    return rc < 0 ? rc : spw__dev_copy_now(device, kern->maps, maps, sizeof *maps);
}

/* A device's first table makes it; one thread at a time creates optimizers on one device. */
static int kern_get(spw_device *device, cuda_kern **result)
{
    *result = device->kern;
    if (*result)
        return 0;
    cuda_kern *kern = spw__calloc(1, sizeof *kern);
    if (!kern)
        return SPW_EHOSTMEM;
    kern->cuda = (spw__cuda *)device;
    spw__lock_init(&kern->lock, SPW__RANK_FEED);
    device->kern = kern;
    device->kern_close = kern_close;
    int rc = spw__cuda_enter(kern->cuda);
    if (rc == 0) {
        rc = load_module(kern);
        spw__cuda_leave(kern->cuda);
    }
    if (rc == 0)
        rc = make_feed(kern);
    if (rc == 0)
        rc = fill_maps(kern);
    if (rc < 0)
        kern_close(device);
    *result = kern;
    return rc;
}

/* ------------------------------------------------------------------------- feed and launches -- */

/* Context entered, lock held. */
static int take_buffer(cuda_kern *kern, feed_buffer **buffer)
{
    *buffer = &kern->feed[kern->next++ % FEED_BUFFERS];
    return SPW__CUDA_TRY(kern->cuda, cuEventSynchronize((*buffer)->done));
}

static int send_buffer(cuda_kern *kern, const feed_buffer *buffer, uint64_t bytes, void *stream)
{
    return SPW__CUDA_TRY(
        kern->cuda,
        cuMemcpyAsync(buffer->device, (CUdeviceptr)(uintptr_t)buffer->host, bytes, stream));
}

/* What cannot be marked is waited for: a step that was begun is not an error that may be repeated,
 * and an event that was not recorded says that it is done. */
static int mark(cuda_kern *kern, void *event, void *stream)
{
    int rc = SPW__CUDA_TRY(kern->cuda, cuEventRecord(event, stream));
    return rc < 0 ? SPW__CUDA_TRY(kern->cuda, cuStreamSynchronize(stream)) : 0;
}

static int free_buffer(cuda_kern *kern, const feed_buffer *buffer, void *stream)
{
    return mark(kern, buffer->done, stream);
}

typedef struct launch {
    CUfunction function;
    uint64_t blocks;
    uint32_t threads;
    void *args; /* one struct, copied by the call */
    void *stream;
} launch;

static int start(cuda_kern *kern, launch l)
{
    void *params[] = {l.args};
    return SPW__CUDA_TRY(kern->cuda, cuLaunchKernel(l.function, (unsigned)l.blocks, 1, 1, l.threads,
                                                    1, 1, 0, l.stream, params, NULL));
}

/* ---------------------------------------------------------------------------------- AdamW -- */

typedef struct adam_batch {
    cuda_kern *kern;
    CUfunction function;
    bool is_8bit;
    void *stream;
    spw__gpu_adam_args args;
    feed_buffer *buffer; /* NULL: the runs so far are in args.few */
} adam_batch;

static int flush(adam_batch *batch)
{
    cuda_kern *kern = batch->kern;
    spw__gpu_adam_args *args = &batch->args;
    if (!args->n_runs)
        return 0;
    int rc = 0;
    if (batch->buffer) {
        rc = send_buffer(kern, batch->buffer, args->n_runs * sizeof(spw__gpu_run), batch->stream);
        args->runs = (const spw__gpu_run *)(uintptr_t)batch->buffer->device;
    }
    uint64_t most = (uint64_t)kern->cuda->n_multiprocessors *
                    (batch->is_8bit ? SPW__GPU_BLOCKS_8 : SPW__GPU_BLOCKS_32 * SPW__GPU_SHARES_32);
    uint64_t blocks = args->n_tiles < most ? args->n_tiles : most;
    if (rc == 0)
        rc = start(kern, (launch){batch->function, blocks, SPW__GPU_THREADS, args, batch->stream});
    if (batch->buffer) {
        int freed = free_buffer(kern, batch->buffer, batch->stream);
        rc = rc < 0 ? rc : freed;
    }
    batch->buffer = NULL;
    args->runs = NULL;
    args->n_runs = 0;
    args->n_tiles = 0;
    return rc;
}

/* Where the next run goes: along with the launch, or into a buffer when they are many. */
static int place_for_run(adam_batch *batch, spw__gpu_run **place)
{
    uint32_t n = batch->args.n_runs;
    int rc = 0;
    if (n == FEED_BYTES / sizeof(spw__gpu_run))
        rc = flush(batch);
    n = batch->args.n_runs;
    if (rc == 0 && n == SPW__GPU_FEW) {
        rc = take_buffer(batch->kern, &batch->buffer);
        if (rc == 0)
            memcpy(batch->buffer->host, batch->args.few, sizeof batch->args.few);
    }
    *place = batch->buffer ? (spw__gpu_run *)batch->buffer->host + n : &batch->args.few[n];
    return rc;
}

static int add_run(adam_batch *batch, const spw__adam_run *run)
{
    spw__gpu_run *place;
    int rc = place_for_run(batch, &place);
    if (rc < 0)
        return rc;
    *place = (spw__gpu_run){.p = run->p,
                            .g = run->g,
                            .m = run->m,
                            .v = run->v,
                            .absmax_m = run->absmax_m,
                            .absmax_v = run->absmax_v,
                            .n = run->n,
                            .consts = run->consts,
                            .first_tile = batch->args.n_tiles};
    batch->args.n_runs++;
    batch->args.n_tiles += run->n / SPW__GPU_TILE + (run->n % SPW__GPU_TILE != 0);
    return 0;
}

static int kind_of(const spw__adam_run *run)
{
    return (run->absmax_m ? PAIRS : 0) + (int)run->p_type * SPW__TYPES + (int)run->g_type;
}

static int adam_kind(cuda_kern *kern, int kind, const spw__adam_run *runs, uint64_t n_runs,
                     void *stream)
{
    adam_batch batch = {.kern = kern,
                        .function = kern->adam[kind],
                        .is_8bit = kind >= PAIRS,
                        .stream = stream,
                        .args = {.maps = kern->maps}};
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < n_runs; i++)
        if (kind_of(&runs[i]) == kind && runs[i].n)
            rc = add_run(&batch, &runs[i]);
    return rc < 0 ? rc : flush(&batch);
}

static int cuda_adam(spw_device *device, const spw__adam_run *runs, uint64_t n_runs, void *stream)
{
    cuda_kern *kern;
    int rc = kern_get(device, &kern);
    if (rc == 0)
        rc = spw__cuda_enter(kern->cuda);
    if (rc < 0)
        return rc;
    unsigned kinds = 0;
    for (uint64_t i = 0; i < n_runs; i++)
        kinds |= 1u << kind_of(&runs[i]);
    spw__lock_take(&kern->lock);
    for (int kind = 0; rc == 0 && kind < KINDS; kind++)
        if (kinds >> kind & 1)
            rc = adam_kind(kern, kind, runs, n_runs, stream);
    spw__lock_drop(&kern->lock);
    spw__cuda_leave(kern->cuda);
    return rc;
}

/* -------------------------------------------------------------------- an optimizer's steps -- */

static int cuda_check_stream(spw_device *device, void *stream)
{
    return spw__cuda_check_stream((spw__cuda *)device, stream);
}

/* On the device, one after the other: verdict, progress, sums of tensors, sums of groups; the
 * constants are an allocation of their own. */
typedef struct cuda_table {
    spw__adam_table table; /* first */
    cuda_kern *kern;
    void *memory;
    spw__adam_verdict *verdict;
    spw__adam_progress *progress;
    double *norm, *tensors, *groups;
    void *begun; /* event: what was begun is done */
} cuda_table;

static void cuda_table_destroy(spw__adam_table *base)
{
    cuda_table *table = (cuda_table *)base;
    (void)spw__dev_event_wait(base->device, table->begun);
    spw__dev_event_destroy(base->device, table->begun);
    spw__dev_free(base->device, table->memory);
    spw__dev_free(base->device, base->consts);
    free(table);
}

static int make_memory(cuda_table *table, uint64_t norm_blocks)
{
    spw_device *device = table->table.device;
    uint64_t n = table->table.n_params;
    uint64_t groups = norm_blocks / SPW__GPU_GROUP + n;
    uint64_t bytes = sizeof *table->verdict + n * sizeof *table->progress +
                     (1 + n + groups) * sizeof *table->groups;
    void *consts;
    int rc = spw__dev_alloc(device, n * sizeof *table->table.consts, SPW__DEV_MEMORY, &consts);
    if (rc < 0)
        return rc;
    table->table.consts = consts;
    rc = spw__dev_alloc(device, bytes, SPW__DEV_MEMORY, &table->memory);
    if (rc < 0)
        return rc;
    table->verdict = table->memory;
    table->progress = (void *)(table->verdict + 1);
    table->norm = (void *)(table->progress + n);
    table->tensors = table->norm + 1;
    table->groups = table->tensors + n;
    rc = spw__dev_zero(device, table->memory, bytes, device->streams[SPW__DEV_GIVE]);
    return rc < 0 ? rc : spw__dev_stream_sync(device, device->streams[SPW__DEV_GIVE]);
}

static int cuda_table_create(spw_device *device, uint64_t n_params, uint64_t norm_blocks,
                             spw__adam_table **result)
{
    cuda_kern *kern;
    int rc = kern_get(device, &kern);
    if (rc < 0)
        return rc;
    cuda_table *table = spw__calloc(1, sizeof *table);
    if (!table)
        return SPW_EHOSTMEM;
    table->kern = kern;
    table->table =
        (spw__adam_table){.ops = &spw__kern_cuda, .device = device, .n_params = n_params};
    rc = spw__dev_event_create(device, &table->begun);
    if (rc == 0)
        rc = make_memory(table, norm_blocks);
    if (rc < 0) {
        cuda_table_destroy(&table->table);
        return rc;
    }
    *result = &table->table;
    return 0;
}

/* Context entered, lock held. Sends the tensors of `runs` in as many launches as the feed's buffers
 * ask for; the sums of all of them are then in table->tensors. */
static int queue_norm(cuda_table *table, const spw__norm_run *runs, uint64_t n_runs, void *stream)
{
    cuda_kern *kern = table->kern;
    enum { MOST = FEED_BYTES / sizeof(spw__gpu_norm_run) };
    int rc = 0;
    for (uint64_t first = 0; rc == 0 && first < n_runs; first += MOST) {
        uint64_t n = n_runs - first < MOST ? n_runs - first : MOST;
        feed_buffer *buffer;
        if ((rc = take_buffer(kern, &buffer)) < 0)
            return rc;
        spw__gpu_norm_run *to = buffer->host;
        uint64_t groups = 0;
        for (uint64_t i = 0; i < n; i++) {
            const spw__norm_run *run = &runs[first + i];
            to[i] = (spw__gpu_norm_run){run->g, run->n, groups, run->type};
            uint64_t blocks = run->n / SPW__SPLIT + (run->n % SPW__SPLIT != 0);
            groups += (blocks + SPW__GPU_GROUP - 1) / SPW__GPU_GROUP;
        }
        spw__gpu_norm_args args = {.runs = (const void *)(uintptr_t)buffer->device,
                                   .n_runs = n,
                                   .groups = table->groups,
                                   .tensors = table->tensors + first};
        rc = send_buffer(kern, buffer, n * sizeof *to, stream);
        if (rc == 0 && groups)
            rc = start(kern,
                       (launch){kern->norm_groups, groups, SPW__GPU_NORM_THREADS, &args, stream});
        if (rc == 0)
            rc = start(kern, (launch){kern->norm_tensors, n, SPW__GPU_NORM_THREADS, &args, stream});
        int freed = free_buffer(kern, buffer, stream);
        rc = rc < 0 ? rc : freed;
    }
    return rc;
}

/* Context entered, lock held. The first launch judges the norm; with more parameters than a buffer
 * holds, the others only copy its verdict's consequences. */
static int queue_begin(cuda_table *table, const spw__adam_step *step)
{
    cuda_kern *kern = table->kern;
    feed_buffer *buffer;
    uint64_t n = table->table.n_params;
    if (n > FEED_BYTES / sizeof *step->hyper)
        return spw__error(SPW_ENOTSUP, "more than %zu parameter tensors on a cuda device",
                          FEED_BYTES / sizeof *step->hyper);
    int rc = take_buffer(kern, &buffer);
    if (rc < 0)
        return rc;
    memcpy(buffer->host, step->hyper, n * sizeof *step->hyper);
    spw__gpu_begin_args args = {.hyper = (const void *)(uintptr_t)buffer->device,
                                .progress = table->progress,
                                .consts = table->table.consts,
                                .verdict = table->verdict,
                                .tensors = table->tensors,
                                .n_params = n,
                                .n_tensors = step->n_norm_runs,
                                .max_norm = step->max_norm,
                                .grad_scale = step->grad_scale,
                                .loss_scale = step->loss_scale,
                                .found_inf = step->found_inf};
    rc = send_buffer(kern, buffer, n * sizeof *step->hyper, step->stream);
    if (rc == 0)
        rc = start(kern, (launch){kern->begin, 1, SPW__GPU_NORM_THREADS, &args, step->stream});
    int freed = free_buffer(kern, buffer, step->stream);
    rc = rc < 0 ? rc : freed;
    return rc < 0 ? rc : mark(kern, table->begun, step->stream);
}

static int cuda_table_begin(spw__adam_table *base, const spw__adam_step *step)
{
    cuda_table *table = (cuda_table *)base;
    cuda_kern *kern = table->kern;
    int rc = spw__cuda_enter(kern->cuda);
    if (rc < 0)
        return rc;
    spw__lock_take(&kern->lock);
    if (step->max_norm > 0)
        rc = queue_norm(table, step->norm_runs, step->n_norm_runs, step->stream);
    if (rc == 0)
        rc = queue_begin(table, step);
    spw__lock_drop(&kern->lock);
    spw__cuda_leave(kern->cuda);
    return rc;
}

static int cuda_norm(spw__adam_table *base, const spw__norm_run *runs, uint64_t n_runs,
                     double *norm)
{
    cuda_table *table = (cuda_table *)base;
    cuda_kern *kern = table->kern;
    int rc = spw__dev_event_wait(base->device, table->begun);
    if (rc == 0)
        rc = spw__cuda_enter(kern->cuda);
    if (rc < 0)
        return rc;
    spw__lock_take(&kern->lock);
    /* On the stream of nobody: gradients that the caller's stream still makes are not waited for,
     * so the legacy default stream it is, which waits for blocking streams. */
    rc = queue_norm(table, runs, n_runs, NULL);
    void *params[] = {&table->tensors, &n_runs, &table->norm};
    if (rc == 0)
        rc = SPW__CUDA_TRY(kern->cuda,
                           cuLaunchKernel(kern->norm_total, 1, 1, 1, SPW__GPU_NORM_THREADS, 1, 1, 0,
                                          NULL, params, NULL));
    if (rc == 0)
        rc = SPW__CUDA_TRY(kern->cuda, cuStreamSynchronize(NULL));
    spw__lock_drop(&kern->lock);
    spw__cuda_leave(kern->cuda);
    return rc < 0 ? rc : spw__dev_copy_now(base->device, norm, table->norm, sizeof *norm);
}

static int read_back(spw__adam_table *base, void *to, const void *from, uint64_t bytes)
{
    cuda_table *table = (cuda_table *)base;
    int rc = spw__dev_event_wait(base->device, table->begun);
    return rc < 0 ? rc : spw__dev_copy_now(base->device, to, from, bytes);
}

static int cuda_table_verdict(spw__adam_table *table, spw__adam_verdict *verdict)
{
    return read_back(table, verdict, ((cuda_table *)table)->verdict, sizeof *verdict);
}

static int cuda_table_get(spw__adam_table *table, uint64_t param, spw__adam_progress *progress)
{
    return read_back(table, progress, &((cuda_table *)table)->progress[param], sizeof *progress);
}

static int cuda_table_set(spw__adam_table *base, uint64_t param, const spw__adam_progress *progress)
{
    cuda_table *table = (cuda_table *)base;
    int rc = spw__dev_event_wait(base->device, table->begun);
    return rc < 0 ? rc
                  : spw__dev_copy_now(base->device, &table->progress[param], progress,
                                      sizeof *progress);
}

const spw__kern_ops spw__kern_cuda = {
    .check_stream = cuda_check_stream,
    .table_create = cuda_table_create,
    .table_destroy = cuda_table_destroy,
    .table_begin = cuda_table_begin,
    .table_verdict = cuda_table_verdict,
    .table_get = cuda_table_get,
    .table_set = cuda_table_set,
    .norm = cuda_norm,
    .adam = cuda_adam,
};

#endif
