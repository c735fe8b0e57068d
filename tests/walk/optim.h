/*
 * optim.h - a random walk over an optimizer: one whose state is paged, beside the same one with all
 * of it in plain memory. After any operations they hold the same bits.
 *
 * An episode is one pair of optimizers with types, sizes, groups and configuration by chance, then
 * operations by chance; episodes follow each other until the walk is long enough. What differs
 * between devices is the test program's: it fills a `walk_place`.
 */
#ifndef SPW_TESTS_WALK_OPTIM_H
#define SPW_TESTS_WALK_OPTIM_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "walk/chance.h"

#include <math.h>
#include <stdio.h>

enum { N_TENSORS = 10, N_PIECES = 6, EPISODE = 150, USUAL_OPS = 5 * EPISODE, MIB = 1 << 20 };

/* Where the paged one lives. */
typedef struct walk_place {
    const char *device; /* "cpu" or "cuda:0" */
    spw_device_config device_config;
    spw_pager_config config;
    void *stream;     /* the caller's */
    uint64_t largest; /* elements of the largest tensor, 65536 at least */
    bool crowded;     /* other threads take memory meanwhile */
} walk_place;

typedef struct rig {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    void *stream;
    void *p[N_TENSORS], *g[N_TENSORS]; /* device memory */
    float *flags;                      /* device memory: the loss's scale, whether it overflowed */
} rig;

typedef struct walk {
    uint64_t seed, chance;
    uint64_t sizes[N_TENSORS]; /* elements */
    spw_param params[N_TENSORS];
    rig plain, paged;
    void *pieces[N_PIECES]; /* of the paged one's device */
    char *host[2];          /* each for the largest tensor or part */
    spw_pager_stats seen;   /* of the paged one, all episodes: bytes moved, reclaims */
} walk;

static inline uint64_t draw(walk *w, uint64_t n)
{
    return chance_below(&w->chance, n);
}

static inline void must(const walk *w, int64_t rc, const char *what)
{
    if (rc < 0)
        fail_msg("%s; SPW_WALK_SEED=%llu; %s", what, (unsigned long long)w->seed, spw_last_error());
}

static inline void must_agree(const walk *w, bool agree, const char *what, uint64_t tensor)
{
    if (!agree)
        fail_msg("%s of tensor %llu differs; SPW_WALK_SEED=%llu", what, (unsigned long long)tensor,
                 (unsigned long long)w->seed);
}

/* ----------------------------------------------------------------------------------- values -- */

static inline uint64_t type_bytes(spw_type type)
{
    return type == SPW_FP32 ? 4 : 2;
}

static inline void put_value(char *data, spw_type type, uint64_t i, float value)
{
    uint16_t half = type == SPW_BF16 ? spw__bf16_of_float(value) : spw__fp16_of_float(value);
    if (type == SPW_FP32)
        memcpy(data + 4 * i, &value, 4);
    else
        memcpy(data + 2 * i, &half, 2);
}

/* -1 to 1, or 0 to 1. */
static inline float real_value(walk *w, bool positive)
{
    float share = (float)(chance_next(&w->chance) >> 40) / (float)(1 << 24);
    return positive ? share : 2 * share - 1;
}

/* Fills host memory; one element in some tensors is no number. */
static inline void make_values(walk *w, char *data, spw_type type, uint64_t n, bool finite)
{
    for (uint64_t i = 0; i < n; i++)
        put_value(data, type, i, real_value(w, false));
    if (!finite && n && draw(w, 20) == 0)
        put_value(data, type, draw(w, n), draw(w, 2) ? INFINITY : NAN);
}

/* What was queued may still read or write what a test is about to change. */
static inline void settle(const walk *w, const rig *r)
{
    must(w, spw_device_sync(r->device, r->stream), "sync");
}

static inline void upload(const walk *w, const rig *r, void *dst, const void *src, uint64_t bytes)
{
    must(w, spw_device_copy(r->device, dst, src, bytes), "upload");
}

/* --------------------------------------------------------------------------------- episodes -- */

