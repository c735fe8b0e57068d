/* The driver's functions on streams, events and what is queued. */
#include "world.h"

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
    CUresult result = standin__call_begin(CALL_cuMemcpyAsync);
    if (result == CUDA_SUCCESS)
        result = standin__capture_use(stream);
    if (result == CUDA_SUCCESS && bytes)
        standin__queue_copy(&(standin_copy){(uintptr_t)dst, (uintptr_t)src, bytes}, stream);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes,
                                 CUstream stream)
{
    CUresult result = standin__call_begin(CALL_cuMemsetD8Async);
    if (result == CUDA_SUCCESS)
        result = standin__capture_use(stream);
    if (result == CUDA_SUCCESS && bytes)
        standin__queue_fill((uintptr_t)dst, value, bytes, stream);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUmemLocation place,
                                    unsigned flags, CUstream stream)
{
    CUresult result = standin__call_begin(CALL_cuMemPrefetchAsync);
    if (result == CUDA_SUCCESS)
        result = standin__capture_use(stream);
    if (result == CUDA_SUCCESS &&
        (place.type != CU_MEM_LOCATION_TYPE_DEVICE || place.id != 0 || flags))
        standin__die("not to the device");
    if (result == CUDA_SUCCESS)
        standin__queue_prefetch((uintptr_t)address, bytes, stream);
    return standin__call_end(result);
}

CUresult CUDAAPI cuStreamCreate(CUstream *stream, unsigned flags)
{
    CUresult result = standin__call_begin(CALL_cuStreamCreate);
    if (result == CUDA_SUCCESS && flags > CU_STREAM_NON_BLOCKING)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = standin__stream_create(stream, flags == CU_STREAM_DEFAULT);
    return standin__call_end(result);
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream)
{
    CUresult result = standin__call_begin(CALL_cuStreamDestroy);
    if (result == CUDA_SUCCESS)
        standin__stream_destroy(stream);
    return standin__call_end(result);
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream)
{
    CUresult result = standin__call_begin(CALL_cuStreamSynchronize);
    if (result == CUDA_SUCCESS)
        result = standin__capture_sync(stream);
    if (result == CUDA_SUCCESS)
        standin__stream_sync(stream);
    return standin__call_end(result);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    CUresult result = standin__call_begin(CALL_cuStreamWaitEvent);
    if (result == CUDA_SUCCESS)
        result = standin__capture_use(stream);
    if (result == CUDA_SUCCESS && flags)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        standin__event_wait(event, stream);
    return standin__call_end(result);
}

CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned flags)
{
    (void)flags;
    CUresult result = standin__call_begin(CALL_cuEventCreate);
    if (result == CUDA_SUCCESS)
        standin__event_create(event);
    return standin__call_end(result);
}

CUresult CUDAAPI cuEventDestroy(CUevent event)
{
    CUresult result = standin__call_begin(CALL_cuEventDestroy);
    if (result == CUDA_SUCCESS)
        standin__event_destroy(event);
    return standin__call_end(result);
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream)
{
    CUresult result = standin__call_begin(CALL_cuEventRecord);
    if (result == CUDA_SUCCESS)
        result = standin__capture_use(stream);
    if (result == CUDA_SUCCESS)
        standin__event_record(event, stream);
    return standin__call_end(result);
}

CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
    CUresult result = standin__call_begin(CALL_cuEventSynchronize);
    if (result == CUDA_SUCCESS)
        standin__event_sync(event);
    return standin__call_end(result);
}
