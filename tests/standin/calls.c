/* The mutex around every call, what is counted, and failures on command. */
#include "world.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    NO_CONTEXT = 1, /* may be called without one */
    NO_FAULT = 2,   /* gives back or names an error: not among "any function" that fails */
    UNSAFE = 4,     /* may break a stream capture that is under way */
};

typedef struct call {
    const char *name;
    unsigned flags;
    uint64_t count;
} call;

static call calls[CALLS] = {
#define STANDIN_NAME(function) [CALL_##function] = {.name = #function},
    SPW__CUDA_FUNCTIONS(STANDIN_NAME)
#undef STANDIN_NAME
};

static const struct {
    standin_function function;
    unsigned flags;
} unusual[] = {
    {CALL_cuInit, NO_CONTEXT},
    {CALL_cuGetErrorName, NO_CONTEXT | NO_FAULT},
    {CALL_cuGetErrorString, NO_CONTEXT | NO_FAULT},
    {CALL_cuDeviceGetCount, NO_CONTEXT},
    {CALL_cuDeviceGet, NO_CONTEXT},
    {CALL_cuDeviceGetName, NO_CONTEXT},
    {CALL_cuDeviceGetAttribute, NO_CONTEXT},
    {CALL_cuDevicePrimaryCtxRetain, NO_CONTEXT},
    {CALL_cuDevicePrimaryCtxRelease, NO_CONTEXT | NO_FAULT},
    {CALL_cuCtxPushCurrent, NO_CONTEXT},
    {CALL_cuCtxPopCurrent, NO_FAULT},
    {CALL_cuMemGetInfo, UNSAFE},
    {CALL_cuMemAlloc, UNSAFE},
    {CALL_cuMemFree, NO_FAULT | UNSAFE},
    {CALL_cuMemAllocManaged, UNSAFE},
    {CALL_cuMemAllocHost, UNSAFE},
    {CALL_cuMemFreeHost, NO_FAULT | UNSAFE},
    {CALL_cuMemHostRegister, UNSAFE},
    {CALL_cuMemHostUnregister, NO_FAULT | UNSAFE},
    {CALL_cuMemAddressReserve, UNSAFE},
    {CALL_cuMemAddressFree, NO_FAULT | UNSAFE},
    {CALL_cuMemCreate, UNSAFE},
    {CALL_cuMemRelease, NO_FAULT | UNSAFE},
    {CALL_cuMemMap, UNSAFE},
    {CALL_cuMemUnmap, NO_FAULT | UNSAFE},
    {CALL_cuMemSetAccess, UNSAFE},
    {CALL_cuStreamSynchronize, UNSAFE},
    {CALL_cuEventSynchronize, UNSAFE},
    {CALL_cuModuleLoadData, UNSAFE},
    {CALL_cuStreamDestroy, NO_FAULT},
    {CALL_cuEventDestroy, NO_FAULT},
    {CALL_cuModuleUnload, NO_FAULT | UNSAFE},
    {CALL_cuThreadExchangeStreamCaptureMode, NO_CONTEXT},
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static standin_function current;
static uint32_t number;
static bool is_started;

static struct {
    int function; /* CALLS: any */
    uint64_t left;
    CUresult result;
    const char *failed;
} fault;

/* All functions are there, or this does not link. */
extern const spw__cuda_driver standin__driver;
const spw__cuda_driver standin__driver = {
#define STANDIN_FIELD(function) .function = function,
    SPW__CUDA_FUNCTIONS(STANDIN_FIELD)
#undef STANDIN_FIELD
};

void standin__lock(void)
{
    pthread_mutex_lock(&mutex);
}

void standin__unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

static unsigned flags_of(standin_function function)
{
    for (size_t i = 0; i < sizeof unusual / sizeof *unusual; i++)
        if (unusual[i].function == function)
            return unusual[i].flags;
    return 0;
}

static bool fault_is_due(standin_function function)
{
    bool counts = fault.function == (int)function ||
                  (fault.function == CALLS && !(flags_of(function) & NO_FAULT));
    bool due = counts && fault.left && --fault.left == 0;
    if (due)
        fault.failed = calls[function].name;
    return due;
}

CUresult standin__call_begin(standin_function function)
{
    standin__lock();
    current = function;
    number++;
    calls[function].count++;
    if (fault_is_due(function))
        return fault.result;
    is_started |= function == CALL_cuInit;
    if (!is_started)
        standin__die("cuInit was not called");
    if (!(flags_of(function) & NO_CONTEXT) && !standin__context_is_current())
        standin__die("the thread has no current context");
    if (flags_of(function) & UNSAFE)
        return standin__capture_unsafe();
    return CUDA_SUCCESS;
}

CUresult standin__call_end(CUresult result)
{
    standin__unlock();
    return result;
}

uint32_t standin__call_number(void)
{
    return number;
}

const char *standin__call_name(void)
{
    return calls[current].name;
}

void standin__die(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)fprintf(stderr, "standin: in %s (call %u): %s\n", standin__call_name(), number, text);
    (void)fflush(stderr);
    abort();
}