static inline void draw_tensors(walk *w, uint64_t largest)
{
    static const uint64_t sizes[] = {1, 255, 4096, 0, 20001, 256, 5000, 33, 4097, 65536};
    uint64_t large = draw(w, N_TENSORS);
    for (uint64_t t = 0; t < N_TENSORS; t++) {
        w->sizes[t] = t == large ? draw(w, largest) : sizes[t];
        w->params[t] = (spw_param){.name = "t",
                                   .n = w->sizes[t],
                                   .type = (spw_type)draw(w, 3),
                                   .grad_type = (spw_type)draw(w, 3),
                                   .group = (uint32_t)draw(w, 2),
                                   .bits = draw(w, 4) ? 0 : 32};
    }
    for (int i = 0; i < 2; i++) {
        w->host[i] = malloc(largest * sizeof(float));
        assert_non_null(w->host[i]);
    }
}

static inline void add_tensors(walk *w, rig *r)
{
    uint64_t before = w->chance; /* both rigs get the same */
    for (uint64_t t = 0; t < N_TENSORS; t++) {
        spw_param *param = &w->params[t];
        uint64_t p_bytes = param->n * type_bytes(param->type);
        must(w, spw_malloc(r->pager, p_bytes, &r->p[t]), "parameter");
        must(w, spw_malloc(r->pager, param->n * sizeof(float), &r->g[t]), "gradient");
        make_values(w, w->host[0], param->type, param->n, true);
        upload(w, r, r->p[t], w->host[0], p_bytes);
        make_values(w, w->host[0], param->grad_type, param->n, true);
        upload(w, r, r->g[t], w->host[0], param->n * type_bytes(param->grad_type));
        param->data = r->p[t];
        param->grad = r->g[t];
        must(w, spw_optim_add(r->optim, param), "add");
    }
    must(w, spw_malloc(r->pager, 2 * sizeof *r->flags, (void **)&r->flags), "flags");
    upload(w, r, r->flags, (float[2]){1, 0}, 2 * sizeof *r->flags);
    if (r == &w->plain)
        w->chance = before;
}

static inline void open_rig(walk *w, rig *r, const walk_place *place, const spw_optim_config *optim)
{
    spw_group second;
    spw_group_default(&second);
    second.lr_scale = 0.5;
    r->stream = place->stream;
    must(w, spw_device_open(place->device, &place->device_config, &r->device), "device");
    must(w, spw_pager_create(r->device, &place->config, &r->pager), "pager");
    must(w, spw_optim_create(r->pager, optim, &r->optim), "optimizer");
    must(w, spw_optim_add_group(r->optim, &second), "group");
    add_tensors(w, r);
}

static inline void close_rig(rig *r)
{
    spw_optim_destroy(r->optim);
    for (int t = 0; t < N_TENSORS; t++) {
        spw_free(r->pager, r->p[t]);
        spw_free(r->pager, r->g[t]);
    }
    spw_free(r->pager, r->flags);
    spw_pager_destroy(r->pager);
    spw_device_close(r->device);
}

/* The plain one: on the cpu, all state in place, one thread. */
static inline void walk_open(walk *w, const walk_place *place)
{
    walk_place plain = {.device = "cpu"};
    spw_device_config_default(&plain.device_config);
    spw_pager_config_default(&plain.config);
    plain.device_config.mem = 32 * MIB;
    plain.device_config.threads = 1;
    plain.config.paging = SPW_PAGING_OFF;
    spw_optim_config optim;
    spw_optim_config_default(&optim);
    optim.state = draw(w, 2) ? SPW_STATE_8BIT : SPW_STATE_32BIT;
    optim.min_8bit_elements = draw(w, 2) ? 4096 : 1;
    optim.group.weight_decay = 0.01;
    draw_tensors(w, place->largest);
    open_rig(w, &w->plain, &plain, &optim);
    open_rig(w, &w->paged, place, &optim);
}

static inline void walk_close(walk *w)
{
    for (int i = 0; i < N_PIECES; i++)
        spw_free(w->paged.pager, w->pieces[i]);
    close_rig(&w->paged);
    close_rig(&w->plain);
    for (int i = 0; i < N_PIECES; i++)
        w->pieces[i] = NULL;
    free(w->host[0]);
    free(w->host[1]);
}

