/* The optimizer through spillway.h alone: the same bits whatever is paged, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"

#include <spillway/spillway.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sizes with tails, tiny ones, one that spans pages, and none at all. */
static const uint64_t sizes[] = {1, 255, 4096, 0, 70001, 256, 5000, 131072, 33};
enum { N_TENSORS = sizeof sizes / sizeof *sizes, STEPS = 6 };

typedef struct setup {
    spw_pager_config pager;
    uint64_t mem;
    uint32_t threads;
    spw_state state;
    bool mixed; /* tensors of all pairs of types; else of fp32 */
} setup;

typedef struct rig {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    float *p[N_TENSORS], *g[N_TENSORS];
    uint64_t chance;
    bool mixed;
} rig;

static spw_type p_type(const rig *r, int t)
{
    return r->mixed ? (spw_type)(t % 3) : SPW_FP32;
}

static spw_type g_type(const rig *r, int t)
{
    return r->mixed ? (spw_type)(t / 3 % 3) : SPW_FP32;
}

static void put(float *data, spw_type type, uint64_t i, float value)
{
    if (type == SPW_FP32)
        data[i] = value;
    else if (type == SPW_BF16)
        ((uint16_t *)data)[i] = spw__bf16_of_float(value);
    else
        ((uint16_t *)data)[i] = spw__fp16_of_float(value);
}

static float next_value(rig *r)
{
    r->chance = r->chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(r->chance >> 40) / (1 << 23) - 1.0);
}

static setup default_setup(void)
{
    setup s = {.threads = 2, .state = SPW_STATE_32BIT};
    spw_pager_config_default(&s.pager);
    return s;
}

static void fill_gradients(rig *r)
{
    for (int t = 0; t < N_TENSORS; t++)
        for (uint64_t i = 0; i < sizes[t]; i++)
            put(r->g[t], g_type(r, t), i, next_value(r) * 0.1f);
}

static void add_tensors(rig *r)
{
    for (int t = 0; t < N_TENSORS; t++) {
        r->p[t] = calloc(sizes[t] + 1, sizeof(float));
        r->g[t] = calloc(sizes[t] + 1, sizeof(float));
        for (uint64_t i = 0; i < sizes[t]; i++)
            put(r->p[t], p_type(r, t), i, next_value(r));
        spw_param param = {.name = "t",
                           .data = r->p[t],
                           .grad = r->g[t],
                           .n = sizes[t],
                           .type = p_type(r, t),
                           .grad_type = g_type(r, t)};
        assert_int_equal(spw_optim_add(r->optim, &param), t);
    }
}

static void rig_open(rig *r, const setup *s)
{
    memset(r, 0, sizeof *r);
    r->chance = 7;
    r->mixed = s->mixed;
    spw_device_config device;
    spw_device_config_default(&device);
    device.mem = s->mem;
    device.threads = s->threads;
    assert_int_equal(spw_device_open("cpu", &device, &r->device), 0);
    assert_int_equal(spw_pager_create(r->device, &s->pager, &r->pager), 0);
    spw_optim_config config;
    spw_optim_config_default(&config);
    config.state = s->state;
    config.group.weight_decay = 0.01;
    assert_int_equal(spw_optim_create(r->pager, &config, &r->optim), 0);
    add_tensors(r);
}

static void rig_close(rig *r)
{
    spw_optim_destroy(r->optim);
    spw_pager_destroy(r->pager);
    spw_device_close(r->device);
    for (int t = 0; t < N_TENSORS; t++) {
        free(r->p[t]);
        free(r->g[t]);
    }
}

/* Steps with clipping; tensor 6 has no gradient in odd steps; a spike takes the device in step 3.
 */
static void train(rig *r)
{
    for (int i = 0; i < STEPS; i++) {
        fill_gradients(r);
        assert_int_equal(spw_optim_set_pointers(r->optim, 6, r->p[6], i % 2 ? NULL : r->g[6]), 0);
        void *spike = NULL;
        if (i == 3 && spw_malloc(r->pager, 900 << 10, &spike) == 0)
            spw_free(r->pager, spike);
        spw_step step = {.lr = 1e-2, .max_norm = 1.0};
        assert_int_equal(spw_optim_step(r->optim, &step), 0);
    }
}

