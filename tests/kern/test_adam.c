#include "support.h"

#include "kern/elements.h"
#include "kern/loops/select.h"

static const spw__adam_consts usual = {
    .grad_factor = 0.5f,
    .lerp_weight = 0.1f,
    .lerp_from_m = UINT32_MAX,
    .beta2 = 0.999f,
    .one_minus_beta2 = 0.001f,
    .step_size = 2e-3f,
    .root_bias2 = 1.0f / 3.1f,
    .inv_root_bias2 = 3.1f,
    .eps = 1e-8f,
    .decay = 0.9999f,
};

/* One tensor and its state, with guard bytes behind every array. */
enum { GUARD = 64 };

typedef struct tensor {
    uint64_t n;
    spw_type p_type, g_type;
    bool is_8bit;
    unsigned char *p, *g, *m, *v, *absmax_m, *absmax_v;
} tensor;

static uint64_t n_blocks(uint64_t n)
{
    return (n + SPW__BLOCK - 1) / SPW__BLOCK;
}

static uint64_t bytes_of(const tensor *t, const void *array)
{
    if (array == t->p)
        return t->n * spw__type_bytes(t->p_type);
    if (array == t->g)
        return t->n * spw__type_bytes(t->g_type);
    if (array == t->m || array == t->v)
        return t->n * (t->is_8bit ? 1 : 4);
    return n_blocks(t->n) * 4;
}

static unsigned char *guarded(uint64_t bytes)
{
    unsigned char *array = calloc(bytes + GUARD, 1);
    assert_non_null(array);
    memset(array + bytes, 0xA5, GUARD);
    return array;
}

static void check_guard(const tensor *t, const unsigned char *array)
{
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(array[bytes_of(t, array) + (uint64_t)i], 0xA5);
}

static tensor tensor_make(uint64_t n, spw_type p_type, spw_type g_type, bool is_8bit)
{
    tensor t = {.n = n, .p_type = p_type, .g_type = g_type, .is_8bit = is_8bit};
    t.p = guarded(n * spw__type_bytes(p_type));
    t.g = guarded(n * spw__type_bytes(g_type));
    t.m = guarded(n * (is_8bit ? 1 : 4));
    t.v = guarded(n * (is_8bit ? 1 : 4));
    t.absmax_m = guarded(n_blocks(n) * 4);
    t.absmax_v = guarded(n_blocks(n) * 4);
    return t;
}

static void tensor_free(tensor *t)
{
    unsigned char *arrays[] = {t->p, t->g, t->m, t->v, t->absmax_m, t->absmax_v};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        check_guard(t, arrays[i]);
        free(arrays[i]);
    }
}

static void fill(tensor *t, uint64_t seed)
{
    for (uint64_t i = 0; i < t->n; i++) {
        support_put(t->p, t->p_type, i, support_uniform(&seed));
        support_put(t->g, t->g_type, i, support_gradient(&seed));
        float m = support_gradient(&seed), v = fabsf(support_gradient(&seed)) * 1e-3f;
        if (t->is_8bit) {
            t->m[i] = (unsigned char)(support_random(&seed) >> 32);
            t->v[i] = (unsigned char)(support_random(&seed) >> 32);
        } else {
            support_put(t->m, SPW_FP32, i, m);
            support_put(t->v, SPW_FP32, i, v);
        }
    }
    for (uint64_t b = 0; b < n_blocks(t->n); b++) {
        support_put(t->absmax_m, SPW_FP32, b, fabsf(support_gradient(&seed)));
        support_put(t->absmax_v, SPW_FP32, b, fabsf(support_gradient(&seed)) * 1e-3f);
    }
}