/* ------------------------------------------------------------------------------- operations -- */

/* A step that found no room for the ring may be repeated: only the first one can, and only while
 * another thread has that room. */
static inline void do_step(walk *w, bool is_first)
{
    static const double scales[] = {0, 0, 1, 0.5};
    spw_step step = {.lr = 1e-3 * (double)(1 + draw(w, 9)),
                     .max_norm = draw(w, 2) ? 1 : 0,
                     .grad_scale = scales[draw(w, 4)]};
    bool flags = draw(w, 4) == 0;
    rig *both[] = {&w->plain, &w->paged};
    for (int i = 0; i < 2; i++) {
        step.stream = both[i]->stream;
        step.loss_scale = flags ? both[i]->flags : NULL;
        step.found_inf = flags ? both[i]->flags + 1 : NULL;
        int rc = spw_optim_step(both[i]->optim, &step);
        for (int tries = 0; rc == SPW_ENOMEM && is_first && tries < 1000; tries++)
            rc = spw_optim_step(both[i]->optim, &step);
        must(w, rc, "step");
    }
}

static inline void do_flags(walk *w)
{
    const float flags[2] = {draw(w, 2) ? 1.0f : 1024.0f, draw(w, 4) ? 0.0f : 1.0f};
    settle(w, &w->paged);
    upload(w, &w->plain, w->plain.flags, flags, sizeof flags);
    upload(w, &w->paged, w->paged.flags, flags, sizeof flags);
}

static inline void do_gradient(walk *w)
{
    uint64_t t = draw(w, N_TENSORS);
    const spw_param *param = &w->params[t];
    uint64_t bytes = param->n * type_bytes(param->grad_type);
    make_values(w, w->host[0], param->grad_type, param->n, false);
    settle(w, &w->paged);
    upload(w, &w->plain, w->plain.g[t], w->host[0], bytes);
    upload(w, &w->paged, w->paged.g[t], w->host[0], bytes);
}

/* The next steps see the tensor with a gradient, or without. */
static inline void do_presence(walk *w)
{
    uint64_t t = draw(w, N_TENSORS);
    bool there = draw(w, 2);
    rig *both[] = {&w->plain, &w->paged};
    for (int i = 0; i < 2; i++)
        must(w,
             spw_optim_set_pointers(both[i]->optim, t, both[i]->p[t], there ? both[i]->g[t] : NULL),
             "pointers");
}

/* A parameter moves to other memory, with its gradient there; types of gradients change. */
static inline void do_places(walk *w)
{
    spw_place places[2][N_TENSORS];
    rig *both[] = {&w->plain, &w->paged};
    uint64_t moved = draw(w, N_TENSORS);
    uint64_t bytes = w->sizes[moved] * type_bytes(w->params[moved].type);
    w->params[moved].grad_type = (spw_type)draw(w, 3);
    make_values(w, w->host[1], w->params[moved].grad_type, w->sizes[moved], true);
    for (int i = 0; i < 2; i++) {
        rig *r = both[i];
        void *place;
        settle(w, r);
        must(w, spw_device_copy(r->device, w->host[0], r->p[moved], bytes), "download");
        if (spw_malloc(r->pager, bytes, &place) == 0) { /* else it stays where it is */
            upload(w, r, place, w->host[0], bytes);
            spw_free(r->pager, r->p[moved]);
            r->p[moved] = place;
        }
        upload(w, r, r->g[moved], w->host[1],
               w->sizes[moved] * type_bytes(w->params[moved].grad_type));
        for (int t = 0; t < N_TENSORS; t++)
            places[i][t] = (spw_place){r->p[t], r->g[t], w->params[t].grad_type, 0};
        must(w, spw_optim_set_places(r->optim, places[i], N_TENSORS), "places");
    }
}

