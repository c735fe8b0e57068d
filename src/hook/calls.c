#include "hook/calls.h"

#include <spillway/spillway.h>

#include <cuda.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of the runtime's headers, which differ between versions, this much does not. */
typedef int cuda_error; /* cudaError_t */
enum { CUDA_OUT_OF_MEMORY = 2 };

#define EXPORT __attribute__((visibility("default")))

EXPORT cuda_error cudaMalloc(void **pointer, size_t bytes);
EXPORT cuda_error cudaMallocAsync(void **pointer, size_t bytes, void *stream);
EXPORT cuda_error cudaGetDriverEntryPoint(const char *name, void **function,
                                          unsigned long long flags, void *status);
EXPORT cuda_error cudaGetDriverEntryPointByVersion(const char *name, void **function,
                                                   unsigned version, unsigned long long flags,
                                                   void *status);

static struct {
    cuda_error (*malloc)(void **, size_t);
    cuda_error (*malloc_async)(void **, size_t, void *);
    cuda_error (*entry)(const char *, void **, unsigned long long, void *);
    cuda_error (*entry_by_version)(const char *, void **, unsigned, unsigned long long, void *);
    cuda_error (*get_device)(int *);
    cuda_error (*get_last_error)(void);
    CUresult (*mem_create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                           unsigned long long);
} real;

static atomic_uint_fast64_t n_repeated, bytes_given, ns_given;

EXPORT void spw_hook_counts(uint64_t *repeated, uint64_t *bytes, double *ms)
{
    *repeated = atomic_load(&n_repeated);
    *bytes = atomic_load(&bytes_given);
    *ms = (double)atomic_load(&ns_given) / 1e6;
}

/* ------------------------------------------------------------------------------ the real ones --
 */

/* The CUDA runtime that is loaded already; whichever version. */
static int find_runtime(struct dl_phdr_info *info, size_t size, void *handle)
{
    (void)size;
    const char *name = strrchr(info->dlpi_name, '/');
    if (strncmp(name ? name + 1 : info->dlpi_name, "libcudart.so", 12) != 0)
        return 0;
    *(void **)handle = dlopen(info->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
    return 1;
}

/* ISO C has no conversion from an object's pointer to a function's; POSIX promises the bytes. */
static void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
}

static void find_all(void)
{
    void *runtime = NULL;
    (void)dl_iterate_phdr(find_runtime, &runtime);
    if (!runtime)
        runtime = RTLD_NEXT; /* preloaded into a program that links the runtime */
    find(runtime, "cudaMalloc", &real.malloc);
    find(runtime, "cudaMallocAsync", &real.malloc_async);
    find(runtime, "cudaGetDriverEntryPoint", &real.entry);
    find(runtime, "cudaGetDriverEntryPointByVersion", &real.entry_by_version);
    find(runtime, "cudaGetDevice", &real.get_device);
    find(runtime, "cudaGetLastError", &real.get_last_error);
}

bool spw__hook_find_real(void)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    if (!real.malloc)
        find_all();
    pthread_mutex_unlock(&once);
    return real.malloc && real.get_device && real.get_last_error;
}

/* ---------------------------------------------------------------------------------- the twins --
 */

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* A call that is repeated. When nothing is left to give it is repeated once more: others may have
 * been given room between its failure and our asking. */
typedef struct attempt {
    size_t bytes;
    bool last;
} attempt;

/* False if the call is not worth repeating any more. */
static bool give(int ordinal, attempt *a)
{
    uint64_t begin = now_ns(), freed = 0;
    if (a->last)
        return false;
    (void)spw_reclaim(ordinal, a->bytes ? a->bytes : 1, &freed);
    atomic_fetch_add(&bytes_given, freed);
    atomic_fetch_add(&ns_given, now_ns() - begin);
    a->last = freed == 0;
    return true;
}

static bool give_on_current(attempt *a)
{
    int ordinal = -1;
    if (a->last)
        return false; /* and the runtime remembers the failure, as without us */
    (void)real.get_last_error(); /* it is not for those who repeat */
    return real.get_device(&ordinal) == 0 && ordinal >= 0 && give(ordinal, a);
}

