/*
 * cuda.h - what the cuda device and its kernels share: the driver's functions and the context.
 *
 * What it is not: a CUDA runtime. The driver (libcuda.so.1) is found by dlopen when the first cuda
 * device opens, so a library built with it runs on machines without a GPU. The device lives in the
 * primary context, like PyTorch's memory in the same process, and leaves the calling thread's
 * current context as it was. Called by dev/cuda*.c and kern/kern_cuda.c. Any thread.
 *
 * Stream capture (CUDA graphs). While a stream is captured, the driver counts most calls that wait,
 * allocate or free as unsafe and answers them by making the capture invalid, also when they come
 * from another thread. Ours are not part of anybody's graph, so every call in the context is made
 * in relaxed mode, which the driver has for that. A stream that captures is given no work at all:
 * spw__cuda_check_stream.
 */
#ifndef SPW_DEV_CUDA_H
#define SPW_DEV_CUDA_H

#include "dev/dev.h"

#ifdef SPW_HAVE_CUDA

#include "base/lock.h"

#include <cuda.h>

/* Every driver function in use; <cuda.h> maps a name to its current version (cuMemAlloc_v2). */
#define SPW__CUDA_FUNCTIONS(X)                                                                     \
    X(cuInit)                                                                                      \
    X(cuGetErrorName)                                                                              \
    X(cuGetErrorString)                                                                            \
    X(cuDeviceGetCount)                                                                            \
    X(cuDeviceGet)                                                                                 \
    X(cuDeviceGetName)                                                                             \
    X(cuDeviceGetAttribute)                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                    \
    X(cuDevicePrimaryCtxRelease)                                                                   \
    X(cuCtxPushCurrent)                                                                            \
    X(cuCtxPopCurrent)                                                                             \
    X(cuMemGetInfo)                                                                                \
    X(cuMemAlloc)                                                                                  \
    X(cuMemFree)                                                                                   \
    X(cuMemAllocManaged)                                                                           \
    X(cuMemPrefetchAsync)                                                                          \
    X(cuMemAllocHost)                                                                              \
    X(cuMemFreeHost)                                                                               \
    X(cuMemHostRegister)                                                                           \
    X(cuMemHostUnregister)                                                                         \
    X(cuMemAddressReserve)                                                                         \
    X(cuMemAddressFree)                                                                            \
    X(cuMemCreate)                                                                                 \
    X(cuMemRelease)                                                                                \
    X(cuMemMap)                                                                                    \
    X(cuMemUnmap)                                                                                  \
    X(cuMemSetAccess)                                                                              \
    X(cuMemcpyAsync)                                                                               \
    X(cuMemsetD8Async)                                                                             \
    X(cuStreamCreate)                                                                              \
    X(cuStreamDestroy)                                                                             \
    X(cuStreamSynchronize)                                                                         \
    X(cuStreamWaitEvent)                                                                           \
    X(cuStreamIsCapturing)                                                                         \
    X(cuThreadExchangeStreamCaptureMode)                                                           \
    X(cuEventCreate)                                                                               \
    X(cuEventDestroy)                                                                              \
    X(cuEventRecord)                                                                               \
    X(cuEventSynchronize)                                                                          \
    X(cuModuleLoadData)                                                                            \
    X(cuModuleUnload)                                                                              \
    X(cuModuleGetFunction)                                                                         \
    X(cuLaunchKernel)

typedef struct spw__cuda_driver {
#define SPW__CUDA_FIELD(function) __typeof__(function) *function;
    SPW__CUDA_FUNCTIONS(SPW__CUDA_FIELD)
#undef SPW__CUDA_FIELD
} spw__cuda_driver;

/* One allocation of the device; see cuda_memory.c. */
typedef struct spw__cuda_block {
    CUdeviceptr address;
    uint64_t bytes; /* rounded up to what the driver gives */
    CUmemGenericAllocationHandle handle;
    spw__dev_use use;
} spw__cuda_block;

typedef struct spw__cuda {
    spw_device device; /* first: a spw_device is a spw__cuda */
    const spw__cuda_driver *driver;
    CUdevice ordinal;
    CUcontext context;
    uint32_t n_multiprocessors;
    uint64_t cap; /* spw_device_config.mem; 0: what the card has */

    spw__lock lock; /* guards all below; never held over a driver call */
    spw__cuda_block *blocks;
    size_t n_blocks, block_capacity;
    size_t n_under_way; /* allocations that have room in the table and no block */
    uint64_t memory_bytes, frame_bytes, managed_bytes; /* of blocks, by use */
    uint64_t peak, other_peak;
} spw__cuda;

/* The driver, loaded once a process. SPW_ENOTSUP says what is missing. */
int spw__cuda_driver_get(const spw__cuda_driver **driver);

/* Records what the driver said of `call`; returns SPW_ENOMEM for out of memory, SPW_EHOSTMEM for
 * its host kind, else SPW_EIO. */
int spw__cuda_error(const spw__cuda_driver *driver, CUresult result, const char *call);

/* `call` is a function of the driver with its arguments: evaluates to 0 or an error code. */
#define SPW__CUDA_TRY(cuda, call)                                                                  \
    spw__cuda_check((cuda)->driver, (cuda)->driver->call, SPW__CUDA_TEXT(call))
#define SPW__CUDA_TEXT(call) #call

static inline int spw__cuda_check(const spw__cuda_driver *driver, CUresult result, const char *call)
{
    return result == CUDA_SUCCESS ? 0 : spw__cuda_error(driver, result, call);
}

/* Makes the device's context the calling thread's, and its calls no harm to a stream capture;
 * leave() restores what was. They do not nest. */
int spw__cuda_enter(spw__cuda *cuda);
void spw__cuda_leave(spw__cuda *cuda);

/* SPW_ENOTSUP while work on the caller's `stream` would be captured, not run, or, on the default
 * stream, would break the capture of another. Disturbs no capture. */
int spw__cuda_check_stream(spw__cuda *cuda, void *stream);

/* cuda_memory.c: the table's slots. */
int spw__cuda_alloc(spw_device *device, uint64_t bytes, spw__dev_use use, void **pointer);
void spw__cuda_free(spw_device *device, void *pointer);
void spw__cuda_usage(spw_device *device, spw__dev_usage *usage);
void spw__cuda_reset_other_peak(spw_device *device);

#endif

#endif
