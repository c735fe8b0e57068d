/* The cuda device: one GPU through the driver API. */
#include "dev/cuda.h"

#include "base/error.h"
#include "base/mem.h"

#ifdef SPW_HAVE_CUDA

#include <stdint.h>
#include <stdlib.h>

static const uint64_t least_margin = UINT64_C(512) << 20;

static spw__cuda *cuda_of(spw_device *device)
{
    return (spw__cuda *)device;
}

static CUdeviceptr address_of(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

/* Between entering the context and leaving it: the body of a slot of the table. */
#define IN_CONTEXT(cuda, call)                                                                     \
    do {                                                                                           \
        int rc_ = spw__cuda_enter(cuda);                                                           \
        if (rc_ < 0)                                                                               \
            return rc_;                                                                            \
        rc_ = SPW__CUDA_TRY(cuda, call);                                                           \
        spw__cuda_leave(cuda);                                                                     \
        return rc_;                                                                                \
    } while (0)

static int cuda_copy(spw_device *device, void *dst, const void *src, uint64_t bytes, void *stream)
{
    spw__cuda *cuda = cuda_of(device);
    IN_CONTEXT(cuda, cuMemcpyAsync(address_of(dst), address_of(src), bytes, stream));
}

static int cuda_zero(spw_device *device, void *dst, uint64_t bytes, void *stream)
{
    spw__cuda *cuda = cuda_of(device);
    IN_CONTEXT(cuda, cuMemsetD8Async(address_of(dst), 0, bytes, stream));
}

static int cuda_event_create(spw_device *device, void **event)
{
    spw__cuda *cuda = cuda_of(device);
    IN_CONTEXT(cuda, cuEventCreate((CUevent *)event, CU_EVENT_DISABLE_TIMING));
}

static void cuda_event_destroy(spw_device *device, void *event)
{
    spw__cuda *cuda = cuda_of(device);
    if (spw__cuda_enter(cuda) < 0)
        return;
    (void)cuda->driver->cuEventDestroy(event);
    spw__cuda_leave(cuda);
}

static int cuda_event_record(spw_device *device, void *event, void *stream)
{
    spw__cuda *cuda = cuda_of(device);
    IN_CONTEXT(cuda, cuEventRecord(event, stream));
}

static int cuda_stream_wait(spw_device *device, void *stream, void *event)
{
    spw__cuda *cuda = cuda_of(device);
    IN_CONTEXT(cuda, cuStreamWaitEvent(stream, event, 0));
}

static int cuda_event_wait(spw_device *device, void *event)
{
    spw__cuda *cuda = cuda_of(device);
    IN_CONTEXT(cuda, cuEventSynchronize(event));
}

static int cuda_stream_sync(spw_device *device, void *stream)
{
    spw__cuda *cuda = cuda_of(device);
    IN_CONTEXT(cuda, cuStreamSynchronize(stream));
}

static int cuda_pin(spw_device *device, void *memory, uint64_t bytes)
{
    spw__cuda *cuda = cuda_of(device);
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    IN_CONTEXT(cuda, cuMemHostRegister(memory, bytes, flags));
}

static void cuda_unpin(spw_device *device, void *memory)
{
    spw__cuda *cuda = cuda_of(device);
    if (spw__cuda_enter(cuda) < 0)
        return;
    (void)cuda->driver->cuMemHostUnregister(memory);
    spw__cuda_leave(cuda);
}

static int cuda_prefetch(spw_device *device, void *memory, uint64_t bytes, void *stream)
{
    spw__cuda *cuda = cuda_of(device);
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->ordinal};
    IN_CONTEXT(cuda, cuMemPrefetchAsync(address_of(memory), bytes, here, 0, stream));
}

static void cuda_close(spw_device *device)
{
    spw__cuda *cuda = cuda_of(device);
    if (cuda->context && spw__cuda_enter(cuda) == 0) {
        for (int i = 0; i < SPW__DEV_STREAMS; i++)
            if (device->streams[i])
                (void)cuda->driver->cuStreamDestroy(device->streams[i]);
        spw__cuda_leave(cuda);
    }
    while (cuda->n_blocks)
        spw__cuda_free(device, (void *)(uintptr_t)cuda->blocks[0].address);
    if (cuda->context)
        (void)cuda->driver->cuDevicePrimaryCtxRelease(cuda->ordinal);
    free(cuda->blocks);
    spw__lock_deinit(&cuda->lock);
    free(cuda);
}

