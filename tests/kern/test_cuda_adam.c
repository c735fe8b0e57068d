/*
 * The cuda device's steps give the CPU's bits. Runs on the stand-in driver by its RPATH, on a GPU
 * with the real libcuda.so.1 preloaded.
 */
#include "support.h"

#include "standin/standin.h"

enum {
    N_SIZES = 9,
    FIRST_8BIT = SPW__TYPES * SPW__TYPES,
    N_KINDS = 2 * FIRST_8BIT,
    MANY_RUNS = 4000, /* more than a buffer of the feed has room for */
    ARRAYS = 6,       /* p, g, m, v, absmax_m, absmax_v */
    STEPS = 5,
    BAD_STEP = 2, /* its gradients are not finite */
};

static const uint64_t sizes[N_SIZES] = {1, 7, 255, 256, 257, 4095, 4096, 4097, 20000};

static standin_control control;
static bool has_standin;

typedef struct tensor {
    uint64_t n;
    spw_type p_type, g_type;
    bool is_8bit;
    unsigned char *host[ARRAYS]; /* the CPU steps on these */
    void *memory[ARRAYS];        /* on the cuda device */
    uint64_t shift;              /* bytes that p and g lie past where memory begins */
} tensor;

typedef struct pair {
    spw_device *cuda;
    spw_device cpu;
    spw__adam_table *cuda_table, *cpu_table;
    tensor *tensors;
    uint64_t n;
    spw__norm_run *norm_runs[2]; /* on the cpu, on the cuda device */
    spw__adam_hyper *hyper;
    uint64_t random;
} pair;

/* --------------------------------------------------------------------------------- tensors -- */

static uint64_t bytes_of(const tensor *t, int array)
{
    switch (array) {
    case 0:
        return t->n * spw__type_bytes(t->p_type);
    case 1:
        return t->n * spw__type_bytes(t->g_type);
    case 2:
    case 3:
        return t->n * (t->is_8bit ? 1 : 4);
    default:
        return t->is_8bit ? (t->n + SPW__BLOCK - 1) / SPW__BLOCK * 4 : 0;
    }
}

static char *memory_of(const tensor *t, int array)
{
    return (char *)t->memory[array] + (array < 2 ? t->shift : 0);
}

static void upload(const pair *w, const tensor *t, int array)
{
    int rc = spw_device_copy(w->cuda, memory_of(t, array), t->host[array], bytes_of(t, array));
    assert_int_equal(rc, 0);
}

static void make_tensor(pair *w, tensor *t, int kind, uint64_t n)
{
    *t = (tensor){.n = n,
                  .p_type = (spw_type)(kind % SPW__TYPES),
                  .g_type = (spw_type)(kind / SPW__TYPES % SPW__TYPES),
                  .is_8bit = kind >= FIRST_8BIT,
                  .shift = n % 3 == 0 ? 4 : 0};
    for (int i = 0; i < ARRAYS; i++) {
        uint64_t bytes = bytes_of(t, i);
        t->host[i] = calloc(bytes + 1, 1);
        assert_non_null(t->host[i]);
        if (bytes)
            assert_int_equal(
                spw__dev_alloc(w->cuda, bytes + t->shift, SPW__DEV_MEMORY, &t->memory[i]), 0);
    }
    for (uint64_t i = 0; i < n; i++)
        support_put(t->host[0], t->p_type, i, support_uniform(&w->random));
    for (int i = 0; i < ARRAYS; i++)
        upload(w, t, i);
}

static void free_tensor(const pair *w, const tensor *t)
{
    for (int i = 0; i < ARRAYS; i++) {
        free(t->host[i]);
        spw__dev_free(w->cuda, t->memory[i]);
    }
}

static void new_gradient(pair *w, tensor *t, bool bad)
{
    for (uint64_t i = 0; i < t->n; i++)
        support_put(t->host[1], t->g_type, i, support_gradient(&w->random));
    if (bad)
        support_put(t->host[1], t->g_type, t->n / 2, INFINITY);
    upload(w, t, 1);
}

static void assert_same(const pair *w, const tensor *t, int step)
{
    for (int i = 0; i < ARRAYS; i++) {
        uint64_t bytes = bytes_of(t, i);
        unsigned char *back = malloc(bytes + 1);
        assert_non_null(back);
        assert_int_equal(spw_device_copy(w->cuda, back, memory_of(t, i), bytes), 0);
        if (memcmp(back, t->host[i], bytes) != 0)
            fail_msg("step %d: array %d of %llu elements (p %d, g %d, %s) is not the CPU's", step,
                     i, (unsigned long long)t->n, t->p_type, t->g_type,
                     t->is_8bit ? "8-bit" : "32-bit");
        free(back);
    }
}