static inline void do_group(walk *w)
{
    spw_group group;
    spw_group_default(&group);
    group.lr_scale = 0.25 * (double)draw(w, 5);
    group.beta1 = 0.8 + 0.01 * (double)draw(w, 19);
    group.weight_decay = 0.01 * (double)draw(w, 3);
    uint32_t index = (uint32_t)draw(w, 2);
    must(w, spw_optim_set_group(w->plain.optim, index, &group), "group");
    must(w, spw_optim_set_group(w->paged.optim, index, &group), "group");
}

/* Bytes of a part that a tensor has; 0: none was drawn. */
static inline uint64_t draw_part(walk *w, uint64_t *tensor, spw_part *part)
{
    *tensor = draw(w, N_TENSORS);
    *part = (spw_part)draw(w, 4);
    int64_t bytes = spw_optim_part_bytes(w->paged.optim, *tensor, *part);
    must(w, bytes, "part");
    return (uint64_t)bytes;
}

/* Moments as a checkpoint might bring them: v and scales are not negative. */
static inline void do_set_part(walk *w)
{
    uint64_t t;
    spw_part part;
    uint64_t bytes = draw_part(w, &t, &part);
    bool codes = spw_optim_part_bytes(w->paged.optim, t, SPW_PART_ABSMAX_M) > 0;
    bool floats = !codes || part == SPW_PART_ABSMAX_M || part == SPW_PART_ABSMAX_V;
    for (uint64_t i = 0; i < (floats ? bytes / 4 : 0); i++)
        put_value(w->host[0], SPW_FP32, i, real_value(w, part != SPW_PART_M));
    for (uint64_t i = 0; i < (floats ? 0 : bytes); i++)
        w->host[0][i] = (char)draw(w, 256);
    must(w, spw_optim_set_part(w->plain.optim, t, part, w->host[0], bytes), "set part");
    must(w, spw_optim_set_part(w->paged.optim, t, part, w->host[0], bytes), "set part");
}

static inline void compare_part(walk *w, uint64_t t, spw_part part)
{
    int64_t n = spw_optim_part_bytes(w->plain.optim, t, part);
    must(w, n, "part");
    uint64_t bytes = (uint64_t)n;
    must(w, spw_optim_get_part(w->plain.optim, t, part, w->host[0], bytes), "get part");
    must(w, spw_optim_get_part(w->paged.optim, t, part, w->host[1], bytes), "get part");
    must_agree(w, memcmp(w->host[0], w->host[1], bytes) == 0, "a part", t);
}

static inline void do_get_part(walk *w)
{
    uint64_t t;
    spw_part part;
    if (draw_part(w, &t, &part))
        compare_part(w, t, part);
}

static inline void do_set_step(walk *w)
{
    uint64_t t = draw(w, N_TENSORS), number = draw(w, 100);
    must(w, spw_optim_set_step(w->plain.optim, t, number), "set step");
    must(w, spw_optim_set_step(w->paged.optim, t, number), "set step");
}

static inline void do_norm(walk *w)
{
    double plain, paged;
    settle(w, &w->paged);
    must(w, spw_optim_grad_norm(w->plain.optim, &plain), "norm");
    must(w, spw_optim_grad_norm(w->paged.optim, &paged), "norm");
    must_agree(w, memcmp(&plain, &paged, sizeof plain) == 0, "the norm", 0);
}

static inline uint64_t room_of(const walk *w)
{
    spw_device_stats stats;
    must(w, spw_device_stats_get(w->paged.device, &stats), "statistics");
    return stats.capacity_bytes - stats.in_use_bytes + stats.frame_bytes;
}

static inline void take_piece(walk *w, uint64_t i, uint64_t bytes)
{
    spw_free(w->paged.pager, w->pieces[i]);
    w->pieces[i] = NULL;
    int rc = spw_malloc(w->paged.pager, bytes, &w->pieces[i]);
    if (rc != SPW_ENOMEM)
        must(w, rc, "piece");
}

/* Somebody's tensors come and go. */
static inline void do_piece(walk *w)
{
    uint64_t i = draw(w, N_PIECES);
    take_piece(w, i, draw(w, 3) ? draw(w, room_of(w) / 8 + 1) : 0);
}

