/*
 * The step on a cuda device has the CPU's bits: parameters and state after 20 steps, all rules and
 * types, both kinds of state, tails, clipping, steps that are skipped, elements that are not
 * finite; and any budget, way to move and page size has the same.
 */
#include <spillway/spillway.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { N_SIZES = 11, STEPS = 20, SKIPPED_STEP = 7 };

static const uint64_t sizes[N_SIZES] = {1,    3,    255,   256,    257,   4095,
                                        4096, 4097, 70001, 262144, 600003};

typedef struct setup {
    const char *device;
    spw_rule rule;
    spw_state state;
    spw_type type, grad_type;
    spw_paging paging;
    double state_percent;
    uint64_t page_bytes;
    uint64_t pinned_mem;
    const char *store; /* NULL: ram */
    double max_norm;
    bool bad_elements;
} setup;

/* All that a run leaves: parameters, then every part of every state, then the steps counted. */
typedef struct outcome {
    char *bytes;
    size_t n;
} outcome;

typedef struct bench {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    void *p[N_SIZES], *g[N_SIZES];
    void *host; /* of the largest tensor */
} bench;

static void ok(int64_t rc)
{
    if (rc < 0)
        fail_msg("%s", spw_last_error());
}

static size_t bytes_of(spw_type type, uint64_t n)
{
    return (size_t)n * (type == SPW_FP32 ? 4 : 2);
}

static uint32_t scramble(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return (uint32_t)(x >> 32);
}

static void put(void *data, spw_type type, uint64_t i, float value)
{
    if (type == SPW_FP32)
        ((float *)data)[i] = value;
    else if (type == SPW_BF16)
        ((uint16_t *)data)[i] = spw__bf16_of_float(value);
    else
        ((uint16_t *)data)[i] = spw__fp16_of_float(value);
}

/* Over 60 binades; a third of the blocks of 256 are small throughout, some are zeros. */
static float made_up(uint64_t i, uint64_t salt)
{
    uint32_t r = scramble(i * 977 + salt * 0x9E3779B97F4A7C15U);
    uint32_t block = scramble(i / 256 + salt * 31);
    if (block % 7 == 0)
        return 0.0F;
    float mantissa = (float)((int32_t)(r & 0xFFFF) - 0x8000) / 32768.0F;
    int exponent = -(int)((r >> 16) % (block % 3 ? 12 : 60));
    return ldexpf(mantissa, exponent);
}

static void fill(bench *b, void *dst, spw_type type, uint64_t n, uint64_t salt, bool bad)
{
    for (uint64_t i = 0; i < n; i++)
        put(b->host, type, i, made_up(i, salt));
    if (bad && n > 300) {
        put(b->host, type, 290, NAN);
        put(b->host, type, n - 1, INFINITY);
        put(b->host, type, n / 2, -INFINITY);
    }
    ok(spw_device_copy(b->device, dst, b->host, bytes_of(type, n)));
}

static void begin(bench *b, const setup *s)
{
    spw_pager_config pager;
    spw_optim_config optim;
    spw_pager_config_default(&pager);
    spw_optim_config_default(&optim);
    pager.paging = s->paging;
    pager.state_percent = s->state_percent;
    pager.page_bytes = s->page_bytes;
    pager.pinned_mem = s->pinned_mem;
    pager.store = s->store ? s->store : "ram";
    optim.rule = s->rule;
    optim.state = s->state;
    optim.group.t_alpha = 7;
    optim.group.t_beta3 = 11;
    optim.min_8bit_elements = 0;
    optim.group.weight_decay = 0.01;
    b->host = malloc(sizes[N_SIZES - 1] * 4);
    assert_non_null(b->host);
    ok(spw_device_open(s->device, NULL, &b->device));
    ok(spw_pager_create(b->device, &pager, &b->pager));
    ok(spw_optim_create(b->pager, &optim, &b->optim));
    for (int i = 0; i < N_SIZES; i++) {
        ok(spw_malloc(b->pager, bytes_of(s->type, sizes[i]), &b->p[i]));
        ok(spw_malloc(b->pager, bytes_of(s->grad_type, sizes[i]), &b->g[i]));
        fill(b, b->p[i], s->type, sizes[i], 1000 + (uint64_t)i, false);
        ok(spw_optim_add(b->optim, &(spw_param){.name = "",
                                                .data = b->p[i],
                                                .grad = b->g[i],
                                                .n = sizes[i],
                                                .type = s->type,
                                                .grad_type = s->grad_type}));
    }
}

