/* The cpu device: opening, statistics, what a failed request leaves behind, copies, threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dev/dev.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static spw_device *device_of(uint64_t mem, uint32_t threads)
{
    spw_device_config config;
    spw_device *device;
    spw_device_config_default(&config);
    config.mem = mem;
    config.threads = threads;
    assert_int_equal(spw_device_open("cpu", &config, &device), 0);
    return device;
}

static void *must_alloc(spw_device *device, uint64_t bytes, spw__dev_use use)
{
    void *p;
    assert_int_equal(spw__dev_alloc(device, bytes, use, &p), 0);
    return p;
}

static spw__dev_usage usage_of(spw_device *device)
{
    spw__dev_usage usage;
    spw__dev_usage_get(device, &usage);
    return usage;
}

static void assert_says(const char *text)
{
    if (!strstr(spw_last_error(), text))
        fail_msg("\"%s\" does not say \"%s\"", spw_last_error(), text);
    assert_null(strchr(spw_last_error(), '\n'));
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    spw_device *device = NULL;
    spw_device_config config;
    spw_device_config_default(&config);
    assert_int_equal(config.size, sizeof config);
    assert_int_equal(spw_device_open(NULL, &config, &device), SPW_EINVAL);
    assert_int_equal(spw_device_open("cpu", &config, NULL), SPW_EINVAL);
    assert_int_equal(spw_device_open("tpu", &config, &device), SPW_EINVAL);
    assert_says("tpu");
    assert_says("cpu");
    config.size = 0;
    assert_int_equal(spw_device_open("cpu", &config, &device), SPW_EINVAL);
    assert_says("spw_device_config.size");
    config.size = sizeof config + 8;
    assert_int_equal(spw_device_open("cpu", &config, &device), SPW_EINVAL);
    assert_null(device);
    spw_device_stats stats;
    assert_int_equal(spw_device_stats_get(NULL, &stats), SPW_EINVAL);
    spw_device_close(NULL);
}

static void without_a_driver_cuda_is_refused_with_a_remedy(void **state)
{
    (void)state;
    static const char *const names[] = {"cuda", "cuda:0", "cuda:3"};
    spw_device *device;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (spw_device_open(names[i], NULL, &device) == 0) {
            spw_device_close(device); /* there is a GPU */
            continue;
        }
        assert_says("cuda");
    }
    assert_int_equal(spw_device_open("cudax", NULL, &device), SPW_EINVAL);
    assert_int_equal(spw_device_open("cuda:", NULL, &device), SPW_EINVAL);
    assert_int_equal(spw_device_open("cuda:1x", NULL, &device), SPW_EINVAL);
}

static void address_space_that_cannot_be_had_is_an_error(void **state)
{
    (void)state;
    spw_device_config config;
    spw_device *device;
    spw_device_config_default(&config);
    config.mem = UINT64_C(1) << 60;
    assert_int_equal(spw_device_open("cpu", &config, &device), SPW_EHOSTMEM);
    config.mem = UINT64_MAX;
    assert_int_equal(spw_device_open("cpu", &config, &device), SPW_EHOSTMEM);
}

static void without_a_cap_the_device_has_the_machines_memory(void **state)
{
    (void)state;
    spw_device *device;
    assert_int_equal(spw_device_open("cpu", NULL, &device), 0);
    assert_false(usage_of(device).has_cap);
    assert_true(usage_of(device).capacity > UINT64_C(64) << 20);
    assert_true(spw__pool_threads(device->pool) >= 1);
    spw_device_close(device);
    device = device_of(4096, 1);
    assert_true(usage_of(device).has_cap);
    spw_device_close(device);
}

