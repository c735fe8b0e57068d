/*
 * world.h - what the files of the stand-in share.
 *
 * One mutex (calls.c) is held from a driver function's first line to its last; everything declared
 * here is called with it held, and each file keeps its own part of the state:
 *
 *   calls.c    the mutex, counted calls, failures on command, the end of a process that is wrong
 *   blocks.c   memory: what was given, what was taken back, how much is left
 *   order.c    who touched which bytes last, and whether somebody ordered it
 *   queue.c    streams, events, the operations that wait, and when they run
 *   capture.c  streams that are being captured, and who breaks that
 *   kernels.c  what our kernels touch and do
 *   objects.c  handles that are live
 *   driver*.c  the driver's functions
 *
 * Time is a vector clock: one component a stream, which counts its operations. An operation's clock
 * covers all that is ordered before it, itself included; so an event is the clock of the stream
 * where it was recorded, waiting is a join, and an operation is free to run when all that its clock
 * covers has run. The host has one clock, of what it has waited for.
 */
#ifndef SPW_TESTS_STANDIN_WORLD_H
#define SPW_TESTS_STANDIN_WORLD_H

#include "standin.h"

#include "dev/cuda.h"

#include <stddef.h>

/* ------------------------------------------------------------------------------------ calls -- */

typedef enum standin_function {
#define STANDIN_ENUM(function) CALL_##function,
    SPW__CUDA_FUNCTIONS(STANDIN_ENUM)
#undef STANDIN_ENUM
        CALLS
} standin_function;

/* Takes the mutex and counts. Anything but CUDA_SUCCESS is to be returned, through call_end. */
CUresult standin__call_begin(standin_function function);
CUresult standin__call_end(CUresult result);

uint32_t standin__call_number(void); /* of the call under way, from 1 */
const char *standin__call_name(void);

/* For standin_... functions: the mutex alone. */
void standin__lock(void);
void standin__unlock(void);

/* One line on stderr, then abort(). */
_Noreturn void standin__die(const char *format, ...) __attribute__((format(printf, 1, 2)));

void *standin__new(size_t bytes); /* zeroed; never NULL */
void *standin__grown(void *array, size_t *capacity, size_t needed, size_t size);

/* ------------------------------------------------------------------------------------ clocks -- */

enum { STANDIN_SLOTS = 32 /* streams that can be open at once; slot 0 is the default stream */ };

typedef struct standin_clock {
    uint64_t at[STANDIN_SLOTS];
} standin_clock;

static inline void standin__join(standin_clock *clock, const standin_clock *other)
{
    for (int i = 0; i < STANDIN_SLOTS; i++)
        clock->at[i] = clock->at[i] > other->at[i] ? clock->at[i] : other->at[i];
}

static inline bool standin__covers(const standin_clock *clock, const standin_clock *other)
{
    bool covers = true;
    for (int i = 0; i < STANDIN_SLOTS; i++)
        covers &= clock->at[i] >= other->at[i];
    return covers;
}

/* An operation's own place in time, and what to call it. */
typedef struct standin_stamp {
    const char *what; /* NULL: nobody */
    uint64_t at;
    uint32_t slot;
    uint32_t call;
} standin_stamp;

static inline bool standin__covers_stamp(const standin_clock *clock, const standin_stamp *stamp)
{
    return !stamp->what || clock->at[stamp->slot] >= stamp->at;
}

/* ------------------------------------------------------------------------------------ blocks -- */

typedef enum standin_kind {
    BLOCK_DEVICE,  /* cuMemAlloc */
    BLOCK_MANAGED, /* cuMemAllocManaged */
    BLOCK_MAPPED,  /* cuMemMap */
    BLOCK_HOST,    /* cuMemAllocHost */
    BLOCK_PINNED,  /* cuMemHostRegister */
} standin_kind;

typedef struct standin_handle standin_handle;

typedef struct standin_block {
    uintptr_t begin, end;
    standin_kind kind;
    bool has_access;       /* BLOCK_MAPPED: cuMemSetAccess was called */
    bool gone;             /* kept for a while, to say so */
    uint32_t given, taken; /* numbers of the calls */
    standin_handle *handle;
} standin_block;

/* The block that has all the bytes; one that is gone may be the answer. NULL: no block has any of
 * them. Dies if they are partly in one. */
standin_block *standin__block_of(uintptr_t begin, uint64_t bytes);

/* Dies unless the bytes are there for an operation that was queued by call `call`. */
void standin__require_bytes(const standin_stamp *stamp, uintptr_t begin, uint64_t bytes);