static cuda_error malloc_twin(void **pointer, size_t bytes)
{
    if (!spw__hook_find_real())
        return CUDA_OUT_OF_MEMORY;
    attempt a = {.bytes = bytes};
    cuda_error error = real.malloc(pointer, bytes);
    while (error == CUDA_OUT_OF_MEMORY && give_on_current(&a)) {
        error = real.malloc(pointer, bytes);
        atomic_fetch_add(&n_repeated, error == 0);
    }
    return error;
}

static cuda_error malloc_async_twin(void **pointer, size_t bytes, void *stream)
{
    if (!spw__hook_find_real() || !real.malloc_async)
        return CUDA_OUT_OF_MEMORY;
    attempt a = {.bytes = bytes};
    cuda_error error = real.malloc_async(pointer, bytes, stream);
    while (error == CUDA_OUT_OF_MEMORY && give_on_current(&a)) {
        error = real.malloc_async(pointer, bytes, stream);
        atomic_fetch_add(&n_repeated, error == 0);
    }
    return error;
}

static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t bytes,
                           const CUmemAllocationProp *prop, unsigned long long flags)
{
    bool on_gpu = prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    CUresult result = real.mem_create(handle, bytes, prop, flags);
    attempt a = {.bytes = bytes};
    while (result == CUDA_ERROR_OUT_OF_MEMORY && on_gpu && give(prop->location.id, &a)) {
        result = real.mem_create(handle, bytes, prop, flags);
        atomic_fetch_add(&n_repeated, result == CUDA_SUCCESS);
    }
    return result;
}

/* Those who look cuMemCreate up get its twin. */
static void substitute(const char *name, void **function)
{
    if (strcmp(name, "cuMemCreate") != 0 || !*function)
        return;
    CUresult (*twin)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *,
                     unsigned long long) = mem_create;
    if (memcmp(function, &twin, sizeof twin) != 0)
        memcpy(&real.mem_create, function, sizeof real.mem_create);
    memcpy(function, &twin, sizeof twin);
}

static cuda_error entry_twin(const char *name, void **function, unsigned long long flags,
                             void *status)
{
    if (!spw__hook_find_real() || !real.entry)
        return CUDA_OUT_OF_MEMORY;
    cuda_error error = real.entry(name, function, flags, status);
    if (error == 0)
        substitute(name, function);
    return error;
}

static cuda_error entry_by_version_twin(const char *name, void **function, unsigned version,
                                        unsigned long long flags, void *status)
{
    if (!spw__hook_find_real() || !real.entry_by_version)
        return CUDA_OUT_OF_MEMORY;
    cuda_error error = real.entry_by_version(name, function, version, flags, status);
    if (error == 0)
        substitute(name, function);
    return error;
}

/* What a preloaded hook shows the program. Not used from within: these names may mean the runtime's
 * functions there, when it was loaded before us. */
cuda_error cudaMalloc(void **pointer, size_t bytes)
{
    return malloc_twin(pointer, bytes);
}

cuda_error cudaMallocAsync(void **pointer, size_t bytes, void *stream)
{
    return malloc_async_twin(pointer, bytes, stream);
}

cuda_error cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                   void *status)
{
    return entry_twin(name, function, flags, status);
}

cuda_error cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                            unsigned long long flags, void *status)
{
    return entry_by_version_twin(name, function, version, flags, status);
}

/* ISO C again: a function's pointer as an object's. */
static void *as_object(const void *function)
{
    void *pointer;
    memcpy(&pointer, function, sizeof pointer);
    return pointer;
}

void *spw__hook_twin(const char *name)
{
    cuda_error (*twin)(void **, size_t) = malloc_twin;
    cuda_error (*twin_async)(void **, size_t, void *) = malloc_async_twin;
    cuda_error (*twin_entry)(const char *, void **, unsigned long long, void *) = entry_twin;
    cuda_error (*twin_by_version)(const char *, void **, unsigned, unsigned long long, void *) =
        entry_by_version_twin;
    if (strcmp(name, "cudaMalloc") == 0)
        return as_object(&twin);
    if (strcmp(name, "cudaMallocAsync") == 0)
        return as_object(&twin_async);
    if (strcmp(name, "cudaGetDriverEntryPoint") == 0)
        return as_object(&twin_entry);
    if (strcmp(name, "cudaGetDriverEntryPointByVersion") == 0)
        return as_object(&twin_by_version);
    return NULL;
}