/* ----------------------------------------------------------------------------- both devices -- */

static spw__norm_run *norm_runs_of(const pair *w, bool on_cuda)
{
    spw__norm_run *runs = calloc(w->n, sizeof *runs);
    assert_non_null(runs);
    for (uint64_t i = 0; i < w->n; i++) {
        const tensor *t = &w->tensors[i];
        runs[i] = (spw__norm_run){on_cuda ? memory_of(t, 1) : (char *)t->host[1], t->n, t->g_type};
    }
    return runs;
}

static void make_tables(pair *w)
{
    uint64_t blocks = spw__kern_norm_blocks(w->norm_runs[0], w->n);
    assert_int_equal(spw__kern_table_create(&w->cpu, w->n, blocks, &w->cpu_table), 0);
    assert_int_equal(spw__kern_table_create(w->cuda, w->n, blocks, &w->cuda_table), 0);
    for (uint64_t i = 0; i < w->n; i++) {
        spw__adam_progress start = {.step = 0};
        w->hyper[i] = (spw__adam_hyper){.lr = 1e-3 * (double)(i % 5 + 1),
                                        .beta1 = i % 4 ? 0.9 : 0.4,
                                        .beta2 = 0.999,
                                        .eps = 1e-8,
                                        .weight_decay = 0.01 * (double)(i % 3)};
        assert_int_equal(spw__kern_table_set(w->cpu_table, i, &start), 0);
        assert_int_equal(spw__kern_table_set(w->cuda_table, i, &start), 0);
    }
}

/* All kinds times all sizes; or one tensor of `n` elements and that kind. */
static void open_pair(pair *w, int kind, uint64_t n)
{
    *w = (pair){.random = 77 + n, .n = n ? 1 : N_KINDS * N_SIZES, .cpu = support_device(2)};
    assert_int_equal(spw_device_open("cuda:0", NULL, &w->cuda), 0);
    w->tensors = calloc(w->n, sizeof *w->tensors);
    w->hyper = calloc(w->n, sizeof *w->hyper);
    assert_true(w->tensors && w->hyper);
    for (uint64_t i = 0; i < w->n; i++)
        make_tensor(w, &w->tensors[i], n ? kind : (int)(i % N_KINDS), n ? n : sizes[i / N_KINDS]);
    w->norm_runs[0] = norm_runs_of(w, false);
    w->norm_runs[1] = norm_runs_of(w, true);
    make_tables(w);
}

static void close_pair(pair *w)
{
    spw__kern_table_destroy(w->cpu_table);
    spw__kern_table_destroy(w->cuda_table);
    for (uint64_t i = 0; i < w->n; i++)
        free_tensor(w, &w->tensors[i]);
    free(w->tensors);
    free(w->hyper);
    free(w->norm_runs[0]);
    free(w->norm_runs[1]);
    spw_device_close(w->cuda);
    support_device_end(&w->cpu);
    if (has_standin) {
        assert_int_equal(control.live_bytes(), 0);
        assert_int_equal(control.live_objects(), 0);
    }
}

/* --------------------------------------------------------------------------------- a step -- */

static spw__adam_run run_of(const pair *w, uint64_t index, uint64_t first, uint64_t last,
                            bool on_cuda)
{
    const tensor *t = &w->tensors[index];
    const spw__adam_table *table = on_cuda ? w->cuda_table : w->cpu_table;
    char *at[ARRAYS];
    for (int i = 0; i < ARRAYS; i++)
        at[i] = on_cuda ? memory_of(t, i) : (char *)t->host[i];
    uint64_t code = t->is_8bit ? 1 : 4;
    spw__adam_run run = {.p = at[0] + first * spw__type_bytes(t->p_type),
                         .g = at[1] + first * spw__type_bytes(t->g_type),
                         .m = at[2] + first * code,
                         .v = at[3] + first * code,
                         .n = last - first,
                         .consts = spw__kern_table_consts(table, index),
                         .p_type = t->p_type,
                         .g_type = t->g_type};
    if (t->is_8bit) {
        run.absmax_m = (float *)(void *)at[4] + first / SPW__BLOCK;
        run.absmax_v = (float *)(void *)at[5] + first / SPW__BLOCK;
    }
    return run;
}