static const spw__dev_ops cuda_ops = {
    .name = "cuda",
    .close = cuda_close,
    .alloc = spw__cuda_alloc,
    .free = spw__cuda_free,
    .usage = spw__cuda_usage,
    .reset_other_peak = spw__cuda_reset_other_peak,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .event_wait = cuda_event_wait,
    .stream_sync = cuda_stream_sync,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .prefetch = cuda_prefetch,
};

static int attribute(const spw__cuda *cuda, CUdevice_attribute which, int *value)
{
    return SPW__CUDA_TRY(cuda, cuDeviceGetAttribute(value, which, cuda->ordinal));
}

static int find_card(spw__cuda *cuda, uint32_t ordinal)
{
    int count = 0;
    int rc = SPW__CUDA_TRY(cuda, cuDeviceGetCount(&count));
    if (rc < 0)
        return rc;
    if (ordinal >= (uint32_t)count)
        return spw__error(SPW_EINVAL, "device cuda:%u: there are %d CUDA devices, from cuda:0 on",
                          ordinal, count);
    rc = SPW__CUDA_TRY(cuda, cuDeviceGet(&cuda->ordinal, (int)ordinal));
    int value = 0;
    if (rc == 0)
        rc = attribute(cuda, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, &value);
    if (rc == 0 && !value)
        return spw__error(SPW_ENOTSUP,
                          "device cuda:%u has no virtual memory management, which page frames "
                          "need: use cpu",
                          ordinal);
    if (rc == 0)
        rc = attribute(cuda, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &value);
    cuda->n_multiprocessors = (uint32_t)value;
    if (rc == 0)
        rc = attribute(cuda, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, &value);
    cuda->device.managed = value;
    return rc;
}

static int make_streams(spw__cuda *cuda)
{
    int rc = spw__cuda_enter(cuda);
    if (rc < 0)
        return rc;
    for (int i = 0; rc == 0 && i < SPW__DEV_STREAMS; i++)
        rc = SPW__CUDA_TRY(
            cuda, cuStreamCreate((CUstream *)&cuda->device.streams[i], CU_STREAM_NON_BLOCKING));
    spw__cuda_leave(cuda);
    return rc;
}

/* What no hook sees (modules, libraries' workspaces, NCCL) needs the last of the card. */
static void set_margin(spw__cuda *cuda)
{
    spw__dev_usage usage;
    spw__cuda_usage(&cuda->device, &usage);
    uint64_t share = usage.capacity / 50;
    cuda->device.margin = cuda->cap ? 0 : share > least_margin ? share : least_margin;
}

int spw__dev_cuda_open(uint32_t ordinal, const spw_device_config *config, spw_device **device)
{
    const spw__cuda_driver *driver;
    int rc = spw__cuda_driver_get(&driver);
    if (rc < 0)
        return rc;
    spw__cuda *cuda = spw__calloc(1, sizeof *cuda);
    if (!cuda)
        return SPW_EHOSTMEM;
    cuda->device = (spw_device){.ops = &cuda_ops, .async = true, .ordinal = (int32_t)ordinal};
    cuda->driver = driver;
    cuda->cap = config->mem;
    spw__lock_init(&cuda->lock, SPW__RANK_DEVICE);
    rc = find_card(cuda, ordinal);
    if (rc == 0)
        rc = SPW__CUDA_TRY(cuda, cuDevicePrimaryCtxRetain(&cuda->context, cuda->ordinal));
    if (rc == 0)
        rc = make_streams(cuda);
    if (rc < 0) {
        cuda_close(&cuda->device);
        return rc;
    }
    set_margin(cuda);
    *device = &cuda->device;
    return 0;
}

#else

int spw__dev_cuda_open(uint32_t ordinal, const spw_device_config *config, spw_device **device)
{
    (void)config;
    (void)device;
    return spw__error(SPW_ENOTSUP,
                      "device cuda:%u: this library was built without CUDA (no nvcc); use cpu, or "
                      "build it where nvcc is",
                      ordinal);
}

#endif