/* Parameters and all parts of the state, one after another; free() it. */
static char *everything(rig *r, size_t *bytes)
{
    size_t n = 0;
    for (int t = 0; t < N_TENSORS; t++) {
        n += sizes[t] * sizeof(float);
        for (int part = 0; part < 4; part++)
            n += (size_t)spw_optim_part_bytes(r->optim, (uint64_t)t, (spw_part)part);
    }
    char *all = malloc(n), *at = all;
    for (int t = 0; t < N_TENSORS; t++) {
        memcpy(at, r->p[t], sizes[t] * sizeof(float));
        at += sizes[t] * sizeof(float);
        for (int part = 0; part < 4; part++) {
            int64_t size = spw_optim_part_bytes(r->optim, (uint64_t)t, (spw_part)part);
            assert_int_equal(
                spw_optim_get_part(r->optim, (uint64_t)t, (spw_part)part, at, (uint64_t)size), 0);
            at += size;
        }
    }
    *bytes = n;
    return all;
}

static char *result_of(const setup *s, size_t *bytes)
{
    rig r;
    rig_open(&r, s);
    train(&r);
    char *all = everything(&r, bytes);
    rig_close(&r);
    return all;
}

static void assert_same_as(const setup *s, const char *expected, size_t expected_bytes)
{
    size_t bytes;
    char *got = result_of(s, &bytes);
    assert_int_equal(bytes, expected_bytes);
    assert_memory_equal(got, expected, bytes);
    free(got);
}

static void check_same_bits(spw_state state, bool mixed)
{
    setup s = default_setup();
    s.state = state;
    s.mixed = mixed;
    s.pager.paging = SPW_PAGING_OFF;
    size_t bytes;
    char *expected = result_of(&s, &bytes);
    static const double percents[] = {0, 25, 50, 100};
    for (int i = 0; i < 32; i++) {
        char path[64];
        s = default_setup();
        s.state = state;
        s.mixed = mixed;
        s.threads = 1u << (i % 4);
        s.mem = i % 3 ? 2 << 20 : 0;
        s.pager.paging = i % 8 == 7 ? SPW_PAGING_MAPPED : SPW_PAGING_COPY;
        s.pager.state_percent = percents[i / 2 % 4];
        s.pager.page_bytes = UINT64_C(65536) << (i % 2);
        (void)snprintf(path, sizeof path, "file:/tmp/spw-test-opt-%ld-%d", (long)getpid(), i);
        s.pager.store = i % 5 == 1 && s.pager.paging == SPW_PAGING_COPY ? path : "ram";
        assert_same_as(&s, expected, bytes);
    }
    free(expected);
}

static void same_bits_32bit(void **unused)
{
    (void)unused;
    check_same_bits(SPW_STATE_32BIT, false);
}

static void same_bits_8bit(void **unused)
{
    (void)unused;
    check_same_bits(SPW_STATE_8BIT, false);
}

static void same_bits_of_all_pairs_of_types(void **unused)
{
    (void)unused;
    check_same_bits(SPW_STATE_32BIT, true);
    check_same_bits(SPW_STATE_8BIT, true);
}

/* Group 0 gets other betas, as schedules that cycle them do. */
static void change_betas(rig *r)
{
    spw_group group;
    spw_group_default(&group);
    group.beta1 = 0.8;
    group.beta2 = 0.99;
    assert_int_equal(spw_optim_set_group(r->optim, 0, &group), 0);
}

static void a_parameter_put_into_another_group_follows_it(void **unused)
{
    (void)unused;
    setup s = default_setup();
    rig r;
    rig_open(&r, &s);
    train(&r);
    spw_group still;
    spw_group_default(&still);
    still.lr_scale = 0;
    int group = spw_optim_add_group(r.optim, &still);
    assert_int_equal(spw_optim_set_param_group(r.optim, 1, (uint32_t)group), 0);
    assert_int_equal(spw_optim_set_param_group(r.optim, 1, (uint32_t)group + 1), SPW_EINVAL);
    assert_int_equal(spw_optim_set_param_group(r.optim, N_TENSORS, 0), SPW_EINVAL);
    float before[2] = {r.p[1][0], r.p[2][0]};
    train(&r);
    assert_true(r.p[1][0] == before[0]);
    assert_true(r.p[2][0] != before[1]);
    rig_close(&r);
}