/* Elements first..last - 1; first a multiple of SPW__BLOCK when the state is 8-bit. */
static spw__update_run run_of(const tensor *t, uint64_t first, uint64_t last)
{
    spw__update_run run = {.n = last - first, .consts = &usual};
    run.p = t->p + first * spw__type_bytes(t->p_type);
    run.g = t->g + first * spw__type_bytes(t->g_type);
    run.m = t->m + first * (t->is_8bit ? 1 : 4);
    run.v = t->v + first * (t->is_8bit ? 1 : 4);
    run.p_type = t->p_type;
    run.g_type = t->g_type;
    if (t->is_8bit) {
        run.absmax_m = (float *)(void *)t->absmax_m + first / SPW__BLOCK;
        run.absmax_v = (float *)(void *)t->absmax_v + first / SPW__BLOCK;
    }
    return run;
}

static void assert_same(const tensor *a, const tensor *b)
{
    assert_memory_equal(a->p, b->p, bytes_of(a, a->p));
    assert_memory_equal(a->m, b->m, bytes_of(a, a->m));
    assert_memory_equal(a->v, b->v, bytes_of(a, a->v));
    assert_memory_equal(a->absmax_m, b->absmax_m, bytes_of(a, a->absmax_m));
    assert_memory_equal(a->absmax_v, b->absmax_v, bytes_of(a, a->absmax_v));
}

/* ------------------------------------------- the element functions alone, as the reference -- */

static void reference_32bit(tensor *t)
{
    for (uint64_t i = 0; i < t->n; i++) {
        spw__adam_element old = {support_get(t->p, t->p_type, i), support_get(t->m, SPW_FP32, i),
                                 support_get(t->v, SPW_FP32, i)};
        float g = support_get(t->g, t->g_type, i) * usual.grad_factor;
        spw__adam_element next = spw__adam_update(old, g, &usual, 0);
        support_put(t->p, t->p_type, i, next.p);
        support_put(t->m, SPW_FP32, i, next.m);
        support_put(t->v, SPW_FP32, i, next.v);
    }
}

static void reference_block(tensor *t, uint64_t b)
{
    const spw__code_maps *maps = spw__code_maps_get();
    spw__adam_element next[SPW__BLOCK] = {0};
    uint32_t most_m = 0, most_v = 0;
    uint64_t first = b * SPW__BLOCK;
    uint64_t n = t->n - first < SPW__BLOCK ? t->n - first : SPW__BLOCK;
    for (uint64_t i = 0; i < n; i++) {
        spw__adam_element old = {
            support_get(t->p, t->p_type, first + i),
            maps->m.value[t->m[first + i]] * support_get(t->absmax_m, SPW_FP32, b),
            maps->v.value[t->v[first + i]] * support_get(t->absmax_v, SPW_FP32, b)};
        float g = support_get(t->g, t->g_type, first + i) * usual.grad_factor;
        next[i] = spw__adam_update(old, g, &usual, 1);
        most_m = fmaxf(fabsf(next[i].m), spw__float_of_bits(most_m)) == fabsf(next[i].m)
                     ? spw__magnitude_bits(next[i].m)
                     : most_m;
        most_v = spw__bits_of_float(fmaxf(next[i].v, spw__float_of_bits(most_v)));
    }
    spw__code_scale scale_m = spw__code_scale_of(most_m), scale_v = spw__code_scale_of(most_v);
    support_put(t->absmax_m, SPW_FP32, b, scale_m.absmax);
    support_put(t->absmax_v, SPW_FP32, b, scale_v.absmax);
    for (uint64_t i = 0; i < n; i++) {
        support_put(t->p, t->p_type, first + i, next[i].p);
        t->m[first + i] = spw__code_of_m(maps->m.encode, next[i].m, scale_m);
        t->v[first + i] = spw__code_of_v(maps->v.encode, next[i].v, scale_v);
    }
}

static void reference(tensor *t)
{
    if (!t->is_8bit)
        reference_32bit(t);
    for (uint64_t b = 0; t->is_8bit && b < n_blocks(t->n); b++)
        reference_block(t, b);
}

/* ------------------------------------------------------------------------------- same bits -- */