/* Every tensor that takes part, cut at multiples of `split`. */
static void step_on(const pair *w, uint64_t split, bool on_cuda, void *stream)
{
    uint64_t n_runs = 0, capacity = 0;
    for (uint64_t i = 0; i < w->n; i++)
        capacity += w->tensors[i].n / split + 1;
    spw__adam_run *runs = calloc(capacity, sizeof *runs);
    assert_non_null(runs);
    for (uint64_t i = 0; i < w->n; i++) {
        uint64_t n = w->hyper[i].takes_part ? w->tensors[i].n : 0;
        for (uint64_t at = 0; at < n; at += split)
            runs[n_runs++] = run_of(w, i, at, at + split < n ? at + split : n, on_cuda);
    }
    spw_device *device = on_cuda ? w->cuda : (spw_device *)&w->cpu;
    assert_int_equal(spw__kern_adam(device, runs, n_runs, stream), 0);
    memset(runs, 0xEE, capacity * sizeof *runs); /* read before the call returned */
    free(runs);
}

static void begin_both(pair *w, double max_norm, void *stream)
{
    spw__adam_step step = {.hyper = w->hyper,
                           .norm_runs = w->norm_runs[0],
                           .n_norm_runs = w->n,
                           .max_norm = max_norm,
                           .grad_scale = 0.25,
                           .stream = stream};
    assert_int_equal(spw__kern_table_begin(w->cpu_table, &step), 0);
    step.norm_runs = w->norm_runs[1];
    assert_int_equal(spw__kern_table_begin(w->cuda_table, &step), 0);
}

static void assert_same_tables(const pair *w)
{
    spw__adam_verdict verdict[2];
    assert_int_equal(spw__kern_table_verdict(w->cpu_table, &verdict[0]), 0);
    assert_int_equal(spw__kern_table_verdict(w->cuda_table, &verdict[1]), 0);
    assert_memory_equal(&verdict[0], &verdict[1], sizeof verdict[0]);
    for (uint64_t i = 0; i < w->n; i++) {
        spw__adam_progress progress[2];
        assert_int_equal(spw__kern_table_get(w->cpu_table, i, &progress[0]), 0);
        assert_int_equal(spw__kern_table_get(w->cuda_table, i, &progress[1]), 0);
        assert_memory_equal(&progress[0], &progress[1], sizeof progress[0]);
    }
}

static void step_both(pair *w, int step, uint64_t split, double max_norm)
{
    void *stream = step % 2 ? w->cuda->streams[SPW__DEV_IN] : NULL;
    for (uint64_t i = 0; i < w->n; i++) {
        w->hyper[i].takes_part = w->n == 1 || (i + (uint64_t)step) % 7 != 0;
        new_gradient(w, &w->tensors[i], step == BAD_STEP && i == w->n / 2);
    }
    begin_both(w, max_norm, stream);
    step_on(w, split, true, stream);
    if (!spw__kern_table_skips(w->cpu_table))
        step_on(w, split, false, NULL);
    assert_same_tables(w); /* waits for the step's beginning by itself */
    assert_int_equal(spw__dev_stream_sync(w->cuda, stream), 0);
    for (uint64_t i = 0; i < w->n; i++)
        assert_same(w, &w->tensors[i], step);
}

/* ----------------------------------------------------------------------------------- tests -- */

static void seed(uint64_t value)
{
    if (has_standin)
        control.seed(value);
}

static void every_type_and_size_has_the_cpus_bits(void **state)
{
    (void)state;
    const uint64_t splits[] = {256, 4096, 1 << 20};
    for (uint64_t i = 0; i < 6; i++) {
        pair w;
        open_pair(&w, 0, 0);
        seed(i);
        for (int step = 0; step < STEPS; step++)
            step_both(&w, step, splits[i / 2], i % 2 ? 3.0 : 0.0);
        close_pair(&w);
    }
}

static void a_step_with_a_bad_norm_changes_nothing(void **state)
{
    (void)state;
    pair w;
    spw__adam_verdict verdict;
    open_pair(&w, 0, 0);
    step_both(&w, BAD_STEP, 4096, 1.0);
    assert_int_equal(spw__kern_table_verdict(w.cuda_table, &verdict), 0);
    assert_int_equal(verdict.skip, 1);
    assert_int_equal(verdict.skipped, 1);
    assert_int_equal(verdict.steps, 0);
    step_both(&w, BAD_STEP + 1, 4096, 1.0);
    assert_int_equal(spw__kern_table_verdict(w.cuda_table, &verdict), 0);
    assert_int_equal(verdict.skip, 0);
    assert_int_equal(verdict.steps, 1);
    close_pair(&w);
}

