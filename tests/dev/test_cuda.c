/* The cuda device on the stand-in driver: memory and the account of it, copies, events, failures.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "dev/dev.h"
#include "standin/standin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MIB = 1 << 20, FRAME = 4 << 20, BYTES = 64 << 10 };

static standin_control control;

static spw_device *open_with(uint64_t mem)
{
    spw_device_config config;
    spw_device *device;
    spw_device_config_default(&config);
    config.mem = mem;
    assert_int_equal(spw_device_open("cuda:0", &config, &device), 0);
    return device;
}

static void close_clean(spw_device *device)
{
    spw_device_close(device);
    assert_int_equal(control.live_bytes(), 0);
    assert_int_equal(control.live_objects(), 0);
    assert_int_equal(control.calls("cuCtxPushCurrent"), control.calls("cuCtxPopCurrent"));
}

static spw__dev_usage usage_of(spw_device *device)
{
    spw__dev_usage usage;
    spw__dev_usage_get(device, &usage);
    return usage;
}

static void *must_alloc(spw_device *device, uint64_t bytes, spw__dev_use use)
{
    void *p = NULL;
    assert_int_equal(spw__dev_alloc(device, bytes, use, &p), 0);
    assert_non_null(p);
    return p;
}

static void assert_says(const char *text)
{
    if (!strstr(spw_last_error(), text))
        fail_msg("\"%s\" does not say \"%s\"", spw_last_error(), text);
    assert_null(strchr(spw_last_error(), '\n'));
}

static int begin(void **state)
{
    (void)state;
    control.reset();
    return 0;
}

/* --------------------------------------------------------------------------------- opening -- */

static void a_device_that_is_not_there_is_named(void **state)
{
    (void)state;
    spw_device *device = NULL;
    assert_int_equal(spw_device_open("cuda:7", NULL, &device), SPW_EINVAL);
    assert_says("cuda:7");
    assert_says("1 CUDA device");
    assert_null(device);
    assert_int_equal(spw_device_open("cuda:1x", NULL, &device), SPW_EINVAL);
    assert_int_equal(spw_device_open("cuda:", NULL, &device), SPW_EINVAL);
    assert_int_equal(control.live_objects(), 0);
}

static void opening_and_closing_leaves_nothing(void **state)
{
    (void)state;
    const char *const names[] = {"cuda", "cuda:0"};
    for (int i = 0; i < 2; i++) {
        spw_device *device;
        assert_int_equal(spw_device_open(names[i], NULL, &device), 0);
        assert_true(device->async);
        assert_false(device->host_memory);
        close_clean(device);
    }
}

/* The primary context is shared: who else retains it keeps it. */
static void two_devices_are_one_card(void **state)
{
    (void)state;
    spw_device *one = open_with(0), *two = open_with(0);
    void *p = must_alloc(one, MIB, SPW__DEV_MEMORY);
    assert_int_equal(usage_of(two).in_use, MIB);
    spw_device_close(two);
    spw__dev_free(one, p);
    close_clean(one);
}

static void closing_gives_back_what_is_left(void **state)
{
    (void)state;
    spw_device *device = open_with(0);
    (void)must_alloc(device, 100, SPW__DEV_MEMORY);
    (void)must_alloc(device, FRAME, SPW__DEV_FRAME);
    (void)must_alloc(device, 100, SPW__DEV_MEMORY);
    close_clean(device);
}

/* ---------------------------------------------------------------------------------- memory -- */

static void memory_and_frames_are_counted_apart(void **state)
{
    (void)state;
    const uint64_t caps[] = {0, 64 * MIB};
    for (int i = 0; i < 2; i++) {
        control.set_capacity(UINT64_C(1) << 30);
        spw_device *device = open_with(caps[i]);
        assert_int_equal(usage_of(device).capacity, caps[i] ? caps[i] : UINT64_C(1) << 30);
        void *memory = must_alloc(device, MIB, SPW__DEV_MEMORY);
        void *frame = must_alloc(device, FRAME, SPW__DEV_FRAME);
        assert_int_equal((uintptr_t)memory % 64, 0);
        assert_int_equal((uintptr_t)frame % 4096, 0);
        spw__dev_usage usage = usage_of(device);
        assert_int_equal(usage.in_use, MIB + FRAME);
        assert_int_equal(usage.frames, FRAME);
        assert_int_equal(usage.peak, MIB + FRAME);
        assert_true(usage.has_cap);
        spw__dev_free(device, frame);
        usage = usage_of(device);
        assert_int_equal(usage.in_use, MIB);
        assert_int_equal(usage.frames, 0);
        assert_int_equal(usage.peak, MIB + FRAME);
        spw__dev_free(device, memory);
        assert_int_equal(usage_of(device).in_use, 0);
        close_clean(device);
    }
}