static const uint64_t sizes[] = {0, 1, 7, 255, 256, 257, 511, 4095, 4096, 4097, 20000};
enum {
    N_SIZES = sizeof sizes / sizeof *sizes,
    FIRST_8BIT = SPW__TYPES * SPW__TYPES,
    N_KINDS = 2 * SPW__TYPES * SPW__TYPES
};

/* By kind: all pairs of types with 32-bit state, then with 8-bit state. */
static tensor kind_zeros(int kind, uint64_t n)
{
    spw_type p_type = (spw_type)(kind % SPW__TYPES);
    spw_type g_type = (spw_type)(kind / SPW__TYPES % SPW__TYPES);
    return tensor_make(n, p_type, g_type, kind >= FIRST_8BIT);
}

static tensor kind_make(int kind, uint64_t n, uint64_t seed)
{
    tensor t = kind_zeros(kind, n);
    fill(&t, seed);
    return t;
}

static void level_equals_reference(const spw__loops *loops, int kind, uint64_t n)
{
    tensor ours = kind_make(kind, n, n + 1), theirs = kind_make(kind, n, n + 1);
    for (int step = 0; step < 3; step++) {
        spw__update_run run = run_of(&ours, 0, n);
        if (ours.is_8bit)
            loops->adam8[run.p_type][run.g_type](&run, spw__code_maps_get());
        else
            loops->adam32[run.p_type][run.g_type](&run);
        reference(&theirs);
        assert_same(&ours, &theirs);
    }
    tensor_free(&ours);
    tensor_free(&theirs);
}

static void every_vector_width_gives_the_bits_of_the_element_functions(void **state)
{
    (void)state;
    for (int level = 0; level < SPW__CPU_LEVELS; level++) {
        const spw__loops *loops = spw__loops_at((enum spw__cpu_level)level);
        for (int kind = 0; loops && kind < N_KINDS; kind++)
            for (int s = 0; s < N_SIZES; s++)
                level_equals_reference(loops, kind, sizes[s]);
    }
}

/* All tensors in one call, each in runs that end at multiples of `split`. */
static void step_in_runs(tensor *tensors, int n_tensors, uint64_t split, unsigned threads)
{
    spw_device device = support_device(threads);
    spw__update_run runs[512];
    uint64_t n_runs = 0;
    for (int t = 0; t < n_tensors; t++)
        for (uint64_t at = 0; at < tensors[t].n || at == 0; at += split) {
            uint64_t end = at + split < tensors[t].n ? at + split : tensors[t].n;
            assert_true(n_runs < 512);
            runs[n_runs++] = run_of(&tensors[t], at, end);
        }
    assert_int_equal(spw__kern_update(&device, SPW_ADAMW, runs, n_runs, NULL), 0);
    support_device_end(&device);
}

static void same_bits_for(unsigned threads, uint64_t split)
{
    tensor ours[N_KINDS * N_SIZES], theirs[N_KINDS * N_SIZES];
    for (int i = 0; i < N_KINDS * N_SIZES; i++) {
        ours[i] = kind_make(i % N_KINDS, sizes[i / N_KINDS], (uint64_t)i + 1);
        theirs[i] = kind_make(i % N_KINDS, sizes[i / N_KINDS], (uint64_t)i + 1);
        reference(&theirs[i]);
    }
    step_in_runs(ours, N_KINDS * N_SIZES, split, threads);
    for (int i = 0; i < N_KINDS * N_SIZES; i++) {
        assert_same(&ours[i], &theirs[i]);
        tensor_free(&ours[i]);
        tensor_free(&theirs[i]);
    }
}

static void threads_and_runs_do_not_change_a_bit(void **state)
{
    (void)state;
    const unsigned threads[] = {1, 2, 8};
    const uint64_t splits[] = {4096, 8192, 1 << 20};
    for (int t = 0; t < 3; t++)
        for (int s = 0; s < 3; s++)
            same_bits_for(threads[t], splits[s]);
}

