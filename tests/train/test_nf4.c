#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/philox.h"
#include "train/nf4.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* A packed tensor with what it was made of, in memory of its exact size. */
typedef struct sample {
    uint64_t n, blocks;
    float *x, *absmax;
    spw__nf4 packed;
} sample;

static void *memory(uint64_t bytes)
{
    void *fresh = malloc((size_t)bytes);
    assert_non_null(fresh);
    memset(fresh, 0xA5, (size_t)bytes);
    return fresh;
}

static sample make(uint64_t n, float spread)
{
    sample s = {.n = n, .blocks = spw__nf4_blocks(n)};
    s.x = memory(n * sizeof(float));
    s.absmax = memory(s.blocks * sizeof(float));
    s.packed.codes = memory((n + 1) / 2);
    s.packed.absmax_codes = memory(s.blocks);
    s.packed.nested_absmax = memory(spw__nf4_nested_blocks(n) * sizeof(float));
    for (uint64_t i = 0; i < n; i++) {
        uint32_t counter[4] = {(uint32_t)i, (uint32_t)n, 0, 0}, key[2] = {1, 2}, words[4];
        spw__philox(counter, key, words);
        float u = 2.0f * spw__unit_of_bits(words[0]) - 1.0f;
        s.x[i] = spread * u * u * u * (float)(1 + i / 64 % 7);
    }
    return s;
}

static void drop(sample *s)
{
    free(s->x);
    free(s->absmax);
    free(s->packed.codes);
    free(s->packed.absmax_codes);
    free(s->packed.nested_absmax);
}

static int code_at(const sample *s, uint64_t i)
{
    uint8_t byte = s->packed.codes[i / 2];
    return i % 2 ? byte & 15 : byte >> 4;
}

static float plain_absmax(const sample *s, uint64_t block)
{
    float most = 0;
    for (uint64_t i = block * 64; i < s->n && i < block * 64 + 64; i++)
        most = fmaxf(most, fabsf(s->x[i]));
    return most;
}

static double midpoint(int i)
{
    return ((double)spw__nf4_values[i] + (double)spw__nf4_values[i + 1]) / 2;
}

/* How many midpoints between neighbours of the table lie below. */
static int plain_code(float scaled)
{
    int code = 0;
    for (int i = 0; i < 15; i++)
        code += (double)scaled > midpoint(i);
    return code;
}

static double nearest_distance(float x)
{
    double best = INFINITY;
    for (int i = 0; i < 256; i++)
        best = fmin(best, fabs((double)spw_code_table(1)[i] - (double)x));
    return best;
}

static void check_codes(const sample *s)
{
    for (uint64_t i = 0; i < s->n; i++) {
        float absmax = plain_absmax(s, i / 64);
        assert_int_equal(code_at(s, i), plain_code(s->x[i] * (1.0f / absmax)));
    }
    if (s->n % 2)
        assert_int_equal(s->packed.codes[s->n / 2] & 15, 7); /* the half byte that is over: 0 */
}

static void check_absmax(const sample *s)
{
    double sum = 0;
    for (uint64_t b = 0; b < s->blocks; b++)
        sum += (double)plain_absmax(s, b);
    float offset = (float)(sum / (double)s->blocks);
    assert_true(s->packed.offset == offset);
    for (uint64_t b = 0; b < s->blocks; b++) {
        uint64_t nested = b / 256;
        float most = 0;
        for (uint64_t i = nested * 256; i < s->blocks && i < nested * 256 + 256; i++)
            most = fmaxf(most, fabsf(plain_absmax(s, i) - offset));
        assert_true(s->packed.nested_absmax[nested] == most);
        float scaled = most > 0 ? (plain_absmax(s, b) - offset) * (1.0f / most) : 0;
        double chosen = (double)spw_code_table(1)[s->packed.absmax_codes[b]] - (double)scaled;
        assert_true(fabs(chosen) <= nearest_distance(scaled) + 1e-9);
    }
}

static float plain_value(const sample *s, uint64_t i)
{
    float code = spw_code_table(1)[s->packed.absmax_codes[i / 64]];
    float absmax = code * s->packed.nested_absmax[i / 64 / 256] + s->packed.offset;
    return spw__nf4_values[code_at(s, i)] * absmax;
}

static void check_values(const sample *s)
{
    float *out = memory(s->n * sizeof *out);
    spw__nf4_unpack(&s->packed, 0, s->n, out);
    for (uint64_t i = 0; i < s->n; i++)
        assert_true(out[i] == plain_value(s, i));
    free(out);
}

static void packing_is_what_the_plain_rule_says_at_every_size(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {
        1, 2, 63, 64, 65, 127, 129, 1000, 64 * 256, 64 * 256 + 1, 64 * 257 + 33, 64 * 600};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        sample s = make(sizes[i], i % 2 ? 0.02f : 3.0f);
        spw__nf4_pack(s.x, s.n, NULL, s.absmax, &s.packed);
        check_codes(&s);
        check_absmax(&s);
        check_values(&s);
        drop(&s);
    }
}

static void a_given_offset_is_taken(void **state)
{
    (void)state;
    sample s = make(640, 1);
    float offset = 2.25f;
    spw__nf4_pack(s.x, s.n, &offset, s.absmax, &s.packed);
    assert_true(s.packed.offset == 2.25f);
    check_codes(&s);
    check_values(&s);
    drop(&s);
}