static void the_peak_of_others_remembers_what_failed(void **state)
{
    (void)state;
    spw_device *device = open_with(16 * MIB);
    void *memory = must_alloc(device, MIB, SPW__DEV_MEMORY), *p;
    void *frame = must_alloc(device, FRAME, SPW__DEV_FRAME);
    assert_int_equal(usage_of(device).other_peak, MIB);
    assert_int_equal(spw__dev_alloc(device, 13 * MIB, SPW__DEV_FRAME, &p), SPW_ENOMEM);
    assert_int_equal(usage_of(device).other_peak, MIB);
    assert_int_equal(spw__dev_alloc(device, 12 * MIB, SPW__DEV_MEMORY, &p), SPW_ENOMEM);
    assert_int_equal(usage_of(device).other_peak, 13 * MIB);
    spw__dev_reset_other_peak(device);
    assert_int_equal(usage_of(device).other_peak, MIB);
    spw__dev_free(device, memory);
    spw__dev_free(device, frame);
    close_clean(device);
}

static void out_of_memory_leaves_nothing(void **state)
{
    (void)state;
    const spw__dev_use uses[] = {SPW__DEV_MEMORY, SPW__DEV_FRAME};
    for (int i = 0; i < 4; i++) {
        control.set_capacity(32 * MIB);
        spw_device *device = open_with(i / 2 ? 8 * MIB : 0);
        uint64_t live = control.live_bytes();
        void *p = NULL;
        assert_int_equal(spw__dev_alloc(device, 33 * MIB, uses[i % 2], &p), SPW_ENOMEM);
        assert_int_equal(spw__dev_alloc(device, UINT64_MAX, uses[i % 2], &p), SPW_ENOMEM);
        assert_null(p);
        assert_int_equal(control.live_bytes(), live);
        assert_int_equal(usage_of(device).in_use, 0);
        spw__dev_free(device, must_alloc(device, 8 * MIB, uses[i % 2]));
        close_clean(device);
    }
}

/* Others' memory on the card counts, whoever they are. */
static void what_others_take_is_in_use(void **state)
{
    (void)state;
    control.set_capacity(64 * MIB);
    spw_device *device = open_with(0), *other = open_with(0);
    void *theirs = must_alloc(other, 60 * MIB, SPW__DEV_MEMORY), *p;
    assert_int_equal(usage_of(device).in_use, 60 * MIB);
    assert_int_equal(usage_of(device).other_peak, 60 * MIB);
    assert_int_equal(spw__dev_alloc(device, 8 * MIB, SPW__DEV_MEMORY, &p), SPW_ENOMEM);
    assert_says("CUDA_ERROR_OUT_OF_MEMORY");
    spw__dev_free(other, theirs);
    spw_device_close(other);
    close_clean(device);
}

/* ----------------------------------------------------------------------------- copies, order -- */

typedef struct pinned {
    unsigned char *from, *to;
} pinned;

static pinned pinned_make(spw_device *device)
{
    pinned p = {spw__map(BYTES), spw__map(BYTES)};
    assert_true(p.from && p.to);
    assert_int_equal(spw__dev_pin(device, p.from, BYTES), 0);
    assert_int_equal(spw__dev_pin(device, p.to, BYTES), 0);
    return p;
}

static void pinned_free(spw_device *device, pinned p)
{
    spw__dev_unpin(device, p.from);
    spw__dev_unpin(device, p.to);
    spw__unmap(p.from, BYTES);
    spw__unmap(p.to, BYTES);
}

static void assert_all(const unsigned char *bytes, uint64_t n, int value)
{
    for (uint64_t i = 0; i < n; i++)
        assert_int_equal(bytes[i], value);
}

/* In by one stream, half of it zeroed by another, out by a third. */
static void round_trip(spw_device *device, pinned p, void *memory, void *const events[2])
{
    void *const *streams = device->streams;
    char *middle = (char *)memory + BYTES / 2;
    assert_int_equal(spw__dev_copy(device, memory, p.from, BYTES, streams[SPW__DEV_IN]), 0);
    assert_int_equal(spw__dev_event_record(device, events[0], streams[SPW__DEV_IN]), 0);
    assert_int_equal(spw__dev_stream_wait(device, streams[SPW__DEV_GIVE], events[0]), 0);
    assert_int_equal(spw__dev_zero(device, middle, BYTES / 2, streams[SPW__DEV_GIVE]), 0);
    assert_int_equal(spw__dev_event_record(device, events[1], streams[SPW__DEV_GIVE]), 0);
    assert_int_equal(spw__dev_stream_wait(device, streams[SPW__DEV_OUT], events[1]), 0);
    assert_int_equal(spw__dev_copy(device, p.to, memory, BYTES, streams[SPW__DEV_OUT]), 0);
    assert_int_equal(spw__dev_event_record(device, events[0], streams[SPW__DEV_OUT]), 0);
    assert_int_equal(spw__dev_event_wait(device, events[0]), 0);
}

