/*
 * Streams that are being captured into a graph, and the calls that make a capture invalid.
 *
 * Which calls the driver counts as potentially unsafe is only sketched in its documentation: here
 * they are all that allocate, free, map, pin, load or make the host wait (calls.c).
 */
#include "world.h"

#include <pthread.h>

enum { MOST = 4 };

typedef struct capture {
    CUstream stream; /* NULL: this entry is free */
    CUstreamCaptureMode mode;
    pthread_t thread; /* where it began */
    bool is_broken;
} capture;

static capture captures[MOST];
static _Thread_local CUstreamCaptureMode thread_mode; /* 0: global */

static capture *capture_of(CUstream stream)
{
    for (int i = 0; i < MOST; i++)
        if (stream && captures[i].stream == stream)
            return &captures[i];
    return NULL;
}

/* By the three modes of cuThreadExchangeStreamCaptureMode. */
static bool forbids(const capture *c)
{
    if (!c->stream || c->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
        thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return false;
    bool is_ours = pthread_equal(c->thread, pthread_self());
    return is_ours || (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                       thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult standin__capture_unsafe(void)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < MOST; i++)
        if (forbids(&captures[i])) {
            captures[i].is_broken = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return result;
}

static bool is_default(CUstream stream)
{
    return !stream || stream == CU_STREAM_LEGACY;
}

/* What is done on the default stream comes after what a blocking one has, which is captured. */
static CUresult use_default(bool breaks)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < MOST; i++)
        if (captures[i].stream && standin__stream_is_blocking(captures[i].stream)) {
            captures[i].is_broken |= breaks;
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    return result;
}

CUresult standin__capture_use(CUstream stream)
{
    if (capture_of(stream))
        standin__die("the stream %p is being captured: this would not run", (void *)stream);
    return is_default(stream) ? use_default(true) : CUDA_SUCCESS;
}

CUresult standin__capture_sync(CUstream stream)
{
    capture *c = capture_of(stream);
    if (!c)
        return standin__capture_use(stream);
    c->is_broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void standin__captures_reset(void)
{
    memset(captures, 0, sizeof captures);
    thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
}

/* ------------------------------------------------------------------------------- the driver's --
 */

CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    CUresult result = standin__call_begin(CALL_cuStreamIsCapturing);
    if (result == CUDA_SUCCESS && is_default(stream))
        result = use_default(false);
    if (result == CUDA_SUCCESS) {
        const capture *c = capture_of(stream);
        *status = !c             ? CU_STREAM_CAPTURE_STATUS_NONE
                  : c->is_broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                 : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    }
    return standin__call_end(result);
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUresult result = standin__call_begin(CALL_cuThreadExchangeStreamCaptureMode);
    if (result == CUDA_SUCCESS) {
        CUstreamCaptureMode before = thread_mode;
        thread_mode = *mode;
        *mode = before;
    }
    return standin__call_end(result);
}

/* ----------------------------------------------------------------------------------- control -- */

void standin_capture_begin(CUstream stream, CUstreamCaptureMode mode)
{
    standin__lock();
    int i = 0;
    while (i < MOST && captures[i].stream)
        i++;
    if (is_default(stream) || capture_of(stream) || i == MOST)
        standin__die("the stream %p cannot be captured now", (void *)stream);
    captures[i] = (capture){.stream = stream, .mode = mode, .thread = pthread_self()};
    standin__unlock();
}

bool standin_capture_end(CUstream stream)
{
    standin__lock();
    capture *c = capture_of(stream);
    if (!c)
        standin__die("the stream %p is not captured", (void *)stream);
    bool is_whole = !c->is_broken;
    *c = (capture){.stream = NULL};
    standin__unlock();
    return is_whole;
}