/* Every value of the table comes back exactly when all blocks have the same absmax. */
static void the_tables_own_values_come_back(void **state)
{
    (void)state;
    float out[128];
    sample s = make(128, 1);
    for (int i = 0; i < 128; i++)
        s.x[i] = spw__nf4_values[i % 16] * 0.375f;
    spw__nf4_pack(s.x, s.n, NULL, s.absmax, &s.packed);
    spw__nf4_unpack(&s.packed, 0, 128, out);
    for (int i = 0; i < 128; i++) {
        assert_int_equal(code_at(&s, (uint64_t)i), i % 16);
        assert_true(out[i] == s.x[i]);
    }
    drop(&s);
}

/* bitsandbytes' thresholds on the GPU: midpoints, rounded either way where they are no float. */
static const float thresholds[15] = {
    -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
    -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
    0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
    0.5016634166240692f,   0.6427869200706482f,   0.8614784178118011f,
};

static void a_value_on_a_threshold_takes_the_lower_code(void **state)
{
    (void)state;
    sample s = make(64, 1);
    memset(s.x, 0, 64 * sizeof *s.x);
    s.x[0] = 1;
    for (int i = 0; i < 15; i++) {
        assert_true(fabs((double)thresholds[i] - midpoint(i)) <= 0x1p-25);
        s.x[2 * i + 1] = thresholds[i];
        s.x[2 * i + 2] = nextafterf(thresholds[i], 2);
    }
    spw__nf4_pack(s.x, s.n, NULL, s.absmax, &s.packed);
    for (uint64_t i = 0; i < 15; i++) {
        assert_int_equal(code_at(&s, 2 * i + 1), i);
        assert_int_equal(code_at(&s, 2 * i + 2), i + 1);
    }
    drop(&s);
}

static void zeros_stay_zeros(void **state)
{
    (void)state;
    float out[200];
    sample s = make(200, 1);
    memset(s.x, 0, 64 * sizeof *s.x); /* one block among others */
    spw__nf4_pack(s.x, s.n, NULL, s.absmax, &s.packed);
    spw__nf4_unpack(&s.packed, 0, s.n, out);
    for (int i = 0; i < 64; i++)
        assert_true(out[i] == 0);
    memset(s.x, 0, 200 * sizeof *s.x); /* nothing else */
    spw__nf4_pack(s.x, s.n, NULL, s.absmax, &s.packed);
    spw__nf4_unpack(&s.packed, 0, s.n, out);
    assert_true(s.packed.offset == 0);
    for (int i = 0; i < 200; i++)
        assert_true(out[i] == 0);
    drop(&s);
}

/* 1 / absmax of a subnormal absmax is infinite, infinity times zero no number. */
static void values_too_small_to_scale_stay_small(void **state)
{
    (void)state;
    float out[64];
    sample s = make(64, 1);
    memset(s.x, 0, 64 * sizeof *s.x);
    s.x[1] = 1e-45f;
    s.x[2] = -1e-40f;
    spw__nf4_pack(s.x, s.n, NULL, s.absmax, &s.packed);
    spw__nf4_unpack(&s.packed, 0, s.n, out);
    assert_int_equal(code_at(&s, 0), 7);
    for (int i = 0; i < 64; i++)
        assert_true(fabsf(out[i]) <= 1e-38f);
    drop(&s);
}

static void any_run_is_the_same_as_of_the_whole(void **state)
{
    (void)state;
    enum { N = 203 };
    float whole[N];
    sample s = make(N, 1);
    spw__nf4_pack(s.x, s.n, NULL, s.absmax, &s.packed);
    spw__nf4_unpack(&s.packed, 0, N, whole);
    for (uint64_t first = 0; first <= N; first++) {
        for (uint64_t n = 0; first + n <= N; n++) {
            float *part = memory(n * sizeof *part);
            spw__nf4_unpack(&s.packed, first, n, part);
            assert_memory_equal(part, whole + first, n * sizeof *part);
            free(part);
        }
    }
    drop(&s);
}

static void rows_are_expanded_where_they_lie(void **state)
{
    (void)state;
    enum { ROWS = 9, COLS = 27 }; /* no row but the first begins with a block */
    float whole[ROWS * COLS], part[ROWS * COLS];
    sample s = make(ROWS * COLS, 1);
    spw__nf4_pack(s.x, s.n, NULL, s.absmax, &s.packed);
    spw__nf4_unpack(&s.packed, 0, s.n, whole);
    spw__matrix m = {.rows = ROWS, .cols = COLS, .kind = SPW__MATRIX_NF4, .nf4 = s.packed};
    for (uint32_t row = 0; row < ROWS; row++) {
        for (uint32_t n = 0; row + n <= ROWS; n++) {
            spw__matrix_expand(&m, row, n, part);
            assert_memory_equal(part, whole + (size_t)row * COLS, (size_t)n * COLS * sizeof *part);
        }
    }
    drop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packing_is_what_the_plain_rule_says_at_every_size),
        cmocka_unit_test(a_given_offset_is_taken),
        cmocka_unit_test(the_tables_own_values_come_back),
        cmocka_unit_test(a_value_on_a_threshold_takes_the_lower_code),
        cmocka_unit_test(zeros_stay_zeros),
        cmocka_unit_test(values_too_small_to_scale_stay_small),
        cmocka_unit_test(any_run_is_the_same_as_of_the_whole),
        cmocka_unit_test(rows_are_expanded_where_they_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