static void state_taken_out_and_put_back_goes_on_alike(void **unused)
{
    (void)unused;
    setup s = default_setup();
    s.state = SPW_STATE_8BIT;
    rig a, b;
    rig_open(&a, &s);
    train(&a);
    change_betas(&a);
    rig_open(&b, &s);
    change_betas(&b);
    for (uint64_t t = 0; t < N_TENSORS; t++) {
        uint64_t steps;
        memcpy(b.p[t], a.p[t], sizes[t] * sizeof(float));
        assert_int_equal(spw_optim_get_step(a.optim, t, &steps), 0);
        assert_int_equal(spw_optim_set_step(b.optim, t, steps), 0);
        for (int part = 0; part < 4; part++) {
            uint64_t n = (uint64_t)spw_optim_part_bytes(a.optim, t, (spw_part)part);
            void *copy = malloc(n + 1);
            assert_int_equal(spw_optim_get_part(a.optim, t, (spw_part)part, copy, n), 0);
            assert_int_equal(spw_optim_set_part(b.optim, t, (spw_part)part, copy, n), 0);
            free(copy);
        }
    }
    b.chance = a.chance;
    train(&a);
    train(&b);
    size_t bytes;
    char *of_a = everything(&a, &bytes), *of_b = everything(&b, &bytes);
    assert_memory_equal(of_a, of_b, bytes);
    free(of_a);
    free(of_b);
    rig_close(&a);
    rig_close(&b);
}

static void no_gradient_leaves_a_parameter_alone(void **unused)
{
    (void)unused;
    setup s = default_setup();
    rig r;
    rig_open(&r, &s);
    fill_gradients(&r);
    float before = r.p[4][5];
    for (uint64_t t = 0; t < N_TENSORS; t++)
        assert_int_equal(spw_optim_set_pointers(r.optim, t, r.p[t], NULL), 0);
    assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = 1}), 0);
    uint64_t step;
    assert_int_equal(spw_optim_get_step(r.optim, 4, &step), 0);
    assert_int_equal(step, 0);
    assert_true(r.p[4][5] == before);
    rig_close(&r);
}

static void a_norm_that_is_not_finite_skips_the_step(void **unused)
{
    (void)unused;
    setup s = default_setup();
    rig r;
    rig_open(&r, &s);
    train(&r);
    size_t bytes;
    char *before = everything(&r, &bytes);
    fill_gradients(&r);
    r.g[7][77] = INFINITY;
    assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = 1, .max_norm = 1}), 0);
    char *after = everything(&r, &bytes);
    assert_memory_equal(before, after, bytes);
    spw_optim_info info;
    assert_int_equal(spw_optim_info_get(r.optim, &info), 0);
    assert_int_equal(info.skipped, 1);
    assert_int_equal(info.steps, STEPS);
    free(before);
    free(after);
    rig_close(&r);
}

static void an_element_that_is_not_finite_is_skipped(void **unused)
{
    (void)unused;
    for (int state = 0; state < 2; state++) {
        setup s = default_setup();
        s.state = (spw_state)state;
        rig r;
        rig_open(&r, &s);
        train(&r);
        fill_gradients(&r);
        float bad = r.p[7][77], good = r.p[7][78];
        r.g[7][77] = NAN;
        assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = 1e-2}), 0);
        assert_true(r.p[7][77] == bad);
        assert_true(r.p[7][78] != good);
        for (uint64_t i = 0; i < sizes[7]; i++)
            assert_true(isfinite(r.p[7][i]));
        rig_close(&r);
    }
}

static void out_of_memory_at_the_first_step_loses_nothing(void **unused)
{
    (void)unused;
    setup s = default_setup();
    s.mem = 1 << 20;
    s.pager.paging = SPW_PAGING_COPY;
    rig r;
    rig_open(&r, &s);
    fill_gradients(&r);
    void *ballast;
    assert_int_equal(spw_malloc(r.pager, 900 << 10, &ballast), 0);
    float before = r.p[0][0];
    assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = 1e-2}), SPW_ENOMEM);
    assert_true(r.p[0][0] == before);
    spw_free(r.pager, ballast);
    assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = 1e-2}), 0);
    assert_true(r.p[0][0] != before);
    rig_close(&r);
}