static void statistics_follow_allocations(void **state)
{
    (void)state;
    spw_device *device = device_of(1 << 20, 1);
    spw_device_stats stats;
    void *a = must_alloc(device, 1000, SPW__DEV_MEMORY);
    void *f = must_alloc(device, 8192, SPW__DEV_FRAME);
    assert_int_equal((uintptr_t)a % 64, 0);
    assert_int_equal((uintptr_t)f % 4096, 0);
    spw__dev_free(device, a);
    assert_int_equal(spw_device_stats_get(device, &stats), 0);
    assert_int_equal(stats.capacity_bytes, 1 << 20);
    assert_int_equal(stats.in_use_bytes, 8192);
    assert_int_equal(stats.frame_bytes, 8192);
    assert_int_equal(stats.peak_bytes, 8192 + 1024);
    spw__dev_free(device, f);
    spw__dev_free(device, NULL);
    assert_int_equal(usage_of(device).in_use, 0);
    assert_int_equal(usage_of(device).peak, 8192 + 1024);
    spw_device_close(device);
}

static void a_full_device_says_what_it_has(void **state)
{
    (void)state;
    spw_device *device = device_of(64 << 10, 1);
    must_alloc(device, 16 << 10, SPW__DEV_MEMORY);
    void *p = device;
    assert_int_equal(spw__dev_alloc(device, 60 << 10, SPW__DEV_MEMORY, &p), SPW_ENOMEM);
    assert_ptr_equal(p, device); /* untouched */
    assert_says("61440");        /* asked */
    assert_says("16384");        /* in use */
    assert_says("65536");        /* capacity */
    assert_says("49152");        /* widest gap */
    must_alloc(device, 48 << 10, SPW__DEV_MEMORY);
    spw_device_close(device);
}

static void the_peak_of_others_counts_what_they_were_refused(void **state)
{
    (void)state;
    spw_device *device = device_of(64 << 10, 1);
    void *p, *a = must_alloc(device, 4096, SPW__DEV_MEMORY);
    must_alloc(device, 32 << 10, SPW__DEV_FRAME);
    assert_int_equal(usage_of(device).other_peak, 4096);
    assert_int_equal(spw__dev_alloc(device, 40 << 10, SPW__DEV_FRAME, &p), SPW_ENOMEM);
    assert_int_equal(usage_of(device).other_peak, 4096); /* frames are not others */
    assert_int_equal(spw__dev_alloc(device, 40 << 10, SPW__DEV_MEMORY, &p), SPW_ENOMEM);
    assert_int_equal(usage_of(device).other_peak, 4096 + (40 << 10));
    assert_int_equal(spw__dev_alloc(device, 62 << 10, SPW__DEV_MEMORY, &p), SPW_ENOMEM);
    assert_int_equal(usage_of(device).other_peak, 64 << 10); /* never more than there is */
    spw__dev_reset_other_peak(device);
    assert_int_equal(spw__dev_alloc(device, UINT64_MAX, SPW__DEV_MEMORY, &p), SPW_ENOMEM);
    assert_int_equal(usage_of(device).other_peak, 4096); /* nobody needs what cannot be */
    spw__dev_free(device, a);
    spw__dev_reset_other_peak(device);
    assert_int_equal(usage_of(device).other_peak, 0);
    spw_device_close(device);
}

static void copies_and_fills_are_exact_at_any_size_and_thread_count(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {0, 1, 4095, 262144, 262145, 1 << 20, (3 << 20) + 17};
    enum { MOST = 4 << 20 };
    unsigned char *host = malloc(MOST), *back = malloc(MOST);
    assert_non_null(host);
    assert_non_null(back);
    for (size_t i = 0; i < MOST; i++)
        host[i] = (unsigned char)(i * 31 + (i >> 12));
    for (uint32_t threads = 1; threads <= 4; threads += 3) {
        spw_device *device = device_of(MOST, threads);
        void *p = must_alloc(device, MOST, SPW__DEV_MEMORY);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            uint64_t n = sizes[i];
            memset(back, 0xA5, MOST);
            assert_int_equal(spw__dev_copy(device, p, host, n, NULL), 0);
            assert_int_equal(spw__dev_copy(device, back, p, n, NULL), 0);
            assert_memory_equal(back, host, n);
            assert_int_equal(back[n], 0xA5); /* not a byte further */
            memset(p, 0xA5, MOST);
            assert_int_equal(spw__dev_zero(device, p, n, NULL), 0);
            for (uint64_t k = 0; k < n; k++)
                assert_int_equal(((unsigned char *)p)[k], 0);
            assert_int_equal(((unsigned char *)p)[n], 0xA5);
        }
        spw_device_close(device);
    }
    free(host);
    free(back);
}

