/* Finding the driver, and what its errors are called. */
#include "dev/cuda.h"

#ifdef SPW_HAVE_CUDA

#include "base/error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static spw__cuda_driver driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static char problem[256]; /* why there is no driver; "" if there is one */

#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)

/* ISO C has no conversion from an object's pointer to a function's; POSIX promises the bytes. */
static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    if (symbol)
        memcpy(function, &symbol, sizeof symbol);
    else
        (void)snprintf(problem, sizeof problem,
                       "the NVIDIA driver is too old: it lacks %s, update it", name);
    return symbol != NULL;
}

static bool find_all(void *library)
{
#define FIND(function)                                                                             \
    if (!find(library, TEXT(function), &driver.function))                                          \
        return false;
    SPW__CUDA_FUNCTIONS(FIND)
#undef FIND
    return true;
}

static void load(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        (void)snprintf(problem, sizeof problem, "there is no NVIDIA driver (libcuda.so.1)");
        return;
    }
    if (!find_all(library))
        return;
    CUresult result = driver.cuInit(0);
    const char *name = NULL;
    if (result != CUDA_SUCCESS && driver.cuGetErrorName(result, &name) != CUDA_SUCCESS)
        name = "an unknown error";
    if (result != CUDA_SUCCESS)
        (void)snprintf(problem, sizeof problem, "the NVIDIA driver does not start (cuInit: %s)",
                       name);
}

int spw__cuda_driver_get(const spw__cuda_driver **result)
{
    pthread_once(&driver_once, load);
    if (problem[0])
        return spw__error(SPW_ENOTSUP, "device cuda: %s; use cpu", problem);
    *result = &driver;
    return 0;
}

static int code_of(CUresult result)
{
    switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
        return SPW_ENOMEM;
    case CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
        return SPW_EINVAL;
    default:
        return SPW_EIO;
    }
}

int spw__cuda_error(const spw__cuda_driver *from, CUresult result, const char *call)
{
    const char *name = NULL, *text = NULL;
    if (from->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "unknown error";
    if (from->cuGetErrorString(result, &text) != CUDA_SUCCESS || !text)
        text = "no text";
    const char *end = strchr(call, '(');
    int length = end ? (int)(end - call) : (int)strlen(call);
    return spw__error(code_of(result), "%.*s: %s (%s)", length, call, name, text);
}

/* The thread's own, between enter and leave. */
static _Thread_local CUstreamCaptureMode mode_before;

static void pop_context(spw__cuda *cuda)
{
    CUcontext ours;
    (void)cuda->driver->cuCtxPopCurrent(&ours);
}

int spw__cuda_enter(spw__cuda *cuda)
{
    int rc = SPW__CUDA_TRY(cuda, cuCtxPushCurrent(cuda->context));
    if (rc < 0)
        return rc;
    mode_before = CU_STREAM_CAPTURE_MODE_RELAXED;
    rc = SPW__CUDA_TRY(cuda, cuThreadExchangeStreamCaptureMode(&mode_before));
    if (rc < 0)
        pop_context(cuda);
    return rc;
}

void spw__cuda_leave(spw__cuda *cuda)
{
    (void)cuda->driver->cuThreadExchangeStreamCaptureMode(&mode_before);
    pop_context(cuda);
}

int spw__cuda_check_stream(spw__cuda *cuda, void *stream)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    int rc = spw__cuda_enter(cuda);
    if (rc < 0)
        return rc;
    CUresult result = cuda->driver->cuStreamIsCapturing(stream, &status);
    spw__cuda_leave(cuda);
    if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
        return spw__error(SPW_ENOTSUP, "a stream that the default stream waits for is captured "
                                       "into a CUDA graph: do this outside of the capture");
    if (result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE)
        return spw__error(SPW_ENOTSUP,
                          "the stream is captured into a CUDA graph, and what moves is "
                          "decided anew in each step: step outside of the capture");
    return spw__cuda_check(cuda->driver, result, "cuStreamIsCapturing");
}

#endif
