/*
 * Streams that are being captured into CUDA graphs: a step on one is refused, and nothing that the
 * library does meanwhile breaks the capture.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "standin.h"

#include <spillway/spillway.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { MIB = 1 << 20, N = 3 * MIB, MODES = 3 };

static const CUstreamCaptureMode modes[MODES] = {
    CU_STREAM_CAPTURE_MODE_GLOBAL,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
    CU_STREAM_CAPTURE_MODE_RELAXED,
};

typedef struct rig {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    void *p, *g;
    CUcontext context;
    CUstream stream, other; /* the caller's */
} rig;

static void ok(int64_t rc)
{
    if (rc < 0)
        fail_msg("%lld: %s", (long long)rc, spw_last_error());
}

static void add_tensor(rig *r, const char *name, uint64_t n)
{
    spw_param param = {.name = name, .data = r->p, .grad = r->g, .n = n};
    ok(spw_optim_add(r->optim, &param));
}

/* One tensor with 24 MiB of state. */
static rig open_rig(const char *store, unsigned stream_flags)
{
    rig r = {.device = NULL};
    spw_device_config device_config;
    spw_pager_config config;
    spw_optim_config optim_config;
    spw_device_config_default(&device_config);
    spw_pager_config_default(&config);
    spw_optim_config_default(&optim_config);
    config.store = store;
    optim_config.state = SPW_STATE_32BIT;
    standin_reset();
    device_config.mem = UINT64_C(256) * MIB;
    ok(spw_device_open("cuda:0", &device_config, &r.device));
    ok(spw_pager_create(r.device, &config, &r.pager));
    ok(spw_optim_create(r.pager, &optim_config, &r.optim));
    ok(spw_malloc(r.pager, N * sizeof(float), &r.p));
    ok(spw_malloc(r.pager, N * sizeof(float), &r.g));
    void *zeros = calloc(N, sizeof(float));
    assert_non_null(zeros);
    ok(spw_device_copy(r.device, r.p, zeros, N * sizeof(float)));
    ok(spw_device_copy(r.device, r.g, zeros, N * sizeof(float)));
    free(zeros);
    add_tensor(&r, "w", N);
    assert_int_equal(cuDevicePrimaryCtxRetain(&r.context, 0), CUDA_SUCCESS);
    assert_int_equal(cuCtxPushCurrent(r.context), CUDA_SUCCESS);
    assert_int_equal(cuStreamCreate(&r.stream, stream_flags), CUDA_SUCCESS);
    assert_int_equal(cuStreamCreate(&r.other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return r;
}

static void close_rig(rig *r)
{
    spw_optim_destroy(r->optim);
    spw_free(r->pager, r->p);
    spw_free(r->pager, r->g);
    spw_pager_destroy(r->pager);
    spw_device_close(r->device);
    assert_int_equal(cuStreamDestroy(r->stream), CUDA_SUCCESS);
    assert_int_equal(cuStreamDestroy(r->other), CUDA_SUCCESS);
    assert_int_equal(cuCtxPopCurrent(NULL), CUDA_SUCCESS);
    assert_int_equal(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    assert_int_equal(standin_live_bytes(), 0);
    assert_int_equal(standin_live_objects(), 0);
}

static int step_on(const rig *r, CUstream stream)
{
    return spw_optim_step(r->optim, &(spw_step){.lr = 1e-3, .max_norm = 1, .stream = stream});
}

static void assert_refused(int rc)
{
    assert_int_equal(rc, SPW_ENOTSUP);
    if (!strstr(spw_last_error(), "CUDA graph") || strchr(spw_last_error(), '\n'))
        fail_msg("\"%s\" is not one line about a CUDA graph", spw_last_error());
}

static uint64_t steps_of(const rig *r)
{
    spw_optim_info info;
    ok(spw_optim_info_get(r->optim, &info));
    return info.steps;
}

/* ------------------------------------------------------------------------------------ steps -- */

static void a_step_on_a_captured_stream_changes_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < MODES; i++) {
        rig r = open_rig("ram", CU_STREAM_NON_BLOCKING);
        uint64_t live = standin_live_bytes();
        standin_capture_begin(r.stream, modes[i]);
        assert_refused(step_on(&r, r.stream));
        assert_true(standin_capture_end(r.stream));
        assert_int_equal(standin_live_bytes(), live);
        add_tensor(&r, "one more", 0); /* the layout is not fixed yet */
        ok(step_on(&r, r.stream));
        standin_capture_begin(r.stream, modes[i]);
        assert_refused(step_on(&r, r.stream));
        assert_true(standin_capture_end(r.stream));
        ok(step_on(&r, r.stream));
        assert_int_equal(steps_of(&r), 2);
        close_rig(&r);
    }
}

static void so_it_is_when_the_capture_is_broken(void **state)
{
    (void)state;
    rig r = open_rig("ram", CU_STREAM_NON_BLOCKING);
    standin_capture_begin(r.stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(cuStreamSynchronize(r.stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_refused(step_on(&r, r.stream));
    assert_false(standin_capture_end(r.stream));
    ok(step_on(&r, r.stream));
    close_rig(&r);
}

/* The default stream waits for blocking streams, and cannot for one that is captured. */
static void the_default_stream_does_not_break_a_capture(void **state)
{
    (void)state;
    double norm;
    const unsigned flags[] = {CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING};
    for (int i = 0; i < 2 * MODES; i++) {
        rig r = open_rig("ram", flags[i % 2]);
        standin_capture_begin(r.stream, modes[i / 2]);
        if (i % 2) {
            ok(step_on(&r, NULL));
            ok(spw_optim_grad_norm(r.optim, &norm));
        } else {
            assert_refused(step_on(&r, NULL));
            assert_refused(spw_optim_grad_norm(r.optim, &norm));
            add_tensor(&r, "one more", 0);
        }
        assert_true(standin_capture_end(r.stream));
        ok(step_on(&r, NULL));
        ok(spw_optim_grad_norm(r.optim, &norm));
        close_rig(&r);
    }
}

/* ----------------------------------------------------------------------------------- memory -- */

static void *begin_globally(void *stream)
{
    standin_capture_begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    return NULL;
}

/* By this thread, or by another. */
static void begin_capture(const rig *r, bool by_another)
{
    pthread_t thread;
    if (!by_another) {
        (void)begin_globally(r->stream);
        return;
    }
    assert_int_equal(pthread_create(&thread, NULL, begin_globally, r->stream), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void everything_but_a_step(const rig *r)
{
    uint64_t freed = 0;
    void *big, *small;
    ok(spw_pager_reclaim(r->pager, MIB, &freed));
    assert_true(freed >= MIB);
    ok(spw_reclaim(0, MIB, &freed));
    assert_true(freed >= MIB);
    ok(spw_pager_reserve(r->pager, 210 * MIB));
    ok(spw_pager_reserve(r->pager, 0));
    ok(step_on(r, r->other)); /* what was given back comes again */
    ok(spw_malloc(r->pager, 216 * MIB, &big));
    ok(spw_malloc(r->pager, 1, &small));
    spw_free(r->pager, small);
    spw_free(r->pager, big);
    ok(step_on(r, r->other));
    ok(spw_device_sync(r->device, r->other));
}

static void state_gives_way_while_a_stream_is_captured(void **state)
{
    (void)state;
    char store[64];
    (void)snprintf(store, sizeof store, "file:/tmp/spw_capture_%ld", (long)getpid());
    for (int i = 0; i < 4; i++) {
        rig r = open_rig(i / 2 ? store : "ram", CU_STREAM_NON_BLOCKING);
        for (int k = 0; k < 3; k++)
            ok(step_on(&r, r.other));
        begin_capture(&r, i % 2);
        everything_but_a_step(&r);
        assert_true(standin_capture_end(r.stream));
        close_rig(&r);
    }
}

/* Whatever the thread's mode was, and also after a call that failed. */
static void a_thread_keeps_its_mode(void **state)
{
    (void)state;
    for (int i = 0; i < MODES; i++) {
        rig r = open_rig("ram", CU_STREAM_NON_BLOCKING);
        CUstreamCaptureMode mode = modes[i];
        assert_int_equal(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
        ok(step_on(&r, r.other));
        standin_fail_nth("cuMemcpyAsync", 1, CUDA_ERROR_UNKNOWN);
        assert_int_equal(spw_device_copy(r.device, r.p, r.g, 16), SPW_EIO);
        standin_fail_nth("cuThreadExchangeStreamCaptureMode", 1, CUDA_ERROR_UNKNOWN);
        assert_int_equal(spw_device_copy(r.device, r.p, r.g, 16), SPW_EIO);
        assert_int_equal(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
        assert_int_equal(mode, modes[i]);
        close_rig(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_on_a_captured_stream_changes_nothing),
        cmocka_unit_test(so_it_is_when_the_capture_is_broken),
        cmocka_unit_test(the_default_stream_does_not_break_a_capture),
        cmocka_unit_test(state_gives_way_while_a_stream_is_captured),
        cmocka_unit_test(a_thread_keeps_its_mode),
    };
    (void)cuInit(0);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
