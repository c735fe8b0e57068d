#include "support.h"

#include "kern/loops/select.h"

enum { N_RUNS = 12 };

static const uint64_t sizes[N_RUNS] = {0,    1,    31,   32,     33,    255,
                                       4095, 4096, 4097, 100000, 12288, 65536};

typedef struct tensors {
    void *data[N_RUNS];
    spw__norm_run runs[N_RUNS];
} tensors;

static void tensors_make(tensors *t, uint64_t seed)
{
    for (int r = 0; r < N_RUNS; r++) {
        spw_type type = (const spw_type[]){SPW_BF16, SPW_FP32, SPW_FP16}[r % SPW__TYPES];
        t->data[r] = malloc(sizes[r] * 4 + 1);
        assert_non_null(t->data[r]);
        for (uint64_t i = 0; i < sizes[r]; i++)
            support_put(t->data[r], type, i, support_gradient(&seed));
        t->runs[r] = (spw__norm_run){.g = t->data[r], .n = sizes[r], .type = type};
    }
}

static void tensors_free(tensors *t)
{
    for (int r = 0; r < N_RUNS; r++)
        free(t->data[r]);
}

static double norm_of(const tensors *t, unsigned threads)
{
    spw_device device = support_device(threads);
    double norm = -1.0;
    uint64_t blocks = spw__kern_norm_blocks(t->runs, N_RUNS);
    spw__step_table *table;
    assert_int_equal(spw__kern_table_create(&device, N_RUNS, blocks, &table), 0);
    assert_int_equal(spw__kern_norm(table, t->runs, N_RUNS, &norm), 0);
    spw__kern_table_destroy(table);
    support_device_end(&device);
    return norm;
}

/* The tree of kern.h, by recursion: `a` half the lanes apart, neighbours over blocks. */
static double block_by_definition(const spw__norm_run *run, uint64_t first, uint64_t last)
{
    double lane[32] = {0};
    for (uint64_t i = first; i < last; i++) {
        double x = (double)support_get(run->g, run->type, i);
        lane[(i - first) % 32] += x * x;
    }
    for (int width = 16; width; width /= 2)
        for (int l = 0; l < width; l++)
            lane[l] += lane[l + width];
    return lane[0];
}

/* Blocks first..first + span - 1, span a power of two that covers the tensor at the top. */
static double tree_by_definition(const spw__norm_run *run, uint64_t first, uint64_t span)
{
    uint64_t blocks = (run->n + SPW__SPLIT - 1) / SPW__SPLIT;
    if (span == 1) {
        uint64_t end = (first + 1) * SPW__SPLIT;
        return block_by_definition(run, first * SPW__SPLIT, end < run->n ? end : run->n);
    }
    double left = tree_by_definition(run, first, span / 2);
    if (first + span / 2 >= blocks)
        return left;
    return left + tree_by_definition(run, first + span / 2, span / 2);
}

static double norm_by_definition(const tensors *t)
{
    double total = 0.0;
    for (int r = 0; r < N_RUNS; r++)
        if (t->runs[r].n)
            total += tree_by_definition(&t->runs[r], 0, 1 << 10);
    return sqrt(total);
}

static void norm_is_the_fixed_tree_for_any_thread_count(void **state)
{
    (void)state;
    tensors t;
    tensors_make(&t, 3);
    double expected = norm_by_definition(&t);
    const unsigned threads[] = {1, 2, 3, 8};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        double norm = norm_of(&t, threads[i]);
        assert_memory_equal(&norm, &expected, sizeof norm);
    }
    tensors_free(&t);
}

static void norm_is_right_to_double_precision(void **state)
{
    (void)state;
    tensors t;
    tensors_make(&t, 5);
    long double total = 0.0L;
    for (int r = 0; r < N_RUNS; r++)
        for (uint64_t i = 0; i < t.runs[r].n; i++) {
            long double x = (long double)support_get(t.runs[r].g, t.runs[r].type, i);
            total += x * x;
        }
    double expected = (double)sqrtl(total);
    assert_true(fabs(norm_of(&t, 2) - expected) < 1e-14 * expected);
    tensors_free(&t);
}

static void every_vector_width_sums_alike(void **state)
{
    (void)state;
    tensors t;
    tensors_make(&t, 9);
    const spw__loops *baseline = spw__loops_at(SPW__CPU_BASELINE);
    for (int level = SPW__CPU_V3; level < SPW__CPU_LEVELS; level++) {
        const spw__loops *loops = spw__loops_at((enum spw__cpu_level)level);
        for (int r = 0; loops && r < N_RUNS; r++) {
            uint64_t n = sizes[r] < SPW__SPLIT ? sizes[r] : SPW__SPLIT;
            double wide = loops->square_sum[t.runs[r].type](t.data[r], n);
            double narrow = baseline->square_sum[t.runs[r].type](t.data[r], n);
            assert_memory_equal(&wide, &narrow, sizeof wide);
        }
    }
    tensors_free(&t);
}

static void squares_do_not_overflow_or_vanish(void **state)
{
    (void)state;
    tensors t;
    tensors_make(&t, 1);
    for (int r = 0; r < N_RUNS; r++)
        memset(t.data[r], 0, sizes[r] * 4);
    support_put(t.data[4], t.runs[4].type, 7, 3e38f);
    assert_true(fabs(norm_of(&t, 2) / (double)3e38f - 1.0) < 1e-15);
    support_put(t.data[4], t.runs[4].type, 7, spw__float_of_bits(1));
    assert_true(fabs(norm_of(&t, 2) / 0x1p-149 - 1.0) < 1e-15);
    tensors_free(&t);
}

static void one_bad_gradient_makes_the_norm_not_finite(void **state)
{
    (void)state;
    const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < 3; i++) {
        tensors t;
        tensors_make(&t, 2);
        support_put(t.data[10], t.runs[10].type, 5000, bad[i]);
        double norm = norm_of(&t, 2);
        assert_true(!(fabs(norm) <= 1.7976931348623157e308));
        tensors_free(&t);
    }
}

static void no_gradients_have_norm_zero(void **state)
{
    (void)state;
    spw_device device = support_device(2);
    double norm = -1.0;
    spw__step_table *table;
    assert_int_equal(spw__kern_table_create(&device, 0, 0, &table), 0);
    assert_int_equal(spw__kern_norm(table, NULL, 0, &norm), 0);
    spw__kern_table_destroy(table);
    assert_float_equal(norm, 0.0, 0);
    support_device_end(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_is_the_fixed_tree_for_any_thread_count),
        cmocka_unit_test(norm_is_right_to_double_precision),
        cmocka_unit_test(every_vector_width_sums_alike),
        cmocka_unit_test(squares_do_not_overflow_or_vanish),
        cmocka_unit_test(one_bad_gradient_makes_the_norm_not_finite),
        cmocka_unit_test(no_gradients_have_norm_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