static void refuses_bad_arguments(void **unused)
{
    (void)unused;
    setup s = default_setup();
    rig r;
    rig_open(&r, &s);
    spw_optim *second;
    assert_int_equal(spw_optim_create(r.pager, NULL, &second), SPW_EBUSY);
    spw_group group;
    spw_group_default(&group);
    group.beta2 = 1;
    assert_int_equal(spw_optim_add_group(r.optim, &group), SPW_EINVAL);
    assert_non_null(strstr(spw_last_error(), "beta2"));
    assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = NAN}), SPW_EINVAL);
    assert_int_equal(spw_optim_set_pointers(r.optim, 99, NULL, NULL), SPW_EINVAL);
    spw_param param = {.name = "late", .data = r.p[0], .n = 1, .group = 5};
    assert_int_equal(spw_optim_add(r.optim, &param), SPW_EINVAL);
    float one;
    assert_int_equal(spw_optim_get_part(r.optim, 0, SPW_PART_M, &one, 3), SPW_EINVAL);
    assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = 0}), 0);
    param.group = 0;
    assert_int_equal(spw_optim_add(r.optim, &param), SPW_EINVAL);
    rig_close(&r);
}

static void refuses_what_is_no_type(void **unused)
{
    (void)unused;
    setup s = default_setup();
    rig r;
    rig_open(&r, &s);
    static uint16_t p[4], g[4];
    spw_param param = {.name = "h", .data = p, .grad = g, .n = 4, .type = SPW_FP16};
    param.grad_type = (spw_type)(SPW_FP16 + 1);
    assert_int_equal(spw_optim_add(r.optim, &param), SPW_EINVAL);
    param.grad_type = SPW_FP16;
    param.type = (spw_type)(SPW_FP16 + 1);
    assert_int_equal(spw_optim_add(r.optim, &param), SPW_EINVAL);
    assert_non_null(strstr(spw_last_error(), "spw_type"));
    param.type = SPW_FP16;
    assert_int_equal(spw_optim_add(r.optim, &param), N_TENSORS);
    rig_close(&r);
}

static void groups_scale_the_learning_rate(void **unused)
{
    (void)unused;
    setup s = default_setup();
    rig r;
    rig_open(&r, &s);
    spw_group group;
    spw_group_default(&group);
    group.lr_scale = 0;
    int index = spw_optim_add_group(r.optim, &group);
    assert_int_equal(index, 1);
    float p[3] = {1, 2, 3}, g[3] = {1, 1, 1};
    spw_param param = {.name = "still", .data = p, .grad = g, .n = 3, .group = 1};
    assert_int_equal(spw_optim_add(r.optim, &param), N_TENSORS);
    assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = 0.5}), 0);
    assert_true(p[0] == 1 && p[1] == 2 && p[2] == 3);
    group.lr_scale = 1;
    assert_int_equal(spw_optim_set_group(r.optim, 1, &group), 0);
    assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = 0.5}), 0);
    assert_true(p[0] < 1);
    rig_close(&r);
}

/* As torch.amp.GradScaler uses them: a scale and a verdict that lie on the device. */
static void a_loss_scale_is_divided_out_and_found_inf_skips(void **unused)
{
    (void)unused;
    setup s = default_setup();
    rig plain, scaled;
    rig_open(&plain, &s);
    rig_open(&scaled, &s);
    float loss_scale = 1024, found_inf = 0;
    spw_step told = {.lr = 1e-2, .loss_scale = &loss_scale, .found_inf = &found_inf};
    for (int i = 0; i < 3; i++) {
        fill_gradients(&plain);
        fill_gradients(&scaled);
        for (int t = 0; t < N_TENSORS; t++)
            for (uint64_t k = 0; k < sizes[t]; k++)
                scaled.g[t][k] *= loss_scale;
        assert_int_equal(spw_optim_step(plain.optim, &(spw_step){.lr = 1e-2}), 0);
        assert_int_equal(spw_optim_step(scaled.optim, &told), 0);
    }
    size_t bytes;
    char *expected = everything(&plain, &bytes), *got = everything(&scaled, &bytes);
    assert_memory_equal(expected, got, bytes);
    free(got);
    found_inf = 1;
    assert_int_equal(spw_optim_step(scaled.optim, &told), 0);
    got = everything(&scaled, &bytes);
    assert_memory_equal(expected, got, bytes);
    spw_optim_info info;
    assert_int_equal(spw_optim_info_get(scaled.optim, &info), 0);
    assert_int_equal(info.skipped, 1);
    assert_int_equal(info.steps, 3);
    free(expected);
    free(got);
    rig_close(&plain);
    rig_close(&scaled);
}

