/*
 * dev.h - a device: memory, copies, streams, events, behind one small table.
 *
 * What it is not: it knows no pages and no optimizer; arithmetic is kern's. Callers are the pager,
 * kern and opt, through the spw__dev_... wrappers below, which keep the counters; nobody calls a
 * table slot directly. Any thread. A device lives longer than everything that stands on it.
 *
 * The cpu device is an arena of `capacity` bytes of address space. Ordinary memory is placed first
 * fit from the low end, page frames from the high end, so that frames given back, lowest first,
 * widen one gap and a large allocation is not refused for fragmentation that paging caused.
 * It runs every queued operation at once on the calling thread: its streams and events are NULL
 * and already complete.
 *
 * The cuda device (cuda*.c) queues copies, fills and kernels on streams and returns before they are
 * done; events order them. Three streams are its own, beside the caller's: pages come IN, go OUT,
 * and are GIVEn back by reclaims.
 */
#ifndef SPW_DEV_DEV_H
#define SPW_DEV_DEV_H

#include "base/pool.h"

#include <spillway/spillway.h>

#include <stdbool.h>

typedef struct spw__dev_ops spw__dev_ops;

/* What memory is for: decides its end of the arena and whose account it is on. */
typedef enum spw__dev_use {
    SPW__DEV_MEMORY,  /* somebody's tensors */
    SPW__DEV_FRAME,   /* the pager's page frames */
    SPW__DEV_MANAGED, /* CUDA managed memory: where it is, the driver knows; on nobody's account */
} spw__dev_use;

/* How much is in use, and by whom. */
typedef struct spw__dev_usage {
    uint64_t capacity;
    uint64_t in_use;
    uint64_t widest;     /* the largest allocation that would succeed now, about */
    uint64_t frames;     /* of in_use: SPW__DEV_FRAME */
    uint64_t peak;       /* most ever in use */
    uint64_t other_peak; /* most of in_use - frames since the last spw__dev_reset_other_peak; a
                            failed SPW__DEV_MEMORY allocation counts as if it had succeeded,
                            unless it is larger than the device */
    bool has_cap;        /* the caller gave the capacity, or it is a GPU's */
} spw__dev_usage;

/* A device's own streams. */
typedef enum spw__dev_stream {
    SPW__DEV_IN,
    SPW__DEV_OUT,
    SPW__DEV_GIVE,
    SPW__DEV_STREAMS,
} spw__dev_stream;

struct spw_device {
    const spw__dev_ops *ops;
    spw__pool *pool;  /* threads for host loops over device memory; cpu device only, else NULL */
    bool host_memory; /* the CPU can read and write device memory: stores may do I/O to it */
    bool async;       /* operations are queued; false: they are done on return */
    bool managed;     /* SPW__DEV_MANAGED can be had, and touched by host and device at once */
    int32_t ordinal;  /* N of cuda:N; -1: not a GPU */
    uint64_t margin;  /* bytes of the capacity that state never takes */
    uint64_t given;   /* bytes that its pagers gave back, ever; by __atomic: C++ reads this, too */
    void *streams[SPW__DEV_STREAMS]; /* NULL unless async */
    void *kern;                      /* what kern keeps for this device, NULL if nothing */
    void (*kern_close)(spw_device *device);
};

/* The table. Required slots first. */
struct spw__dev_ops {
    const char *name;
    void (*close)(spw_device *device);
    /* 64-byte aligned; frames 4096-byte aligned. SPW_ENOMEM is recorded with what was asked. */
    int (*alloc)(spw_device *device, uint64_t bytes, spw__dev_use use, void **pointer);
    void (*free)(spw_device *device, void *pointer);
    void (*usage)(spw_device *device, spw__dev_usage *usage);
    void (*reset_other_peak)(spw_device *device);
    /* Queues a copy between host and device memory, either way, on `stream`. */
    int (*copy)(spw_device *device, void *dst, const void *src, uint64_t bytes, void *stream);
    /* Queues filling device memory with zero bytes. */
    int (*zero)(spw_device *device, void *dst, uint64_t bytes, void *stream);
    /* Optional from here on: NULL on a device that is not async, where there is nothing to wait
     * for and all host memory is equal. */
    int (*event_create)(spw_device *device, void **event);
    void (*event_destroy)(spw_device *device, void *event);
    int (*event_record)(spw_device *device, void *event, void *stream);
    int (*stream_wait)(spw_device *device, void *stream, void *event); /* queues the wait */
    int (*event_wait)(spw_device *device, void *event);   /* the calling thread waits */
    int (*stream_sync)(spw_device *device, void *stream); /* likewise, for all of it */
    int (*pin)(spw_device *device, void *memory, uint64_t bytes);
    void (*unpin)(spw_device *device, void *memory);
    /* Queues moving managed memory to the device. */
    int (*prefetch)(spw_device *device, void *memory, uint64_t bytes, void *stream);
};

int spw__dev_alloc(spw_device *device, uint64_t bytes, spw__dev_use use, void **pointer);
void spw__dev_free(spw_device *device, void *pointer); /* NULL is allowed */
void spw__dev_usage_get(spw_device *device, spw__dev_usage *usage);
void spw__dev_reset_other_peak(spw_device *device);
int spw__dev_copy(spw_device *device, void *dst, const void *src, uint64_t bytes, void *stream);
int spw__dev_zero(spw_device *device, void *dst, uint64_t bytes, void *stream);

/* A copy that is done on return. */
int spw__dev_copy_now(spw_device *device, void *dst, const void *src, uint64_t bytes);

/* An event that was never recorded is complete. `event` may be NULL: it is complete, recording it
 * does nothing. */
int spw__dev_event_create(spw_device *device, void **event);
void spw__dev_event_destroy(spw_device *device, void *event);
int spw__dev_event_record(spw_device *device, void *event, void *stream);
int spw__dev_stream_wait(spw_device *device, void *stream, void *event);
int spw__dev_event_wait(spw_device *device, void *event);
int spw__dev_stream_sync(spw_device *device, void *stream);

/* Makes host memory one that the device copies from and to without the host's help, and that its
 * kernels can reach. Page-aligned. */
int spw__dev_pin(spw_device *device, void *memory, uint64_t bytes);
void spw__dev_unpin(spw_device *device, void *memory);
int spw__dev_prefetch(spw_device *device, void *memory, uint64_t bytes, void *stream);

/* The kinds of device; spw_device_open picks by name. */
int spw__dev_cpu_open(const spw_device_config *config, spw_device **device);
int spw__dev_cuda_open(uint32_t ordinal, const spw_device_config *config, spw_device **device);

/* Tests: the n-th (from 1) allocation, or copy or fill, from now on fails, once, with SPW_ENOMEM or
 * SPW_EIO; 0 turns it off. Returns what was left of the count before: 0 if that call came. Counts
 * calls of the wrapper, so it works on every kind of device. */
uint64_t spw__dev_fail_alloc(uint64_t nth);
uint64_t spw__dev_fail_copy(uint64_t nth);

#endif
