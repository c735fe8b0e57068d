/*
 * faults.h - a small run of an optimizer in which one call fails, and what has to hold then.
 *
 * The test program makes the n-th call of some kind fail, for n = 1, 2, ... until a run passes
 * untouched (or every so many of them, where they are too many). Each run opens all there is, takes
 * steps with a spike between, reads and sets state, and closes. By spillway.h an error is followed
 * by one of two:
 *
 *   the call can be made again, and the run ends with the bits of a run without a fault;
 *   the pager answers SPW_EFAILED, and what no step touches is as it was.
 *
 * Nothing is left behind either way.
 */
#ifndef SPW_TESTS_OPT_FAULTS_H
#define SPW_TESTS_OPT_FAULTS_H

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

enum { TENSORS = 4, LARGEST = 40000, RUN_STEPS = 3, WITHOUT_GRADIENT = 2 };

static const uint64_t run_sizes[TENSORS] = {LARGEST, 300, 5000, 20000};

/* Makes the n-th call fail; 0 turns it off. What was left of the count before. */
typedef uint64_t (*injector)(uint64_t nth);

typedef struct run_kind {
    const char *device;
    uint64_t mem;   /* of the device */
    uint64_t spike; /* bytes */
    spw_pager_config pager;
    bool by_file;
    spw_state state;
    injector inject;
} run_kind;

typedef struct run {
    const run_kind *kind;
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    void *p[TENSORS], *g[TENSORS], *spike;
    float *host; /* LARGEST */
    int rc;      /* the first error */
    bool failed; /* the pager says so */
    uint64_t nth, left;
} run;

/* What a run without a fault leaves in the parameters. */
typedef struct outcome {
    float p[TENSORS][LARGEST];
} outcome;

static inline float run_value(int tensor, uint64_t i, int salt)
{
    return (float)((double)((i * 40503 + (uint64_t)(tensor * 77 + salt * 1234567)) % 2001) / 1000 -
                   1);
}

/* After the first error nothing fails any more. */
static inline bool went_well(run *r, int rc)
{
    if (rc == 0)
        return true;
    if (r->rc == 0) {
        r->rc = rc;
        r->left = r->kind->inject(0);
    }
    if (spw_last_error()[0] == '\0' || strchr(spw_last_error(), '\n'))
        fail_msg("call %llu: the error says \"%s\"", (unsigned long long)r->nth, spw_last_error());
    return false;
}

/* ------------------------------------------------------------------------------------ begin -- */

static inline int open_device(run *r)
{
    spw_device_config config;
    spw_device_config_default(&config);
    config.mem = r->kind->mem;
    config.threads = 1;
    return spw_device_open(r->kind->device, &config, &r->device);
}

static inline int create_pager(run *r)
{
    char path[64];
    static int n;
    spw_pager_config config = r->kind->pager;
    if (r->kind->by_file) {
        (void)snprintf(path, sizeof path, "file:/tmp/spw-faults-%ld-%d", (long)getpid(), n++);
        config.store = path;
    }
    return spw_pager_create(r->device, &config, &r->pager);
}

static inline int create_optim(run *r)
{
    spw_optim_config config;
    spw_optim_config_default(&config);
    config.state = r->kind->state;
    config.group.weight_decay = 0.01;
    return spw_optim_create(r->pager, &config, &r->optim);
}

static inline int upload_values(run *r, int t, void *dst, int salt)
{
    for (uint64_t i = 0; i < run_sizes[t]; i++)
        r->host[i] = run_value(t, i, salt);
    return spw_device_copy(r->device, dst, r->host, run_sizes[t] * sizeof(float));
}

static inline int add_tensor(run *r, int t)
{
    uint64_t bytes = run_sizes[t] * sizeof(float);
    int rc = r->p[t] ? 0 : spw_malloc(r->pager, bytes, &r->p[t]);
    if (rc == 0)
        rc = r->g[t] ? 0 : spw_malloc(r->pager, bytes, &r->g[t]);
    if (rc == 0)
        rc = upload_values(r, t, r->p[t], 1);
    if (rc == 0)
        rc = upload_values(r, t, r->g[t], 2);
    if (rc < 0)
        return rc;
    spw_param param = {
        .name = "t", .data = r->p[t], .grad = r->g[t], .n = run_sizes[t], .type = SPW_FP32};
    if (t == WITHOUT_GRADIENT)
        param.grad = NULL;
    return spw_optim_add(r->optim, &param) < 0 ? SPW_EINVAL : 0;
}

/* ------------------------------------------------------------------------------------- calls -- */

/* A call that failed is made once more. False: the pager has failed. */
static inline bool call(run *r, int (*function)(run *r, int argument), int argument)
{
    if (went_well(r, function(r, argument)))
        return true;
    int again = function(r, argument);
    r->failed = again == SPW_EFAILED;
    if (again < 0 && !(r->failed && strstr(spw_last_error(), "failed earlier")))
        fail_msg("call %llu: repeated, it says %d, %s", (unsigned long long)r->nth, again,
                 spw_last_error());
    return again == 0;
}

static inline int call_open(run *r, int unused)
{
    (void)unused;
    int rc = r->device ? 0 : open_device(r);
    if (rc == 0 && !r->pager)
        rc = create_pager(r);
    if (rc == 0 && !r->optim)
        rc = create_optim(r);
    return rc;
}

static inline int call_step(run *r, int number)
{
    return spw_optim_step(r->optim, &(spw_step){.lr = 1e-2, .max_norm = number == 1 ? 1 : 0});
}

