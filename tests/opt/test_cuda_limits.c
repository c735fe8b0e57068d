/* Limits on locked memory, on the stand-in driver: state moves more slowly then, with the same
 * bits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pager/pager.h"
#include "standin/standin.h"

#include <spillway/spillway.h>

#include <stdio.h>
#include <stdlib.h>

enum { N = 60000, MIB = 1 << 20, PAGE = 64 << 10, RING = 3, STEPS = 4 };

static standin_control control;

typedef struct life {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    void *p, *g;
} life;

static void life_begin(life *l, spw_paging paging)
{
    spw_device_config device;
    spw_pager_config pager;
    spw_optim_config optim;
    spw_device_config_default(&device);
    spw_pager_config_default(&pager);
    spw_optim_config_default(&optim);
    device.mem = 16 * MIB;
    pager.paging = paging;
    pager.page_bytes = PAGE;
    pager.ring_frames = RING;
    pager.state_percent = 0;
    optim.state = SPW_STATE_32BIT;
    assert_int_equal(spw_device_open("cuda:0", &device, &l->device), 0);
    assert_int_equal(spw_pager_create(l->device, &pager, &l->pager), 0);
    assert_int_equal(spw_optim_create(l->pager, &optim, &l->optim), 0);
    float *values = calloc(N, sizeof *values);
    assert_non_null(values);
    for (int i = 0; i < N; i++)
        values[i] = (float)(i % 1001) / 500 - 1;
    assert_int_equal(spw_malloc(l->pager, N * sizeof(float), &l->p), 0);
    assert_int_equal(spw_malloc(l->pager, N * sizeof(float), &l->g), 0);
    assert_int_equal(spw_device_copy(l->device, l->p, values, N * sizeof(float)), 0);
    assert_int_equal(spw_device_copy(l->device, l->g, values, N * sizeof(float)), 0);
    free(values);
    spw_param param = {.name = "w", .data = l->p, .grad = l->g, .n = N};
    assert_int_equal(spw_optim_add(l->optim, &param), 0);
}

static void life_end(life *l)
{
    spw_optim_destroy(l->optim);
    spw_free(l->pager, l->p);
    spw_free(l->pager, l->g);
    spw_pager_destroy(l->pager);
    spw_device_close(l->device);
    assert_int_equal(control.live_bytes(), 0);
    assert_int_equal(control.live_objects(), 0);
}

/* The parameters after some steps, and what was pinned for them. */
static float *parameters_with(uint64_t lockable, uint64_t *pinned)
{
    life l;
    spw_pager_stats stats;
    float *values = calloc(N, sizeof *values);
    assert_non_null(values);
    control.reset();
    control.set_lockable(lockable);
    life_begin(&l, SPW_PAGING_COPY);
    for (int i = 0; i < STEPS; i++)
        assert_int_equal(spw_optim_step(l.optim, &(spw_step){.lr = 1e-2, .max_norm = 1}), 0);
    assert_int_equal(spw_device_sync(l.device, NULL), 0);
    assert_int_equal(spw_device_copy(l.device, values, l.p, N * sizeof(float)), 0);
    assert_int_equal(spw_pager_stats_get(l.pager, &stats), 0);
    assert_true(stats.bytes_in > 0);
    *pinned = stats.pinned_bytes;
    life_end(&l);
    return values;
}

static void state_that_cannot_be_pinned_passes_a_ring(void **state)
{
    static const struct {
        uint64_t lockable, pinned;
    } limits[] = {{RING * PAGE, RING * PAGE}, {2 * PAGE, 2 * PAGE}, {PAGE - 1, 0}, {0, 0}};
    uint64_t pinned;
    (void)state;
    float *wanted = parameters_with(UINT64_MAX, &pinned);
    assert_true(pinned >= 2 * N * sizeof(float));
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        float *values = parameters_with(limits[i].lockable, &pinned);
        assert_int_equal(pinned, limits[i].pinned);
        assert_memory_equal(values, wanted, N * sizeof(float));
        free(values);
    }
    free(wanted);
}

/* Pinned a page at a time, until the limit comes in the middle of it. */
static void a_part_that_cannot_be_pinned_is_copied_all_the_same(void **state)
{
    uint64_t pinned;
    (void)state;
    float *wanted = parameters_with(UINT64_MAX, &pinned);
    spw__pins_set_chunk(PAGE);
    for (uint64_t pages = 1; pages < 6; pages++) {
        float *values = parameters_with(pages * PAGE, &pinned);
        assert_int_equal(pinned, pages * PAGE);
        assert_memory_equal(values, wanted, N * sizeof(float));
        free(values);
    }
    spw__pins_set_chunk(64 * MIB);
    free(wanted);
}

static void mapped_names_the_limit(void **state)
{
    life l;
    (void)state;
    control.reset();
    control.set_lockable(PAGE);
    life_begin(&l, SPW_PAGING_MAPPED);
    assert_int_equal(spw_optim_lay_out(l.optim), SPW_ENOTSUP);
    assert_non_null(strstr(spw_last_error(), "ulimit -l"));
    assert_non_null(strstr(spw_last_error(), "use copy"));
    control.set_lockable(UINT64_MAX); /* somebody raised it */
    assert_int_equal(spw_optim_lay_out(l.optim), 0);
    life_end(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(state_that_cannot_be_pinned_passes_a_ring),
        cmocka_unit_test(a_part_that_cannot_be_pinned_is_copied_all_the_same),
        cmocka_unit_test(mapped_names_the_limit),
    };
    if (!standin_find(&control)) {
        (void)puts("skipped: the stand-in driver is not the one that loads");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