/* ------------------------------------------------------------------------------- arithmetic -- */

static void step_alone(tensor *t)
{
    spw_device device = support_device(1);
    spw__update_run run = run_of(t, 0, t->n);
    assert_int_equal(spw__kern_update(&device, SPW_ADAMW, &run, 1, NULL), 0);
    support_device_end(&device);
}

static double ulp(double x)
{
    return ldexp(1.0, ilogb(fmax(fabs(x), 1e-37)) - 23);
}

/* One element in double: the formula of torch.optim.AdamW. */
typedef struct wide {
    double p, m, v, decayed, update;
} wide;

static wide update_in_double(double p, double g, double m, double v)
{
    wide w;
    g *= (double)usual.grad_factor;
    w.m = (1 - (double)usual.lerp_weight) * m + (double)usual.lerp_weight * g;
    w.v = (double)usual.beta2 * v + (double)usual.one_minus_beta2 * g * g;
    w.decayed = p * (double)usual.decay;
    w.update = (double)usual.step_size * w.m /
               (sqrt(w.v) * (double)usual.inv_root_bias2 + (double)usual.eps);
    w.p = w.decayed - w.update;
    return w;
}

static void the_32bit_step_is_adamw_to_two_ulp_of_its_largest_term(void **state)
{
    (void)state;
    tensor t = tensor_make(5000, SPW_FP32, SPW_FP32, false), old = t;
    old = tensor_make(5000, SPW_FP32, SPW_FP32, false);
    fill(&t, 21);
    fill(&old, 21);
    step_alone(&t);
    for (uint64_t i = 0; i < t.n; i++) {
        double m = (double)support_get(old.m, SPW_FP32, i),
               v = (double)support_get(old.v, SPW_FP32, i);
        double g = (double)support_get(old.g, SPW_FP32, i);
        wide w = update_in_double((double)support_get(old.p, SPW_FP32, i), g, m, v);
        assert_true(fabs((double)support_get(t.m, SPW_FP32, i) - w.m) <=
                    2 * ulp(fmax(fabs(0.9 * m), fabs(0.05 * g))));
        assert_true(fabs((double)support_get(t.v, SPW_FP32, i) - w.v) <= 2 * ulp(w.v));
        double error_m = 2 * ulp(fmax(fabs(0.9 * m), fabs(0.05 * g))) / fmax(fabs(w.m), 1e-30);
        assert_true(fabs((double)support_get(t.p, SPW_FP32, i) - w.p) <=
                    2 * ulp(fmax(fabs(w.decayed), fabs(w.update))) + error_m * fabs(w.update));
    }
    tensor_free(&t);
    tensor_free(&old);
}

static void check_rounded_once(spw_type type)
{
    tensor half = tensor_make(3000, type, type, false);
    tensor full = tensor_make(3000, SPW_FP32, type, false);
    tensor rounded = tensor_make(3000, type, type, false);
    fill(&half, 4);
    fill(&full, 4);
    for (uint64_t i = 0; i < half.n; i++)
        support_put(full.p, SPW_FP32, i, support_get(half.p, type, i));
    step_alone(&half);
    step_alone(&full);
    for (uint64_t i = 0; i < half.n; i++)
        support_put(rounded.p, type, i, support_get(full.p, SPW_FP32, i));
    assert_memory_equal(half.p, rounded.p, bytes_of(&half, half.p));
    tensor_free(&half);
    tensor_free(&full);
    tensor_free(&rounded);
}

static void a_half_parameter_is_the_fp32_result_rounded_once(void **state)
{
    (void)state;
    check_rounded_once(SPW_BF16);
    check_rounded_once(SPW_FP16);
}

