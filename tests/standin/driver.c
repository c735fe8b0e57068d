/* The driver's functions on devices, contexts, modules and errors. */
#include "world.h"

#include <stdio.h>

enum { DEEPEST = 16 };

static int retained; /* the primary context of device 0; its address is the handle */

static _Thread_local CUcontext stack[DEEPEST];
static _Thread_local int depth;

static CUcontext primary(void)
{
    return (CUcontext)(void *)&retained;
}

bool standin__context_is_current(void)
{
    return depth && stack[depth - 1] == primary() && retained;
}

uint64_t standin__contexts_live(void)
{
    return (uint64_t)retained;
}

void standin__contexts_reset(void)
{
    retained = 0;
    depth = 0;
}

/* --------------------------------------------------------------------------------- errors -- */

static const struct {
    CUresult result;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
};

static CUresult find_error(CUresult result, const char **name, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].result == result) {
            *name = errors[i].name;
            *text = errors[i].text;
            return CUDA_SUCCESS;
        }
    *name = *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **name)
{
    const char *text;
    CUresult result = standin__call_begin(CALL_cuGetErrorName);
    if (result == CUDA_SUCCESS)
        result = find_error(error, name, &text);
    return standin__call_end(result);
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text)
{
    const char *name;
    CUresult result = standin__call_begin(CALL_cuGetErrorString);
    if (result == CUDA_SUCCESS)
        result = find_error(error, &name, text);
    return standin__call_end(result);
}

/* --------------------------------------------------------------------------------- devices -- */

CUresult CUDAAPI cuInit(unsigned flags)
{
    CUresult result = standin__call_begin(CALL_cuInit);
    if (result == CUDA_SUCCESS && flags)
        result = CUDA_ERROR_INVALID_VALUE;
    return standin__call_end(result);
}

CUresult CUDAAPI cuDeviceGetCount(int *count)
{
    CUresult result = standin__call_begin(CALL_cuDeviceGetCount);
    if (result == CUDA_SUCCESS)
        *count = 1;
    return standin__call_end(result);
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = standin__call_begin(CALL_cuDeviceGet);
    if (result == CUDA_SUCCESS && ordinal != 0)
        result = CUDA_ERROR_INVALID_DEVICE;
    if (result == CUDA_SUCCESS)
        *device = 0;
    return standin__call_end(result);
}

static void check_device(CUdevice device)
{
    if (device != 0)
        standin__die("device %d is not one", device);
}

CUresult CUDAAPI cuDeviceGetName(char *name, int length, CUdevice device)
{
    CUresult result = standin__call_begin(CALL_cuDeviceGetName);
    if (result == CUDA_SUCCESS) {
        check_device(device);
        (void)snprintf(name, (size_t)length, "Spillway stand-in");
    }
    return standin__call_end(result);
}

static int attribute(CUdevice_attribute which)
{
    switch (which) {
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return STANDIN_MULTIPROCESSORS;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
        return 1;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return 9;
    default:
        return 0;
    }
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    CUresult result = standin__call_begin(CALL_cuDeviceGetAttribute);
    if (result == CUDA_SUCCESS) {
        check_device(device);
        *value = attribute(which);
    }
    return standin__call_end(result);
}

/* -------------------------------------------------------------------------------- contexts -- */

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = standin__call_begin(CALL_cuDevicePrimaryCtxRetain);
    if (result == CUDA_SUCCESS) {
        check_device(device);
        retained++;
        *context = primary();
    }
    return standin__call_end(result);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device)
{
    CUresult result = standin__call_begin(CALL_cuDevicePrimaryCtxRelease);
    if (result == CUDA_SUCCESS) {
        check_device(device);
        if (!retained)
            standin__die("the primary context is not retained");
        standin__queue_drain(); /* so that what is wrong in it shows */
        retained--;
    }
    return standin__call_end(result);
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext context)
{
    CUresult result = standin__call_begin(CALL_cuCtxPushCurrent);
    if (result == CUDA_SUCCESS) {
        if (context != primary() || !retained)
            standin__die("%p is not a live context", (void *)context);
        if (depth == DEEPEST)
            standin__die("the context was pushed %d times and not popped", DEEPEST);
        stack[depth++] = context;
    }
    return standin__call_end(result);
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *context)
{
    CUresult result = standin__call_begin(CALL_cuCtxPopCurrent);
    if (result == CUDA_SUCCESS) {
        CUcontext top = stack[--depth]; /* begin has checked that there is one */
        if (context)
            *context = top;
    }
    return standin__call_end(result);
}

/* ------------------------------------------------------------------------ modules, launches -- */

/* A function's handle is its place here. */
typedef struct function {
    const void *module;
    const standin_kernel *kernel;
} function;

typedef struct module {
    function functions[32];
} module;

CUresult CUDAAPI cuModuleLoadData(CUmodule *handle, const void *image)
{
    CUresult result = standin__call_begin(CALL_cuModuleLoadData);
    if (result == CUDA_SUCCESS && !image)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        module *m = standin__new(sizeof *m);
        standin__object_add(OBJECT_MODULE, m);
        for (int i = 0; i < standin__kernels(); i++)
            m->functions[i] = (function){m, standin__kernel_at(i)};
        *handle = (CUmodule)(void *)m;
    }
    return standin__call_end(result);
}

CUresult CUDAAPI cuModuleUnload(CUmodule handle)
{
    CUresult result = standin__call_begin(CALL_cuModuleUnload);
    if (result == CUDA_SUCCESS) {
        standin__object_check(OBJECT_MODULE, handle);
        if (!standin__launches_done(handle))
            standin__die("a kernel of the module still waits to run");
        standin__object_free(OBJECT_MODULE, handle);
    }
    return standin__call_end(result);
}

static CUresult find_function(CUfunction *handle, module *m, const char *name)
{
    for (int i = 0; i < standin__kernels(); i++)
        if (strcmp(name, standin__kernel_name(m->functions[i].kernel)) == 0) {
            *handle = (CUfunction)(void *)&m->functions[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name)
{
    CUresult result = standin__call_begin(CALL_cuModuleGetFunction);
    if (result == CUDA_SUCCESS) {
        standin__object_check(OBJECT_MODULE, handle);
        result = find_function(function, (module *)(void *)handle, name);
    }
    return standin__call_end(result);
}

CUresult CUDAAPI cuLaunchKernel(CUfunction handle, unsigned grid_x, unsigned grid_y,
                                unsigned grid_z, unsigned block_x, unsigned block_y,
                                unsigned block_z, unsigned shared_bytes, CUstream stream,
                                void **params, void **extra)
{
    CUresult result = standin__call_begin(CALL_cuLaunchKernel);
    if (result == CUDA_SUCCESS)
        result = standin__capture_use(stream);
    if (result == CUDA_SUCCESS) {
        const function *f = (const function *)(void *)handle;
        standin__object_check(OBJECT_MODULE, f->module);
        if (!grid_x || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || shared_bytes ||
            extra)
            standin__die("%s: a launch that the stand-in does not know",
                         standin__kernel_name(f->kernel));
        standin_launch *launch = standin__launch_new(f->kernel, (const void *const *)params);
        launch->module = f->module;
        launch->grid = grid_x;
        launch->block = block_x;
        standin__queue_launch(launch, stream);
    }
    return standin__call_end(result);
}
