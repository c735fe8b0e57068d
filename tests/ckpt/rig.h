/* An optimizer over tensors with tails, tiny ones, one that spans pages and an empty one, whose
 * gradients come from a generator: two rigs of one chance and one state go on alike. */
#ifndef SPW_TESTS_CKPT_RIG_H
#define SPW_TESTS_CKPT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <spillway/spillway.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t sizes[] = {1, 255, 4096, 0, 70001, 256, 5000, 131072, 33};
enum { N_TENSORS = sizeof sizes / sizeof *sizes, N_PARTS = 4 };

typedef struct setup {
    const char *device;
    spw_pager_config pager;
    uint64_t mem;
    spw_state state;
    bool backwards; /* registered in the reverse order */
} setup;

typedef struct rig {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    float *p[N_TENSORS], *g[N_TENSORS];        /* on the host */
    void *dev_p[N_TENSORS], *dev_g[N_TENSORS]; /* where the optimizer has them */
    uint64_t index[N_TENSORS];                 /* in the optimizer */
    uint64_t chance;
} rig;

static inline setup plain_setup(spw_state state)
{
    setup s = {.device = "cpu", .state = state};
    spw_pager_config_default(&s.pager);
    return s;
}

static inline float next_value(rig *r)
{
    r->chance = r->chance * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(r->chance >> 40) / (1 << 23) - 1.0);
}

static inline void rig_to_device(rig *r, void *to, const float *from, int t)
{
    assert_int_equal(spw_device_copy(r->device, to, from, sizes[t] * sizeof(float)), 0);
}

/* The host's copy of the parameters is brought up to date. */
static inline void rig_fetch(rig *r)
{
    assert_int_equal(spw_device_sync(r->device, NULL), 0);
    for (int t = 0; t < N_TENSORS; t++)
        assert_int_equal(spw_device_copy(r->device, r->p[t], r->dev_p[t], sizes[t] * sizeof(float)),
                         0);
}

static inline void rig_add(rig *r, int t)
{
    char name[32];
    (void)snprintf(name, sizeof name, "layer.%d.weight", t);
    r->p[t] = calloc(sizes[t] + 1, sizeof(float));
    r->g[t] = calloc(sizes[t] + 1, sizeof(float));
    for (uint64_t i = 0; i < sizes[t]; i++)
        r->p[t][i] = 0.5f;
    assert_int_equal(spw_malloc(r->pager, sizes[t] * sizeof(float), &r->dev_p[t]), 0);
    assert_int_equal(spw_malloc(r->pager, sizes[t] * sizeof(float), &r->dev_g[t]), 0);
    rig_to_device(r, r->dev_p[t], r->p[t], t);
    spw_param param = {.name = name, .data = r->dev_p[t], .grad = r->dev_g[t], .n = sizes[t]};
    int64_t index = spw_optim_add(r->optim, &param);
    assert_true(index >= 0);
    r->index[t] = (uint64_t)index;
}

static inline void rig_open(rig *r, const setup *s)
{
    memset(r, 0, sizeof *r);
    r->chance = 7;
    spw_device_config device;
    spw_device_config_default(&device);
    device.mem = s->mem;
    device.threads = 2;
    assert_int_equal(spw_device_open(s->device, &device, &r->device), 0);
    assert_int_equal(spw_pager_create(r->device, &s->pager, &r->pager), 0);
    spw_optim_config config;
    spw_optim_config_default(&config);
    config.state = s->state;
    config.group.weight_decay = 0.01;
    assert_int_equal(spw_optim_create(r->pager, &config, &r->optim), 0);
    for (int t = 0; t < N_TENSORS; t++)
        rig_add(r, s->backwards ? N_TENSORS - 1 - t : t);
}

static inline void rig_close(rig *r)
{
    for (int t = 0; t < N_TENSORS; t++) {
        spw_free(r->pager, r->dev_p[t]);
        spw_free(r->pager, r->dev_g[t]);
    }
    spw_optim_destroy(r->optim);
    spw_pager_destroy(r->pager);
    spw_device_close(r->device);
    for (int t = 0; t < N_TENSORS; t++) {
        free(r->p[t]);
        free(r->g[t]);
    }
}

/* Tensor 6 has no gradient in odd steps, so parameters' steps differ. */
static inline void rig_step(rig *r, int number)
{
    assert_int_equal(spw_device_sync(r->device, NULL), 0);
    for (int t = 0; t < N_TENSORS; t++) {
        for (uint64_t i = 0; i < sizes[t]; i++)
            r->g[t][i] = next_value(r) * 0.1f;
        rig_to_device(r, r->dev_g[t], r->g[t], t);
    }
    const void *grad = number % 2 ? NULL : r->dev_g[6];
    assert_int_equal(spw_optim_set_pointers(r->optim, r->index[6], r->dev_p[6], grad), 0);
    assert_int_equal(spw_optim_step(r->optim, &(spw_step){.lr = 1e-2, .max_norm = 1e9}), 0);
}

static inline void rig_steps(rig *r, int from, int to)
{
    for (int i = from; i < to; i++)
        rig_step(r, i);
}

/* The other's parameters and place among the gradients, as a trainer keeps them itself. */
static inline void rig_take_parameters(rig *r, rig *from)
{
    rig_fetch(from);
    assert_int_equal(spw_device_sync(r->device, NULL), 0);
    r->chance = from->chance;
    for (int t = 0; t < N_TENSORS; t++)
        rig_to_device(r, r->dev_p[t], from->p[t], t);
}

static inline void assert_same_part(rig *a, rig *b, int t, spw_part part)
{
    uint64_t n = (uint64_t)spw_optim_part_bytes(a->optim, a->index[t], part);
    assert_int_equal(n, spw_optim_part_bytes(b->optim, b->index[t], part));
    char *of_a = malloc(n + 1), *of_b = malloc(n + 1);
    assert_int_equal(spw_optim_get_part(a->optim, a->index[t], part, of_a, n), 0);
    assert_int_equal(spw_optim_get_part(b->optim, b->index[t], part, of_b, n), 0);
    assert_memory_equal(of_a, of_b, n);
    free(of_a);
    free(of_b);
}

static inline void assert_same_state(rig *a, rig *b)
{
    rig_fetch(a);
    rig_fetch(b);
    for (int t = 0; t < N_TENSORS; t++) {
        uint64_t steps_a, steps_b;
        assert_int_equal(spw_optim_get_step(a->optim, a->index[t], &steps_a), 0);
        assert_int_equal(spw_optim_get_step(b->optim, b->index[t], &steps_b), 0);
        assert_int_equal(steps_a, steps_b);
        assert_memory_equal(a->p[t], b->p[t], sizes[t] * sizeof(float));
        for (int part = 0; part < N_PARTS; part++)
            assert_same_part(a, b, t, (spw_part)part);
    }
}

#endif