static void the_nth_call_fails_once(void **state)
{
    (void)state;
    spw_device *device = device_of(1 << 20, 1);
    void *p;
    char byte = 0;
    spw__dev_fail_alloc(3);
    must_alloc(device, 1, SPW__DEV_MEMORY);
    must_alloc(device, 1, SPW__DEV_FRAME);
    assert_int_equal(spw__dev_alloc(device, 1, SPW__DEV_MEMORY, &p), SPW_ENOMEM);
    p = must_alloc(device, 1, SPW__DEV_MEMORY);
    spw__dev_fail_copy(2);
    assert_int_equal(spw__dev_copy(device, p, &byte, 1, NULL), 0);
    assert_int_equal(spw__dev_copy(device, p, &byte, 1, NULL), SPW_EIO);
    assert_int_equal(spw__dev_copy(device, p, &byte, 1, NULL), 0);
    spw__dev_fail_alloc(1);
    spw__dev_fail_alloc(0);
    must_alloc(device, 1, SPW__DEV_MEMORY);
    spw_device_close(device);
}

/* --------------------------------------------------------------------------- many threads */

enum { THREADS = 4, HELD = 16, ROUNDS = 2000 };

typedef struct tenant {
    pthread_t thread;
    spw_device *device;
    unsigned char mark;
    uint64_t overwritten;
} tenant;

static void give(tenant *t, unsigned char *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        t->overwritten += p[i] != t->mark;
    spw__dev_free(t->device, p);
}

/* Holds up to HELD pieces filled with its mark; nobody else may write there. */
static void *live_there(void *argument)
{
    tenant *t = argument;
    unsigned char *held[HELD] = {NULL};
    size_t bytes[HELD] = {0};
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned k = (i * 7 + t->mark) % HELD;
        if (held[k])
            give(t, held[k], bytes[k]);
        held[k] = NULL;
        bytes[k] = 1 + i * 37 % 6000;
        void *p;
        spw__dev_use use = i % 3 ? SPW__DEV_MEMORY : SPW__DEV_FRAME;
        if (spw__dev_alloc(t->device, bytes[k], use, &p) < 0)
            continue;
        held[k] = p;
        memset(p, t->mark, bytes[k]);
    }
    for (unsigned k = 0; k < HELD; k++)
        if (held[k])
            give(t, held[k], bytes[k]);
    return NULL;
}

static void threads_never_share_memory(void **state)
{
    (void)state;
    spw_device *device = device_of(160 << 10, 1); /* too small for all: some are refused */
    tenant tenants[THREADS];
    for (int i = 0; i < THREADS; i++) {
        tenants[i] = (tenant){.device = device, .mark = (unsigned char)(i + 1)};
        assert_int_equal(pthread_create(&tenants[i].thread, NULL, live_there, &tenants[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(tenants[i].thread, NULL);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(tenants[i].overwritten, 0);
    spw__dev_usage usage = usage_of(device);
    assert_int_equal(usage.in_use, 0);
    assert_int_equal(usage.frames, 0);
    assert_true(usage.peak <= usage.capacity);
    assert_non_null(must_alloc(device, 160 << 10, SPW__DEV_MEMORY)); /* all of it, in one piece */
    spw_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(without_a_driver_cuda_is_refused_with_a_remedy),
        cmocka_unit_test(address_space_that_cannot_be_had_is_an_error),
        cmocka_unit_test(without_a_cap_the_device_has_the_machines_memory),
        cmocka_unit_test(statistics_follow_allocations),
        cmocka_unit_test(a_full_device_says_what_it_has),
        cmocka_unit_test(the_peak_of_others_counts_what_they_were_refused),
        cmocka_unit_test(copies_and_fills_are_exact_at_any_size_and_thread_count),
        cmocka_unit_test(the_nth_call_fails_once),
        cmocka_unit_test(threads_never_share_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
