/* The driver's functions on memory. */
#include "world.h"

CUresult CUDAAPI cuMemGetInfo(size_t *unused, size_t *total)
{
    CUresult result = standin__call_begin(CALL_cuMemGetInfo);
    if (result == CUDA_SUCCESS)
        standin__memory_info(unused, total);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
    CUresult result = standin__call_begin(CALL_cuMemAlloc);
    if (result == CUDA_SUCCESS)
        result = standin__memory_alloc(address, bytes);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    CUresult result = standin__call_begin(CALL_cuMemAllocManaged);
    if (result == CUDA_SUCCESS && flags != CU_MEM_ATTACH_GLOBAL)
        standin__die("managed memory that is not global");
    if (result == CUDA_SUCCESS)
        result = standin__managed_alloc(address, bytes);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address)
{
    CUresult result = standin__call_begin(CALL_cuMemFree);
    if (result == CUDA_SUCCESS && address)
        standin__memory_free(address);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemAllocHost(void **memory, size_t bytes)
{
    CUresult result = standin__call_begin(CALL_cuMemAllocHost);
    if (result == CUDA_SUCCESS)
        result = standin__host_alloc(memory, bytes);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemFreeHost(void *memory)
{
    CUresult result = standin__call_begin(CALL_cuMemFreeHost);
    if (result == CUDA_SUCCESS)
        standin__host_free(memory);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemHostRegister(void *memory, size_t bytes, unsigned flags)
{
    (void)flags;
    CUresult result = standin__call_begin(CALL_cuMemHostRegister);
    if (result == CUDA_SUCCESS)
        result = standin__host_register(memory, bytes);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemHostUnregister(void *memory)
{
    CUresult result = standin__call_begin(CALL_cuMemHostUnregister);
    if (result == CUDA_SUCCESS)
        standin__host_unregister(memory);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                                     CUdeviceptr wanted, unsigned long long flags)
{
    CUresult result = standin__call_begin(CALL_cuMemAddressReserve);
    if (result == CUDA_SUCCESS && (alignment > STANDIN_GRANULE || flags))
        standin__die("alignment %zu, flags %llu: not what the stand-in knows", alignment, flags);
    (void)wanted; /* a hint */
    if (result == CUDA_SUCCESS)
        result = standin__address_reserve(address, bytes);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    CUresult result = standin__call_begin(CALL_cuMemAddressFree);
    if (result == CUDA_SUCCESS)
        standin__address_free(address, bytes);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                             const CUmemAllocationProp *prop, unsigned long long flags)
{
    CUresult result = standin__call_begin(CALL_cuMemCreate);
    if (result == CUDA_SUCCESS && (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || flags ||
                                   prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE))
        standin__die("not pinned memory of a device");
    if (result == CUDA_SUCCESS)
        result = standin__handle_create(handle, bytes);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult result = standin__call_begin(CALL_cuMemRelease);
    if (result == CUDA_SUCCESS)
        standin__handle_release(handle);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    CUresult result = standin__call_begin(CALL_cuMemMap);
    if (result == CUDA_SUCCESS && (offset || flags))
        result = CUDA_ERROR_INVALID_VALUE; /* no driver knows another */
    if (result == CUDA_SUCCESS)
        result = standin__map(address, bytes, handle);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    CUresult result = standin__call_begin(CALL_cuMemUnmap);
    if (result == CUDA_SUCCESS)
        standin__unmap(address, bytes);
    return standin__call_end(result);
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                                size_t count)
{
    CUresult result = standin__call_begin(CALL_cuMemSetAccess);
    if (result == CUDA_SUCCESS &&
        (count != 1 || access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
        standin__die("not reading and writing by one device");
    if (result == CUDA_SUCCESS)
        standin__set_access(address, bytes);
    return standin__call_end(result);
}