/* A page that could not be saved stays, and the spike may find no room: that is no error. */
static inline int call_spike(run *r, int unused)
{
    (void)unused;
    int rc = spw_malloc(r->pager, r->kind->spike, &r->spike);
    spw_free(r->pager, rc == 0 ? r->spike : NULL);
    r->spike = NULL;
    return rc;
}

static inline int call_move_part(run *r, int unused)
{
    (void)unused;
    int64_t bytes = spw_optim_part_bytes(r->optim, 0, SPW_PART_M);
    int rc = spw_optim_get_part(r->optim, 0, SPW_PART_M, r->host, (uint64_t)bytes);
    return rc < 0 ? rc : spw_optim_set_part(r->optim, 0, SPW_PART_M, r->host, (uint64_t)bytes);
}

static inline int call_norm(run *r, int unused)
{
    double norm;
    (void)unused;
    return spw_optim_grad_norm(r->optim, &norm);
}

static inline int call_sync(run *r, int unused)
{
    (void)unused;
    return spw_device_sync(r->device, NULL);
}

static inline void make_calls(run *r)
{
    bool goes = call(r, call_open, 0);
    for (int t = 0; goes && t < TENSORS; t++)
        goes = call(r, add_tensor, t);
    for (int i = 0; goes && i < RUN_STEPS; i++) {
        goes = call(r, call_step, i);
        if (goes && i == 1)
            goes = call(r, call_spike, 0) && call(r, call_norm, 0);
        if (goes && i == 0)
            goes = call(r, call_move_part, 0);
    }
    if (goes)
        (void)call(r, call_sync, 0);
}

/* -------------------------------------------------------------------------------------- end -- */

static inline void download(run *r, int t, const void *src)
{
    assert_int_equal(spw_device_copy(r->device, r->host, src, run_sizes[t] * sizeof(float)), 0);
}

/* What no step may touch: gradients, and the parameter that has none. */
static inline void check_untouched(run *r)
{
    (void)spw_device_sync(r->device, NULL);
    for (int t = 0; t < TENSORS; t++) {
        download(r, t, r->g[t]);
        for (uint64_t i = 0; i < run_sizes[t]; i++)
            assert_true(r->host[i] == run_value(t, i, 2));
    }
    download(r, WITHOUT_GRADIENT, r->p[WITHOUT_GRADIENT]);
    for (uint64_t i = 0; i < run_sizes[WITHOUT_GRADIENT]; i++)
        assert_true(r->host[i] == run_value(WITHOUT_GRADIENT, i, 1));
}

static inline void check_outcome(run *r, outcome *wanted)
{
    for (int t = 0; t < TENSORS; t++) {
        download(r, t, r->p[t]);
        if (!r->nth)
            memcpy(wanted->p[t], r->host, run_sizes[t] * sizeof(float));
        if (memcmp(wanted->p[t], r->host, run_sizes[t] * sizeof(float)) != 0)
            fail_msg("call %llu failed (%d) and tensor %d differs", (unsigned long long)r->nth,
                     r->rc, t);
    }
}

static inline void end_run(run *r)
{
    spw_device_stats stats;
    spw_optim_destroy(r->optim);
    for (int t = 0; t < TENSORS; t++) {
        spw_free(r->pager, r->p[t]);
        spw_free(r->pager, r->g[t]);
    }
    spw_pager_destroy(r->pager);
    if (r->device) {
        assert_int_equal(spw_device_stats_get(r->device, &stats), 0);
        assert_int_equal(stats.frame_bytes, 0);
        assert_true(strcmp(r->kind->device, "cpu") != 0 || stats.in_use_bytes == 0);
    }
    spw_device_close(r->device);
    free(r->host);
}

/* The run in which the nth call fails; with 0 none does and *wanted is filled. Returns what was
 * left of the count, *rc the first error. */
static inline uint64_t run_with_fault(const run_kind *kind, uint64_t nth, outcome *wanted, int *rc)
{
    run r = {.kind = kind, .nth = nth, .host = calloc(LARGEST, sizeof(float))};
    assert_non_null(r.host);
    (void)kind->inject(nth);
    make_calls(&r);
    r.left = r.rc ? r.left : kind->inject(0);
    assert_true(r.device && r.pager && r.optim);
    check_untouched(&r);
    if (!r.failed)
        check_outcome(&r, wanted);
    end_run(&r);
    *rc = r.rc;
    return r.left;
}

/* SPW_FAULT_EVERY, 1 in soak: how many calls lie between those that fail. */
static inline uint64_t fault_every(uint64_t usual)
{
    const char *text = getenv("SPW_FAULT_EVERY");
    return text && *text ? strtoull(text, NULL, 10) : usual;
}

/* Returns how many runs had an error; `after` checks what the test program wants to see. */
static inline int fail_every_call(const run_kind *kind, uint64_t every, void (*before)(void),
                                  void (*after)(void))
{
    int errors = 0, rc;
    outcome *wanted = calloc(1, sizeof *wanted);
    assert_non_null(wanted);
    for (uint64_t nth = 0, left = 0; !left; nth = nth ? nth + every : 1) {
        if (before)
            before();
        left = run_with_fault(kind, nth, wanted, &rc);
        if (after)
            after();
        assert_true(rc == 0 || (nth && !left));
        errors += rc < 0;
    }
    free(wanted);
    return errors;
}

#endif