/* Subnormals, the largest, what overflows, NaN: the same at every vector width. */
static void fp16_parameters_at_the_ends_of_their_range(void **state)
{
    (void)state;
    static const float ends[] = {0x1p-24f, -0x1p-24f, 0x3FFp-24f, 65504.0f, -65504.0f,
                                 INFINITY, -INFINITY, NAN,        0.0f,     -0.0f};
    for (int level = 0; level < SPW__CPU_LEVELS; level++) {
        const spw__loops *loops = spw__loops_at((enum spw__cpu_level)level);
        for (int bits = 8; loops && bits <= 32; bits += 24) {
            tensor ours = tensor_make(1000, SPW_FP16, SPW_FP16, bits == 8), theirs = ours;
            theirs = tensor_make(1000, SPW_FP16, SPW_FP16, bits == 8);
            for (uint64_t i = 0; i < ours.n; i++) {
                support_put(ours.p, SPW_FP16, i, ends[i % 10]);
                support_put(ours.g, SPW_FP16, i, ends[i / 10 % 10]);
            }
            memcpy(theirs.p, ours.p, bytes_of(&ours, ours.p));
            memcpy(theirs.g, ours.g, bytes_of(&ours, ours.g));
            spw__update_run run = run_of(&ours, 0, ours.n);
            if (bits == 8)
                loops->adam8[SPW_FP16][SPW_FP16](&run, spw__code_maps_get());
            else
                loops->adam32[SPW_FP16][SPW_FP16](&run);
            reference(&theirs);
            assert_same(&ours, &theirs);
            tensor_free(&ours);
            tensor_free(&theirs);
        }
    }
}

/* -------------------------------------------------- 8-bit state against a search in double -- */

/* `slack`: how far fp32 rounding of the moment itself may have moved x, in units of absmax. */
static void check_code(const float *table, int code, double x, double slack)
{
    int best = 0;
    for (int i = 1; i < 256; i++)
        if (fabs(x - (double)table[i]) < fabs(x - (double)table[best]))
            best = i;
    if (code == best)
        return;
    assert_int_equal(abs(code - best), 1);
    double middle = ((double)table[code] + (double)table[best]) / 2;
    assert_true(fabs(x - middle) <= 4 * ulp(middle) + slack);
}

static void check_block_in_double(const tensor *t, const tensor *old, uint64_t b)
{
    const float *table_m = spw_code_table(1), *table_v = spw_code_table(0);
    wide w[SPW__BLOCK];
    double terms[SPW__BLOCK], most_m = 0, most_v = 0;
    uint64_t first = b * SPW__BLOCK;
    uint64_t n = t->n - first < SPW__BLOCK ? t->n - first : SPW__BLOCK;
    for (uint64_t i = 0; i < n; i++) {
        double m =
            (double)table_m[old->m[first + i]] * (double)support_get(old->absmax_m, SPW_FP32, b);
        double v =
            (double)table_v[old->v[first + i]] * (double)support_get(old->absmax_v, SPW_FP32, b);
        double g = (double)support_get(old->g, old->g_type, first + i);
        w[i] = update_in_double(0.0, g, m, v);
        terms[i] = fmax(fabs(m), fabs(g));
        most_m = fmax(most_m, fabs(w[i].m));
        most_v = fmax(most_v, w[i].v);
    }
    assert_true(fabs((double)support_get(t->absmax_m, SPW_FP32, b) / most_m - 1) < 4 * 0x1p-23);
    assert_true(fabs((double)support_get(t->absmax_v, SPW_FP32, b) / most_v - 1) < 4 * 0x1p-23);
    for (uint64_t i = 0; i < n; i++) {
        check_code(table_m, t->m[first + i], w[i].m / most_m, 2 * ulp(terms[i]) / most_m);
        check_code(table_v, t->v[first + i], w[i].v / most_v, 0);
    }
}