static void end(bench *b)
{
    spw_optim_destroy(b->optim);
    for (int i = 0; i < N_SIZES; i++) {
        spw_free(b->pager, b->p[i]);
        spw_free(b->pager, b->g[i]);
    }
    spw_pager_destroy(b->pager);
    spw_device_stats stats;
    ok(spw_device_stats_get(b->device, &stats));
    assert_int_equal(stats.frame_bytes, 0);
    spw_device_close(b->device);
    free(b->host);
}

static void keep(outcome *o, const void *bytes, size_t n)
{
    o->bytes = realloc(o->bytes, o->n + n);
    assert_non_null(o->bytes);
    memcpy(o->bytes + o->n, bytes, n);
    o->n += n;
}

static void collect(bench *b, const setup *s, outcome *o)
{
    for (int i = 0; i < N_SIZES; i++) {
        size_t n = bytes_of(s->type, sizes[i]);
        ok(spw_device_copy(b->device, b->host, b->p[i], n));
        keep(o, b->host, n);
        for (spw_part part = SPW_PART_M; part <= SPW_PART_ABSMAX_M_SLOW; part++) {
            int64_t bytes = spw_optim_part_bytes(b->optim, (uint64_t)i, part);
            ok(bytes);
            if (!bytes)
                continue;
            ok(spw_optim_get_part(b->optim, (uint64_t)i, part, b->host, (uint64_t)bytes));
            keep(o, b->host, (size_t)bytes);
        }
        uint64_t step;
        ok(spw_optim_get_step(b->optim, (uint64_t)i, &step));
        keep(o, &step, sizeof step);
    }
    spw_optim_info info;
    ok(spw_optim_info_get(b->optim, &info));
    keep(o, &info, sizeof info);
}

static outcome run(const setup *s)
{
    bench b = {.device = NULL};
    outcome o = {.bytes = NULL};
    begin(&b, s);
    for (uint64_t step = 0; step < STEPS; step++) {
        /* Some tensors have no gradient in some steps; one step clips on a norm that is none. */
        bool skipped = s->max_norm > 0 && step == SKIPPED_STEP;
        for (uint64_t i = 0; i < N_SIZES; i++) {
            bool absent = (step + i) % 9 == 8;
            fill(&b, b.g[i], s->grad_type, sizes[i], step * 100 + i,
                 skipped || (s->bad_elements && step % 3 == 1));
            ok(spw_optim_set_pointers(b.optim, i, b.p[i], absent ? NULL : b.g[i]));
        }
        ok(spw_optim_step(b.optim, &(spw_step){.lr = 1e-2 / (double)(step + 1),
                                               .max_norm = s->max_norm,
                                               .grad_scale = 0.5}));
        ok(spw_device_sync(b.device, NULL)); /* gradients are written again */
    }
    collect(&b, s, &o);
    end(&b);
    return o;
}

static void assert_equal_runs(const outcome *expected, const setup *s)
{
    outcome o = run(s);
    assert_int_equal(o.n, expected->n);
    for (size_t i = 0; i < o.n; i++)
        if (o.bytes[i] != expected->bytes[i])
            fail_msg(
                "%s, rule %d, state %d, types %d %d, paging %d, %g%%, pages %llu, max_norm %g: "
                "byte %zu of %zu differs",
                s->device, (int)s->rule, (int)s->state, (int)s->type, (int)s->grad_type,
                (int)s->paging, s->state_percent, (unsigned long long)s->page_bytes, s->max_norm, i,
                o.n);
    free(o.bytes);
}

static void every_rule_and_type_has_the_cpus_bits(void **state)
{
    (void)state;
    for (int i = 0; i < 36 * 4; i++) {
        setup s = {.device = "cpu",
                   .rule = (spw_rule)(i / 36),
                   .state = i & 1 ? SPW_STATE_8BIT : SPW_STATE_32BIT,
                   .type = (spw_type)(i / 4 % 3),
                   .grad_type = (spw_type)(i / 12 % 3),
                   .paging = SPW_PAGING_OFF,
                   .state_percent = -1,
                   .max_norm = i & 2 ? 1.0 : 0.0,
                   .bad_elements = !(i & 2)};
        outcome expected = run(&s);
        s.device = "cuda";
        assert_equal_runs(&expected, &s);
        free(expected.bytes);
    }
}