static void events_order_streams(void **state)
{
    (void)state;
    spw_device *device = open_with(0);
    pinned p = pinned_make(device);
    void *events[2], *memory = must_alloc(device, BYTES, SPW__DEV_FRAME);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(spw__dev_event_create(device, &events[i]), 0);
        assert_int_equal(spw__dev_event_wait(device, events[i]), 0); /* never recorded */
    }
    for (int i = 0; i < 20; i++) {
        control.seed((uint64_t)i);
        memset(p.from, i + 1, BYTES);
        round_trip(device, p, memory, events);
        assert_all(p.to, BYTES / 2, i + 1);
        assert_all(p.to + BYTES / 2, BYTES / 2, 0);
    }
    for (int i = 0; i < 2; i++)
        spw__dev_event_destroy(device, events[i]);
    spw__dev_free(device, memory);
    pinned_free(device, p);
    close_clean(device);
}

static void no_event_is_a_complete_one(void **state)
{
    (void)state;
    spw_device *device = open_with(0);
    assert_int_equal(spw__dev_event_record(device, NULL, NULL), 0);
    assert_int_equal(spw__dev_stream_wait(device, NULL, NULL), 0);
    assert_int_equal(spw__dev_event_wait(device, NULL), 0);
    spw__dev_event_destroy(device, NULL);
    spw__dev_free(device, NULL);
    close_clean(device);
}

/* From and to memory that nobody pinned, and within the device. */
static void a_copy_now_is_done_on_return(void **state)
{
    (void)state;
    spw_device *device = open_with(0);
    unsigned char *bytes = malloc(BYTES);
    assert_non_null(bytes);
    void *one = must_alloc(device, BYTES, SPW__DEV_MEMORY);
    void *two = must_alloc(device, BYTES, SPW__DEV_FRAME);
    memset(bytes, 9, BYTES);
    assert_int_equal(spw_device_copy(device, one, bytes, BYTES), 0);
    assert_int_equal(spw_device_copy(device, two, one, BYTES), 0);
    memset(bytes, 0, BYTES);
    assert_int_equal(spw_device_copy(device, bytes, two, BYTES), 0);
    assert_all(bytes, BYTES, 9);
    assert_int_equal(spw_device_copy(device, bytes, two, 0), 0);
    free(bytes);
    close_clean(device);
}

/* After the caller's stream and the device's own. */
static void a_sync_waits_for_all_streams(void **state)
{
    (void)state;
    spw_device *device = open_with(0);
    unsigned char *memory = must_alloc(device, 4 * BYTES, SPW__DEV_MEMORY);
    for (int i = 0; i < 4; i++) {
        void *stream = i == 3 ? NULL : device->streams[i];
        assert_int_equal(spw__dev_zero(device, memory + i * BYTES, BYTES, stream), 0);
    }
    assert_int_equal(memory[0], STANDIN_POISON); /* the stand-in's memory is the host's */
    assert_int_equal(spw_device_sync(device, NULL), 0);
    assert_all(memory, 4 * BYTES, 0);
    close_clean(device);
}

static void memory_is_pinned_once(void **state)
{
    (void)state;
    spw_device *device = open_with(0);
    void *memory = spw__map(BYTES);
    assert_non_null(memory);
    assert_int_equal(spw__dev_pin(device, memory, BYTES), 0);
    assert_int_equal(spw__dev_pin(device, memory, BYTES), SPW_EINVAL);
    assert_says("cuMemHostRegister");
    spw__dev_unpin(device, memory);
    assert_int_equal(spw__dev_pin(device, memory, BYTES), 0);
    spw__dev_unpin(device, memory);
    spw__dev_unpin(device, NULL);
    spw__unmap(memory, BYTES);
    close_clean(device);
}

/* -------------------------------------------------------------------------------- failures -- */

/* What a run of all functions of the device has so far. */
typedef struct use {
    spw_device *device;
    void *memory, *frame, *event, *host;
    bool is_pinned;
} use;

static int use_memory(use *u)
{
    int rc = spw__dev_alloc(u->device, BYTES, SPW__DEV_MEMORY, &u->memory);
    if (rc == 0)
        rc = spw__dev_alloc(u->device, BYTES, SPW__DEV_FRAME, &u->frame);
    if (rc == 0)
        rc = spw__dev_event_create(u->device, &u->event);
    if (rc == 0)
        rc = spw__dev_pin(u->device, u->host, BYTES);
    u->is_pinned = rc == 0;
    return rc;
}