static void codes_are_the_nearest_by_an_independent_search(void **state)
{
    (void)state;
    tensor t = tensor_make(10100, SPW_FP32, SPW_FP32, true);
    tensor old = tensor_make(10100, SPW_FP32, SPW_FP32, true);
    fill(&t, 77);
    fill(&old, 77);
    step_alone(&t);
    for (uint64_t b = 0; b < n_blocks(t.n); b++)
        check_block_in_double(&t, &old, b);
    tensor_free(&t);
    tensor_free(&old);
}

/* ------------------------------------------------------------------------------- bad inputs -- */

static const float bad[] = {INFINITY, -INFINITY, NAN};

static void a_32bit_element_with_a_bad_gradient_stays_as_it_is(void **state)
{
    (void)state;
    for (int kind = 0; kind < FIRST_8BIT; kind++) {
        tensor t = kind_make(kind, 1000, 6), old = kind_make(kind, 1000, 6);
        for (uint64_t i = 0; i < t.n; i += 7)
            support_put(t.g, t.g_type, i, bad[i % 3]);
        step_alone(&t);
        for (uint64_t i = 0; i < t.n; i++) {
            bool same = support_get(t.p, t.p_type, i) == support_get(old.p, t.p_type, i);
            bool same_m = support_get(t.m, SPW_FP32, i) == support_get(old.m, SPW_FP32, i);
            bool same_v = support_get(t.v, SPW_FP32, i) == support_get(old.v, SPW_FP32, i);
            assert_int_equal(same_m && same_v, i % 7 == 0);
            assert_true(same || i % 7);
        }
        tensor_free(&t);
        tensor_free(&old);
    }
}

/* The others' block-mates: p stays, m and v are carried to the block's new absmax. */
static void an_8bit_element_with_a_bad_gradient_keeps_its_moments(void **state)
{
    (void)state;
    tensor t = kind_make(FIRST_8BIT, 1000, 8), old = kind_make(FIRST_8BIT, 1000, 8);
    const float *table_m = spw_code_table(1), *table_v = spw_code_table(0);
    for (uint64_t i = 0; i < t.n; i += 5)
        support_put(t.g, t.g_type, i, bad[i % 3]);
    step_alone(&t);
    for (uint64_t i = 0; i < t.n; i += 5) {
        uint64_t b = i / SPW__BLOCK;
        double new_m = (double)support_get(t.absmax_m, SPW_FP32, b);
        double new_v = (double)support_get(t.absmax_v, SPW_FP32, b);
        double m = (double)(table_m[old.m[i]] * support_get(old.absmax_m, SPW_FP32, b));
        double v = (double)(table_v[old.v[i]] * support_get(old.absmax_v, SPW_FP32, b));
        assert_memory_equal(t.p + 4 * i, old.p + 4 * i, 4);
        check_code(table_m, t.m[i], m / new_m, 0);
        check_code(table_v, t.v[i], v / new_v, 0);
    }
    tensor_free(&t);
    tensor_free(&old);
}

static void only_bad_gradients_change_no_parameter_and_no_absmax(void **state)
{
    (void)state;
    tensor t = kind_make(FIRST_8BIT, 512, 8), old = kind_make(FIRST_8BIT, 512, 8);
    for (uint64_t i = 0; i < t.n; i++) {
        support_put(t.g, t.g_type, i, NAN);
        t.m[i] = old.m[i] = (unsigned char)(i % SPW__BLOCK); /* the block's extreme is code 255 */
        t.v[i] = old.v[i] = (unsigned char)(i % SPW__BLOCK);
    }
    step_alone(&t);
    assert_same(&t, &old);
    tensor_free(&t);
    tensor_free(&old);
}