static void a_loss_scale_and_found_inf_are_read_on_the_device(void **state)
{
    (void)state;
    pair w;
    open_pair(&w, 0, 0);
    void *memory;
    assert_int_equal(spw__dev_alloc(w.cuda, 2 * sizeof(float), SPW__DEV_MEMORY, &memory), 0);
    for (int i = 0; i < 2; i++) {
        float told[2] = {512.0f, (float)i};
        assert_int_equal(spw__dev_copy_now(w.cuda, memory, told, sizeof told), 0);
        spw__adam_step step = {.hyper = w.hyper,
                               .norm_runs = w.norm_runs[0],
                               .n_norm_runs = w.n,
                               .max_norm = 1.0,
                               .grad_scale = 0.5,
                               .loss_scale = &told[0],
                               .found_inf = &told[1]};
        assert_int_equal(spw__kern_table_begin(w.cpu_table, &step), 0);
        step.norm_runs = w.norm_runs[1];
        step.loss_scale = memory;
        step.found_inf = (float *)memory + 1;
        assert_int_equal(spw__kern_table_begin(w.cuda_table, &step), 0);
        assert_same_tables(&w);
        assert_true(spw__kern_table_skips(w.cpu_table) == (i == 1));
    }
    spw__dev_free(w.cuda, memory);
    close_pair(&w);
}

static void more_runs_than_a_buffer_holds(void **state)
{
    (void)state;
    const int kinds[] = {0, 4, 8, FIRST_8BIT + 2}; /* types alike, and one that mixes them */
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        int kind = kinds[i];
        uint64_t split = kind >= FIRST_8BIT ? SPW__BLOCK : 24;
        pair w;
        open_pair(&w, kind, split * MANY_RUNS - 5);
        seed((uint64_t)kind);
        for (int step = 0; step < 2; step++)
            step_both(&w, step, split, step ? 1.0 : 0.0);
        close_pair(&w);
    }
}

static void progress_can_be_set_behind_a_step(void **state)
{
    (void)state;
    const spw__adam_progress other = {.step = 9};
    pair w;
    open_pair(&w, 0, 0);
    for (uint64_t i = 0; i < w.n; i++)
        w.hyper[i].takes_part = 1;
    begin_both(&w, 1.0, w.cuda->streams[SPW__DEV_OUT]);
    assert_int_equal(spw__kern_table_set(w.cpu_table, 3, &other), 0);
    assert_int_equal(spw__kern_table_set(w.cuda_table, 3, &other), 0);
    begin_both(&w, 1.0, w.cuda->streams[SPW__DEV_OUT]);
    assert_same_tables(&w);
    close_pair(&w);
}

/* Nobody waits between steps: buffers of the feed come round. */
static void steps_queue_up(void **state)
{
    (void)state;
    pair w;
    open_pair(&w, 0, 0);
    seed(5);
    for (uint64_t i = 0; i < w.n; i++) {
        w.hyper[i].takes_part = 1;
        new_gradient(&w, &w.tensors[i], false);
    }
    for (int step = 0; step < 4 * STEPS; step++) {
        begin_both(&w, 2.0, w.cuda->streams[SPW__DEV_OUT]);
        step_on(&w, 256, true, w.cuda->streams[SPW__DEV_OUT]);
        step_on(&w, 256, false, NULL);
    }
    assert_int_equal(spw__dev_stream_sync(w.cuda, w.cuda->streams[SPW__DEV_OUT]), 0);
    for (uint64_t i = 0; i < w.n; i++)
        assert_same(&w, &w.tensors[i], 4 * STEPS);
    assert_same_tables(&w);
    close_pair(&w);
}

static void norm_both(const pair *w)
{
    double norm[2] = {-1, -2};
    assert_int_equal(spw__kern_norm(w->cpu_table, w->norm_runs[0], w->n, &norm[0]), 0);
    assert_int_equal(spw__kern_norm(w->cuda_table, w->norm_runs[1], w->n, &norm[1]), 0);
    assert_memory_equal(&norm[0], &norm[1], sizeof norm[0]);
}

static void the_norm_has_the_cpus_bits(void **state)
{
    (void)state;
    pair w;
    open_pair(&w, 0, 0);
    norm_both(&w); /* zeros */
    for (uint64_t i = 0; i < w.n; i++)
        new_gradient(&w, &w.tensors[i], false);
    norm_both(&w);
    close_pair(&w);
}

/* Groups of the tree that are whole, that end early, that are one alone. */
static void the_norm_of_a_large_tensor_has_the_cpus_bits(void **state)
{
    (void)state;
    const uint64_t blocks[] = {32, 33, 63, 64, 65, 97, 300};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        pair w;
        open_pair(&w, (int)(i % FIRST_8BIT), blocks[i] * SPW__SPLIT - i % 2 * 100);
        new_gradient(&w, &w.tensors[0], false);
        norm_both(&w);
        close_pair(&w);
    }
}