static int use_streams(use *u)
{
    void *in = u->device->streams[SPW__DEV_IN], *out = u->device->streams[SPW__DEV_OUT];
    int rc = spw__dev_copy(u->device, u->memory, u->host, BYTES, in);
    if (rc == 0)
        rc = spw__dev_event_record(u->device, u->event, in);
    if (rc == 0)
        rc = spw__dev_stream_wait(u->device, out, u->event);
    if (rc == 0)
        rc = spw__dev_copy(u->device, u->frame, u->memory, BYTES, out);
    if (rc == 0)
        rc = spw__dev_zero(u->device, u->frame, 16, out);
    if (rc == 0)
        rc = spw__dev_event_record(u->device, u->event, out);
    if (rc == 0)
        rc = spw__dev_event_wait(u->device, u->event);
    return rc == 0 ? spw_device_sync(u->device, NULL) : rc;
}

static int use_all(use *u)
{
    int rc = spw_device_open("cuda:0", NULL, &u->device);
    if (rc == 0)
        rc = use_memory(u);
    return rc == 0 ? use_streams(u) : rc;
}

static void use_end(use *u)
{
    if (!u->device)
        return;
    for (int i = 0; i < SPW__DEV_STREAMS; i++)
        assert_int_equal(spw__dev_stream_sync(u->device, u->device->streams[i]), 0);
    if (u->is_pinned)
        spw__dev_unpin(u->device, u->host);
    spw__dev_event_destroy(u->device, u->event);
    spw__dev_free(u->device, u->memory);
    spw__dev_free(u->device, u->frame);
    assert_int_equal(usage_of(u->device).in_use, 0);
    spw_device_close(u->device);
}

static void every_failing_call_is_named_and_leaks_nothing(void **state)
{
    (void)state;
    const CUresult results[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_LAUNCH_FAILED};
    void *host = spw__map(BYTES);
    assert_non_null(host);
    uint64_t n_calls = 1;
    int failed = 0;
    for (int kind = 0; kind < 2; kind++)
        for (uint64_t n = 0; n <= n_calls; n++) { /* 0: none fails, they are counted */
            use u = {.host = host};
            control.reset();
            control.fail_nth(NULL, n, results[kind]);
            int rc = use_all(&u);
            n_calls = n ? n_calls : control.calls(NULL);
            control.fail_nth(NULL, 0, CUDA_SUCCESS);
            assert_true(n || rc == 0);
            assert_true(rc == 0 || rc == (kind ? SPW_EIO : SPW_ENOMEM));
            if (rc < 0)
                assert_says(kind ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_OUT_OF_MEMORY");
            failed += rc < 0;
            use_end(&u);
            assert_int_equal(control.live_bytes(), 0);
            assert_int_equal(control.live_objects(), 0);
        }
    assert_true(failed > 40); /* all but those whose answer is not needed */
    spw__unmap(host, BYTES);
}

/* ---------------------------------------------------------------------------------- threads -- */

static void *alloc_and_free(void *argument)
{
    spw_device *device = argument;
    for (int i = 0; i < 100; i++) {
        void *p;
        spw__dev_use kind = i % 2 ? SPW__DEV_FRAME : SPW__DEV_MEMORY;
        if (spw__dev_alloc(device, BYTES, kind, &p) < 0)
            return argument;
        spw__dev_free(device, p);
    }
    return NULL;
}

static void threads_may_share_a_device(void **state)
{
    (void)state;
    spw_device *device = open_with(0);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, alloc_and_free, device), 0);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(usage_of(device).in_use, 0);
    close_clean(device);
}

#define TEST(function) cmocka_unit_test_setup(function, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_device_that_is_not_there_is_named),
        TEST(opening_and_closing_leaves_nothing),
        TEST(two_devices_are_one_card),
        TEST(closing_gives_back_what_is_left),
        TEST(memory_and_frames_are_counted_apart),
        TEST(the_peak_of_others_remembers_what_failed),
        TEST(out_of_memory_leaves_nothing),
        TEST(what_others_take_is_in_use),
        TEST(events_order_streams),
        TEST(no_event_is_a_complete_one),
        TEST(a_copy_now_is_done_on_return),
        TEST(a_sync_waits_for_all_streams),
        TEST(memory_is_pinned_once),
        TEST(every_failing_call_is_named_and_leaks_nothing),
        TEST(threads_may_share_a_device),
    };
    if (!standin_find(&control)) {
        (void)puts("skipped: the stand-in driver is not the one that loads");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