static void every_way_to_page_has_the_same_bits(void **state)
{
    (void)state;
    static const double percents[] = {0, 30, 100};
    static const uint64_t pages[] = {UINT64_C(64) << 10, UINT64_C(1) << 20};
    for (int kind = 0; kind < 8; kind++) {
        setup s = {.device = "cpu",
                   .rule = (spw_rule)(kind / 2),
                   .state = kind % 2 ? SPW_STATE_8BIT : SPW_STATE_32BIT,
                   .type = SPW_BF16,
                   .grad_type = SPW_BF16,
                   .paging = SPW_PAGING_OFF,
                   .state_percent = -1,
                   .max_norm = 0.7};
        outcome expected = run(&s);
        s.device = "cuda:0";
        s.paging = SPW_PAGING_MAPPED;
        assert_equal_runs(&expected, &s);
        s.paging = SPW_PAGING_UNIFIED;
        assert_equal_runs(&expected, &s);
        s.paging = SPW_PAGING_COPY;
        for (int i = 0; i < 6; i++) {
            s.state_percent = percents[i % 3];
            s.page_bytes = pages[i / 3];
            s.pinned_mem = 0;
            s.store = NULL;
            assert_equal_runs(&expected, &s);
            s.pinned_mem = UINT64_C(1) << 20; /* less than the state: through the pinned ring */
            assert_equal_runs(&expected, &s);
            s.store = "file:gpu_test_store";
            assert_equal_runs(&expected, &s);
        }
        free(expected.bytes);
    }
}

/* What spw_malloc takes while the state is resident comes from the state, and the bits stay. */
static void gives_way(const char *store, uint64_t pinned_mem)
{
    bench b = {.device = NULL};
    setup s = {.device = "cuda",
               .state = SPW_STATE_32BIT,
               .type = SPW_FP32,
               .grad_type = SPW_FP32,
               .paging = SPW_PAGING_COPY,
               .state_percent = 100,
               .store = store,
               .pinned_mem = pinned_mem,
               .page_bytes = UINT64_C(64) << 10};
    spw_pager_stats stats;
    outcome before = {.bytes = NULL}, after = {.bytes = NULL};
    begin(&b, &s);
    for (uint64_t i = 0; i < N_SIZES; i++)
        fill(&b, b.g[i], s.grad_type, sizes[i], i, false);
    ok(spw_optim_step(b.optim, &(spw_step){.lr = 1e-2}));
    uint64_t freed;
    ok(spw_pager_stats_get(b.pager, &stats));
    assert_int_equal(stats.resident_bytes, stats.state_bytes);
    collect(&b, &s, &before);
    ok(spw_pager_reclaim(b.pager, stats.state_bytes / 2, &freed));
    assert_true(freed >= stats.state_bytes / 2);
    ok(spw_pager_stats_get(b.pager, &stats));
    assert_true(stats.resident_bytes <= stats.state_bytes / 2);
    collect(&b, &s, &after);
    assert_int_equal(before.n, after.n);
    assert_memory_equal(before.bytes, after.bytes, before.n);
    ok(spw_pager_reclaim(b.pager, stats.state_bytes, &freed));
    ok(spw_optim_step(b.optim, &(spw_step){.lr = 1e-2}));
    ok(spw_pager_stats_get(b.pager, &stats));
    assert_int_equal(stats.resident_bytes, stats.state_bytes);
    free(before.bytes);
    free(after.bytes);
    end(&b);
}

static void state_gives_way_whatever_the_store(void **state)
{
    (void)state;
    gives_way(NULL, 0);
    gives_way(NULL, UINT64_C(1) << 20);
    gives_way("file:gpu_test_store", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rule_and_type_has_the_cpus_bits),
        cmocka_unit_test(every_way_to_page_has_the_same_bits),
        cmocka_unit_test(state_gives_way_whatever_the_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