/* -------------------------------------------------------------------------------- failures -- */

/* The first thing that fails, from the module's load to the step's end. */
static int step_alone(spw_device *device, const spw__adam_run *run, spw__adam_table **table)
{
    spw__adam_hyper hyper = {.lr = 1, .beta1 = 0.9, .beta2 = 0.9, .eps = 1, .takes_part = 1};
    spw__norm_run norm_run = {run->g, run->n, run->g_type};
    spw__adam_step step = {
        .hyper = &hyper, .norm_runs = &norm_run, .n_norm_runs = 1, .max_norm = 1, .grad_scale = 1};
    spw__adam_run runs[40];
    double norm;
    int rc = spw__kern_table_create(device, 1, 1, table);
    if (rc == 0)
        rc = spw__kern_table_begin(*table, &step);
    for (uint64_t i = 0; rc == 0 && i < 40; i++) {
        runs[i] = *run;
        runs[i].p = (float *)run->p + i;
        runs[i].m = (float *)run->m + i;
        runs[i].v = (float *)run->v + i;
        runs[i].n = 1;
        runs[i].consts = spw__kern_table_consts(*table, 0);
    }
    if (rc == 0)
        rc = spw__kern_adam(device, runs, 40, NULL);
    if (rc == 0)
        rc = spw__kern_norm(*table, &norm_run, 1, &norm);
    return rc == 0 ? spw_device_sync(device, NULL) : rc;
}

/* Returns how many calls there were. */
static uint64_t fail_call(uint64_t n, CUresult result, int wanted, int *failed)
{
    spw_device *device;
    spw__adam_table *table = NULL;
    void *memory;
    assert_int_equal(spw_device_open("cuda:0", NULL, &device), 0);
    assert_int_equal(spw__dev_alloc(device, 640, SPW__DEV_MEMORY, &memory), 0);
    assert_int_equal(spw__dev_zero(device, memory, 640, device->streams[0]), 0);
    assert_int_equal(spw__dev_stream_sync(device, device->streams[0]), 0);
    float *at = memory;
    spw__adam_run run = {.p = at, .g = at + 40, .m = at + 80, .v = at + 120, .n = 40};
    uint64_t before = control.calls(NULL);
    control.fail_nth(NULL, n, result);
    int rc = step_alone(device, &run, &table);
    control.fail_nth(NULL, 0, CUDA_SUCCESS);
    uint64_t calls = control.calls(NULL) - before;
    assert_true(rc == 0 || (n && rc == wanted && strstr(spw_last_error(), "cu")));
    *failed += rc < 0;
    assert_int_equal(spw_device_sync(device, NULL), 0);
    spw__kern_table_destroy(table);
    table = NULL;
    assert_int_equal(step_alone(device, &run, &table), 0); /* once more, on the same device */
    spw__kern_table_destroy(table);
    spw_device_close(device);
    assert_int_equal(control.live_bytes(), 0);
    assert_int_equal(control.live_objects(), 0);
    return calls;
}

static void every_failing_call_is_named_and_leaks_nothing(void **state)
{
    (void)state;
    int failed = 0;
    if (!has_standin)
        skip();
    seed(0);
    uint64_t n_calls = fail_call(0, CUDA_SUCCESS, 0, &failed);
    for (uint64_t n = 1; n <= n_calls; n++)
        if (n % 2)
            (void)fail_call(n, CUDA_ERROR_OUT_OF_MEMORY, SPW_ENOMEM, &failed);
        else
            (void)fail_call(n, CUDA_ERROR_LAUNCH_FAILED, SPW_EIO, &failed);
    assert_true(failed > 100); /* all but those whose answer is not needed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_and_size_has_the_cpus_bits),
        cmocka_unit_test(a_step_with_a_bad_norm_changes_nothing),
        cmocka_unit_test(a_loss_scale_and_found_inf_are_read_on_the_device),
        cmocka_unit_test(more_runs_than_a_buffer_holds),
        cmocka_unit_test(progress_can_be_set_behind_a_step),
        cmocka_unit_test(steps_queue_up),
        cmocka_unit_test(the_norm_has_the_cpus_bits),
        cmocka_unit_test(the_norm_of_a_large_tensor_has_the_cpus_bits),
        cmocka_unit_test(every_failing_call_is_named_and_leaks_nothing),
    };
    has_standin = standin_find(&control);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