void *standin__new(size_t bytes)
{
    void *memory = calloc(1, bytes ? bytes : 1);
    if (!memory)
        standin__die("the stand-in is out of memory");
    return memory;
}

void *standin__grown(void *array, size_t *capacity, size_t needed, size_t size)
{
    if (needed <= *capacity)
        return array;
    while (*capacity < needed)
        *capacity = *capacity ? 2 * *capacity : 16;
    array = realloc(array, *capacity * size);
    if (!array)
        standin__die("the stand-in is out of memory");
    return array;
}

/* ---------------------------------------------------------------------------------- control -- */

static int function_of(const char *name)
{
    for (int i = 0; name && i < CALLS; i++)
        if (strcmp(calls[i].name, name) == 0)
            return i;
    if (name)
        standin__die("%s is not a function that the stand-in has", name);
    return CALLS;
}

void standin_set_capacity(uint64_t bytes)
{
    standin__lock();
    standin__memory_set_capacity(bytes);
    standin__unlock();
}

void standin_set_lockable(uint64_t bytes)
{
    standin__lock();
    standin__memory_set_lockable(bytes);
    standin__unlock();
}

void standin_seed(uint64_t seed)
{
    standin__lock();
    standin__queue_seed(seed);
    standin__unlock();
}

uint64_t standin_fail_nth(const char *function, uint64_t n, CUresult result)
{
    standin__lock();
    uint64_t left = fault.left;
    fault.function = function_of(function);
    fault.left = n;
    fault.result = result;
    standin__unlock();
    return left;
}

const char *standin_failed(void)
{
    standin__lock();
    const char *name = fault.failed;
    standin__unlock();
    return name;
}

uint64_t standin_calls(const char *function)
{
    standin__lock();
    int which = function_of(function);
    uint64_t count = 0;
    for (int i = 0; i < CALLS; i++)
        count += which == CALLS || which == i ? calls[i].count : 0;
    standin__unlock();
    return count;
}

uint64_t standin_live_bytes(void)
{
    standin__lock();
    uint64_t bytes = standin__memory_live();
    standin__unlock();
    return bytes;
}

uint64_t standin_live_objects(void)
{
    standin__lock();
    uint64_t n = standin__objects_live() + standin__streams_open() + standin__contexts_live();
    standin__unlock();
    return n;
}

void standin_reset(void)
{
    standin__lock();
    standin__queue_reset();
    standin__order_reset();
    standin__memory_reset();
    standin__objects_reset();
    standin__contexts_reset();
    standin__captures_reset();
    for (int i = 0; i < CALLS; i++)
        calls[i].count = 0;
    fault.left = 0;
    fault.failed = NULL;
    standin__unlock();
}