CUresult standin__memory_alloc(CUdeviceptr *address, uint64_t bytes);
CUresult standin__managed_alloc(CUdeviceptr *address, uint64_t bytes);
void standin__memory_free(CUdeviceptr address);
CUresult standin__host_alloc(void **memory, uint64_t bytes);
void standin__host_free(const void *memory);
CUresult standin__host_register(const void *memory, uint64_t bytes);
void standin__host_unregister(const void *memory);
CUresult standin__address_reserve(CUdeviceptr *address, uint64_t bytes);
void standin__address_free(CUdeviceptr address, uint64_t bytes);
CUresult standin__handle_create(CUmemGenericAllocationHandle *handle, uint64_t bytes);
void standin__handle_release(CUmemGenericAllocationHandle handle);
CUresult standin__map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle);
void standin__unmap(CUdeviceptr address, uint64_t bytes);
void standin__set_access(CUdeviceptr address, uint64_t bytes);
void standin__memory_info(size_t *unused, size_t *total);
void standin__memory_set_capacity(uint64_t bytes);
void standin__memory_set_lockable(uint64_t bytes);
uint64_t standin__memory_live(void);
void standin__memory_reset(void);

/* ------------------------------------------------------------------------------------- order -- */

typedef struct standin_touch {
    uintptr_t begin, end;
    bool writes;
} standin_touch;

/* What one operation touches, as it is found out. */
typedef struct standin_touches {
    const standin_stamp *stamp;
    const standin_clock *clock;
    standin_touch *at;
    size_t n, capacity;
} standin_touches;

/* Dies if the bytes are not there, or an operation that still waits and is not ordered touches
 * them. Afterwards they can be read. */
void standin__touch(standin_touches *touches, const void *begin, uint64_t bytes, bool writes);

/* The operation runs now: dies if one that ran is not ordered before it, else remembers it. */
void standin__order_run(standin_touches *touches);

/* Dies if somebody whom `host` does not cover has touched the bytes; then nobody has. */
void standin__order_take(uintptr_t begin, uintptr_t end, const standin_clock *host);

/* What happened before `floor` needs no memory. */
void standin__order_prune(const standin_clock *floor);
void standin__order_reset(void);

/* ------------------------------------------------------------------------------------- queue -- */

typedef struct standin_copy {
    uintptr_t dst, src;
    uint64_t bytes;
} standin_copy;

typedef struct standin_launch standin_launch;

CUresult standin__stream_create(CUstream *stream, bool is_blocking);
bool standin__stream_is_blocking(CUstream stream);
void standin__stream_destroy(CUstream stream);
void standin__stream_sync(CUstream stream);
void standin__queue_copy(const standin_copy *copy, CUstream stream);
void standin__queue_fill(uintptr_t dst, int value, uint64_t bytes, CUstream stream);
void standin__queue_prefetch(uintptr_t at, uint64_t bytes, CUstream stream);
void standin__queue_launch(standin_launch *launch, CUstream stream); /* owns it from now on */

void standin__event_create(CUevent *event);
void standin__event_destroy(CUevent event);
void standin__event_record(CUevent event, CUstream stream);
void standin__event_wait(CUevent event, CUstream stream);
void standin__event_sync(CUevent event);

/* Runs everything; the host has waited for it. */
void standin__queue_drain(void);

/* Dies if a copy or fill that waits touches the bytes and `clock` and it do not order each other;
 * NULL: if any does. */
void standin__queue_check(const standin_touch *touch, const standin_stamp *stamp,
                          const standin_clock *clock);

const standin_clock *standin__host_clock(void);
bool standin__launches_done(const void *module); /* the host has waited for all of its launches */
void standin__queue_seed(uint64_t seed);
uint64_t standin__streams_open(void);
void standin__queue_reset(void);

/* ----------------------------------------------------------------------------------- capture -- */

/* Before a call that is potentially unsafe: if the thread's mode forbids it, the captures that do
 * are invalid from now on, and the answer is an error. */
CUresult standin__capture_unsafe(void);

/* Before something is queued on the stream. Dies if it is captured: what our library queues is to
 * run. Work on the default stream breaks the captures of blocking ones. */
CUresult standin__capture_use(CUstream stream);
CUresult standin__capture_sync(CUstream stream); /* likewise; waiting for a capture breaks it */
void standin__captures_reset(void);

/* ----------------------------------------------------------------------------------- kernels -- */

typedef struct standin_kernel standin_kernel;

struct standin_launch {
    const standin_kernel *kernel;
    const void *module;
    uint32_t grid, block;
    uint64_t args[]; /* the parameters one after the other, each a multiple of 8 bytes */
};

int standin__kernels(void); /* how many there are */
const standin_kernel *standin__kernel_at(int index);
const char *standin__kernel_name(const standin_kernel *kernel);

/* Copies the parameters. */
standin_launch *standin__launch_new(const standin_kernel *kernel, const void *const *params);
void standin__launch_touch(const standin_launch *launch, standin_touches *touches);
void standin__launch_play(const standin_launch *launch);

/* ----------------------------------------------------------------------------------- objects -- */

typedef enum standin_type {
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_HANDLE,
} standin_type;

void standin__object_add(standin_type type, void *object);
void standin__object_check(standin_type type, const void *object); /* dies if it is not live */
void standin__object_free(standin_type type, void *object);
uint64_t standin__objects_live(void); /* handles not counted: they are memory */
void standin__objects_reset(void);

/* driver.c */
uint64_t standin__contexts_live(void);
void standin__contexts_reset(void);
bool standin__context_is_current(void);

#endif