static void untouched_state_and_zero_gradients_stay_zero(void **state)
{
    (void)state;
    tensor t = tensor_make(600, SPW_FP32, SPW_FP32, true);
    for (uint64_t i = 0; i < t.n; i++)
        support_put(t.p, SPW_FP32, i, 2.0f);
    for (int step = 0; step < 3; step++)
        step_alone(&t);
    float expected = 2.0f * usual.decay * usual.decay * usual.decay;
    for (uint64_t i = 0; i < t.n; i++) {
        assert_int_equal(t.m[i], SPW__CODE_ZERO);
        assert_int_equal(t.v[i], 0);
        assert_float_equal(support_get(t.p, SPW_FP32, i), expected, 1e-6);
    }
    for (uint64_t b = 0; b < n_blocks(t.n); b++) {
        assert_float_equal(support_get(t.absmax_m, SPW_FP32, b), 0.0f, 0);
        assert_float_equal(support_get(t.absmax_v, SPW_FP32, b), 0.0f, 0);
    }
    tensor_free(&t);
}

static void a_zero_gradient_in_a_busy_block_keeps_exact_zeros(void **state)
{
    (void)state;
    tensor t = tensor_make(256, SPW_FP32, SPW_FP32, true);
    for (uint64_t i = 0; i < t.n; i++)
        support_put(t.g, SPW_FP32, i, i % 2 ? 0.0f : 1.0f);
    for (int step = 0; step < 5; step++)
        step_alone(&t);
    for (uint64_t i = 1; i < t.n; i += 2) {
        assert_int_equal(t.m[i], SPW__CODE_ZERO);
        assert_int_equal(t.v[i], 0);
        assert_float_equal(support_get(t.p, SPW_FP32, i), 0.0f, 0);
    }
    tensor_free(&t);
}

/* From the smallest float to the largest: everything stays finite, codes and parameters agree with
 * the element functions. */
static void extreme_gradients_leave_no_nan(void **state)
{
    (void)state;
    const float extremes[] = {1e-45f, 1e-40f, 1e-38f, 1e-22f, 1e18f, 1e22f, 3.4e38f, -3.4e38f};
    for (size_t e = 0; e < sizeof extremes / sizeof *extremes; e++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            tensor t = kind_zeros(kind, 300);
            for (uint64_t i = 0; i < t.n; i++)
                support_put(t.g, t.g_type, i, i % 3 ? extremes[e] : 0.0f);
            for (int step = 0; step < 3; step++)
                step_alone(&t);
            for (uint64_t i = 0; i < t.n; i++)
                assert_true(isfinite(support_get(t.p, t.p_type, i)));
            for (uint64_t b = 0; t.is_8bit && b < n_blocks(t.n); b++) {
                assert_true(isfinite(support_get(t.absmax_m, SPW_FP32, b)));
                assert_true(isfinite(support_get(t.absmax_v, SPW_FP32, b)));
            }
            tensor_free(&t);
        }
}

static void no_runs_are_no_work(void **state)
{
    (void)state;
    spw_device device = support_device(2);
    assert_int_equal(spw__kern_update(&device, SPW_ADAMW, NULL, 0, NULL), 0);
    support_device_end(&device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vector_width_gives_the_bits_of_the_element_functions),
        cmocka_unit_test(threads_and_runs_do_not_change_a_bit),
        cmocka_unit_test(the_32bit_step_is_adamw_to_two_ulp_of_its_largest_term),
        cmocka_unit_test(a_half_parameter_is_the_fp32_result_rounded_once),
        cmocka_unit_test(fp16_parameters_at_the_ends_of_their_range),
        cmocka_unit_test(codes_are_the_nearest_by_an_independent_search),
        cmocka_unit_test(a_32bit_element_with_a_bad_gradient_stays_as_it_is),
        cmocka_unit_test(an_8bit_element_with_a_bad_gradient_keeps_its_moments),
        cmocka_unit_test(only_bad_gradients_change_no_parameter_and_no_absmax),
        cmocka_unit_test(untouched_state_and_zero_gradients_stay_zero),
        cmocka_unit_test(a_zero_gradient_in_a_busy_block_keeps_exact_zeros),
        cmocka_unit_test(extreme_gradients_leave_no_nan),
        cmocka_unit_test(no_runs_are_no_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