/* 8-bit state for a small tensor and 32-bit for a large one, when the parameter asks for it. */
static void a_parameter_may_say_its_states_bits(void **unused)
{
    (void)unused;
    setup s = default_setup();
    s.state = SPW_STATE_8BIT;
    rig r;
    rig_open(&r, &s);
    static float p[8192], g[8192];
    spw_param param = {.name = "b", .data = p, .grad = g, .n = 100, .bits = 8};
    int64_t small = spw_optim_add(r.optim, &param);
    param.n = 8192;
    param.bits = 32;
    int64_t large = spw_optim_add(r.optim, &param);
    assert_true(small >= 0 && large >= 0);
    assert_int_equal(spw_optim_part_bytes(r.optim, (uint64_t)small, SPW_PART_M), 100);
    assert_int_equal(spw_optim_part_bytes(r.optim, (uint64_t)small, SPW_PART_ABSMAX_M), 4);
    assert_int_equal(spw_optim_part_bytes(r.optim, (uint64_t)large, SPW_PART_M), 8192 * 4);
    param.bits = 4;
    assert_int_equal(spw_optim_add(r.optim, &param), SPW_EINVAL);
    rig_close(&r);
}

static void places_move_all_tensors_at_once(void **unused)
{
    (void)unused;
    setup s = default_setup();
    rig r;
    rig_open(&r, &s);
    fill_gradients(&r);
    spw_place places[N_TENSORS];
    for (int t = 0; t < N_TENSORS; t++)
        places[t] = (spw_place){.data = r.p[t]};
    static float p[64];
    static uint16_t g[64];
    for (int i = 0; i < 64; i++)
        g[i] = 0x3F80; /* 1 in bf16 */
    int moved = -1;
    for (int t = 0; t < N_TENSORS; t++)
        if (sizes[t] && sizes[t] <= 64)
            moved = t;
    assert_true(moved >= 0);
    places[moved] = (spw_place){.data = p, .grad = g, .grad_type = SPW_BF16};
    assert_int_equal(spw_optim_set_places(r.optim, places, N_TENSORS - 1), SPW_EINVAL);
    assert_int_equal(spw_optim_set_places(r.optim, places, N_TENSORS), 0);
    float before = r.p[0][0];
    assert_int_equal(spw_optim_step(r.optim, &(spw_step){.lr = 1e-2}), 0);
    assert_true(r.p[0][0] == before);
    for (uint64_t i = 0; i < sizes[moved]; i++)
        assert_true(p[i] < 0);
    places[moved].grad_type = (spw_type)7;
    places[0].data = NULL;
    assert_int_equal(spw_optim_set_places(r.optim, places, N_TENSORS), SPW_EINVAL);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_32bit),
        cmocka_unit_test(same_bits_8bit),
        cmocka_unit_test(same_bits_of_all_pairs_of_types),
        cmocka_unit_test(a_parameter_put_into_another_group_follows_it),
        cmocka_unit_test(state_taken_out_and_put_back_goes_on_alike),
        cmocka_unit_test(no_gradient_leaves_a_parameter_alone),
        cmocka_unit_test(a_norm_that_is_not_finite_skips_the_step),
        cmocka_unit_test(an_element_that_is_not_finite_is_skipped),
        cmocka_unit_test(a_loss_scale_is_divided_out_and_found_inf_skips),
        cmocka_unit_test(a_parameter_may_say_its_states_bits),
        cmocka_unit_test(places_move_all_tensors_at_once),
        cmocka_unit_test(out_of_memory_at_the_first_step_loses_nothing),
        cmocka_unit_test(refuses_bad_arguments),
        cmocka_unit_test(refuses_what_is_no_type),
        cmocka_unit_test(groups_scale_the_learning_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
