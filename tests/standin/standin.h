/*
 * standin.h - how a test steers the stand-in CUDA driver, a libcuda.so.1 in RAM.
 *
 * What it is: the driver functions that the library uses (SPW__CUDA_FUNCTIONS), over memory of this
 * process. Work that is queued runs as late as the API allows, in an order that a seed picks among
 * those it allows; kernels are played by the CPU's loops. Two operations that touch the same bytes,
 * one of them writing, and that no stream, event or waiting host orders, are named on stderr and
 * the process aborts; so it does on calls that a real driver answers with corruption or a sticky
 * error. Host code's own reads and writes are not seen; pinned memory is checked like the device's.
 *
 * What it is not: a model of a GPU's speed, of several GPUs, or of host threads' order: all threads
 * count as one host (TSan sees them). Any thread.
 *
 * A program linked against it has the functions below; one that may also run on a real driver asks
 * for them by standin_find.
 */
#ifndef SPW_TESTS_STANDIN_H
#define SPW_TESTS_STANDIN_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#pragma GCC visibility push(default)

#include <cuda.h>

enum {
    STANDIN_POISON = 0xDB,       /* every byte of memory that was just given */
    STANDIN_MULTIPROCESSORS = 4, /* of the one device there is */
    STANDIN_GRANULE = 2 << 20,   /* of cuMemCreate */
};

/* Device memory that there is; 4 GiB after a reset. What is given already stays. */
void standin_set_capacity(uint64_t bytes);

/* Host memory that may be registered, as by a limit on locked memory; no limit after a reset. What
 * is registered already stays. */
void standin_set_lockable(uint64_t bytes);

/* Picks the order of what is free to run. 0, as after a reset: nothing runs that nobody waits for,
 * and what must runs oldest first. Others: by chance, and some of it early. */
void standin_seed(uint64_t seed);

/* The n-th call (from 1) of `function` ("cuMemAlloc") from now on does nothing and answers
 * `result`, once; n = 0 turns it off. NULL: of any function but those that give something back or
 * name an error. Returns what was left of the count before: 0 if that call came. */
uint64_t standin_fail_nth(const char *function, uint64_t n, CUresult result);

/* The function that last failed so, since the reset; NULL: none. */
const char *standin_failed(void);

/* Calls since the reset; NULL: of all functions. */
uint64_t standin_calls(const char *function);

/* The calling thread begins to capture a stream, as by cuStreamBeginCapture. What is captured is
 * not kept: nothing may be queued on the stream. */
void standin_capture_begin(CUstream stream, CUstreamCaptureMode mode);

/* Ends it. False: some call has broken the capture. */
bool standin_capture_end(CUstream stream);

/* Bytes that were not given back: device memory, reserved addresses, pinned host memory. */
uint64_t standin_live_bytes(void);

/* Streams, events, modules and retained contexts that were not given back. */
uint64_t standin_live_objects(void);

/* Everything as at the start, but for cuInit. Queued work is dropped, memory is gone. */
void standin_reset(void);

#pragma GCC visibility pop

/* The functions above where the process's libcuda.so.1 is the stand-in. */
typedef struct standin_control {
    void (*set_capacity)(uint64_t bytes);
    void (*set_lockable)(uint64_t bytes);
    void (*seed)(uint64_t seed);
    uint64_t (*fail_nth)(const char *function, uint64_t n, CUresult result);
    const char *(*failed)(void);
    uint64_t (*calls)(const char *function);
    void (*capture_begin)(CUstream stream, CUstreamCaptureMode mode);
    bool (*capture_end)(CUstream stream);
    uint64_t (*live_bytes)(void);
    uint64_t (*live_objects)(void);
    void (*reset)(void);
} standin_control;

/* ISO C has no conversion from an object's pointer to a function's; POSIX promises the bytes. */
static inline bool standin_find_one(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* False: a real driver, or none. */
static inline bool standin_find(standin_control *control)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return library && standin_find_one(library, "standin_set_capacity", &control->set_capacity) &&
           standin_find_one(library, "standin_set_lockable", &control->set_lockable) &&
           standin_find_one(library, "standin_seed", &control->seed) &&
           standin_find_one(library, "standin_fail_nth", &control->fail_nth) &&
           standin_find_one(library, "standin_failed", &control->failed) &&
           standin_find_one(library, "standin_calls", &control->calls) &&
           standin_find_one(library, "standin_capture_begin", &control->capture_begin) &&
           standin_find_one(library, "standin_capture_end", &control->capture_end) &&
           standin_find_one(library, "standin_live_bytes", &control->live_bytes) &&
           standin_find_one(library, "standin_live_objects", &control->live_objects) &&
           standin_find_one(library, "standin_reset", &control->reset);
}

#endif