/* Up to all that is there and all that state has, for a moment. */
static inline void do_spike(walk *w)
{
    uint64_t i = draw(w, N_PIECES);
    take_piece(w, i, draw(w, room_of(w) + 1));
    take_piece(w, i, 0);
}

static inline void do_reclaim(walk *w)
{
    must(w, spw_pager_reclaim(w->paged.pager, draw(w, 2 * MIB), NULL), "reclaim");
}

static inline void do_reserve(walk *w)
{
    must(w, spw_pager_reserve(w->paged.pager, draw(w, 2 * MIB)), "reserve");
}

/* Everything: parameters, moments, counts. */
static inline void do_compare(walk *w)
{
    spw_optim_info info[2];
    uint64_t step[2];
    settle(w, &w->paged);
    for (uint64_t t = 0; t < N_TENSORS; t++) {
        uint64_t bytes = w->sizes[t] * type_bytes(w->params[t].type);
        must(w, spw_device_copy(w->plain.device, w->host[0], w->plain.p[t], bytes), "download");
        must(w, spw_device_copy(w->paged.device, w->host[1], w->paged.p[t], bytes), "download");
        must_agree(w, memcmp(w->host[0], w->host[1], bytes) == 0, "the data", t);
        for (int part = SPW_PART_M; part <= SPW_PART_ABSMAX_V; part++)
            compare_part(w, t, (spw_part)part);
        must(w, spw_optim_get_step(w->plain.optim, t, &step[0]), "get step");
        must(w, spw_optim_get_step(w->paged.optim, t, &step[1]), "get step");
        must_agree(w, step[0] == step[1], "the step", t);
    }
    must(w, spw_optim_info_get(w->plain.optim, &info[0]), "info");
    must(w, spw_optim_info_get(w->paged.optim, &info[1]), "info");
    must_agree(w, memcmp(&info[0], &info[1], sizeof info[0]) == 0, "the count", 0);
}

typedef struct operation {
    void (*run)(walk *w);
    uint32_t weight;
} operation;

static inline void do_next_step(walk *w)
{
    do_step(w, false);
}

static inline void do_something(walk *w)
{
    static const operation operations[] = {
        {do_next_step, 30}, {do_gradient, 12}, {do_presence, 5}, {do_places, 3},   {do_flags, 3},
        {do_group, 2},      {do_set_part, 5},  {do_get_part, 6}, {do_set_step, 1}, {do_norm, 2},
        {do_piece, 12},     {do_spike, 2},     {do_reclaim, 8},  {do_reserve, 6},  {do_compare, 3},
    };
    uint64_t at = draw(w, 100);
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        if (at < operations[i].weight) {
            operations[i].run(w);
            return;
        }
        at -= operations[i].weight;
    }
    fail_msg("the weights are less than 100");
}

static inline void add_stats(walk *w)
{
    spw_pager_stats stats;
    must(w, spw_pager_stats_get(w->paged.pager, &stats), "statistics");
    w->seen.bytes_in += stats.bytes_in;
    w->seen.bytes_out += stats.bytes_out;
    w->seen.reclaims += stats.reclaims;
}

/* Seeds follow each other; the first one by the environment. */
static inline void walk_begin(walk *w, uint64_t number)
{
    w->seed = walk_seed() + number;
    w->chance = w->seed * 2 + 1;
}

/* A walk of some length has met what it is about. */
static inline void walk_has_paged(const walk *w, uint64_t ops)
{
    if (ops >= USUAL_OPS)
        assert_true(w->seen.bytes_in && w->seen.bytes_out && w->seen.reclaims);
}

static inline void walk_episode(walk *w, const walk_place *place)
{
    tenant tenants[N_TENANTS];
    walk_open(w, place);
    if (place->crowded)
        assert_true(tenants_begin(tenants, w->paged.pager, w->seed, MIB));
    do_step(w, true);
    for (int i = 0; i < EPISODE; i++)
        do_something(w);
    if (place->crowded)
        tenants_end(tenants);
    do_compare(w);
    add_stats(w);
    walk_close(w);
}

#endif
