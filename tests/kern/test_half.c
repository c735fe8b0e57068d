#include "support.h"

static void every_bf16_survives_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 65536; half++) {
        float wide = spw__float_of_bf16((uint16_t)half);
        uint16_t back = spw__bf16_of_float(wide);
        if (isnan(wide))
            assert_true(isnan(spw__float_of_bf16(back)));
        else
            assert_int_equal(back, half);
    }
}

/* The nearest by distance, the even one when there are two; by trying both neighbours. */
static uint16_t nearest_bf16(float value)
{
    uint16_t low = (uint16_t)(spw__bits_of_float(value) >> 16), high = (uint16_t)(low + 1);
    double below = fabs((double)value - (double)spw__float_of_bf16(low));
    double above = fabs((double)spw__float_of_bf16(high) - (double)value);
    if (below == above)
        return low % 2 ? high : low;
    return below < above ? low : high;
}

static void rounding_is_to_the_nearest_ties_to_even(void **state)
{
    (void)state;
    uint64_t seed = 7;
    for (int i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)(support_random(&seed) >> 32);
        bits = i % 3 ? bits : (bits & 0xFFFF0000u) | 0x8000u; /* a third of them ties */
        if ((bits & 0x7FFFFFFFu) >= 0x7F7F0000u)
            continue; /* the next one up is infinity: below */
        float value = spw__float_of_bits(bits);
        assert_int_equal(spw__bf16_of_float(value), nearest_bf16(value));
    }
}

static void the_ends_of_the_range_are_kept(void **state)
{
    (void)state;
    assert_int_equal(spw__bf16_of_float(INFINITY), 0x7F80);
    assert_int_equal(spw__bf16_of_float(-INFINITY), 0xFF80);
    assert_int_equal(spw__bf16_of_float(3.4028235e38f), 0x7F80);
    assert_int_equal(spw__bf16_of_float(spw__float_of_bits(0x7F7F7FFFu)), 0x7F7F);
    assert_int_equal(spw__bf16_of_float(-0.0f), 0x8000);
    assert_int_equal(spw__bf16_of_float(spw__float_of_bits(1)), 0);
    assert_int_equal(spw__bf16_of_float(spw__float_of_bits(0x18000)), 2);
}

static void a_nan_stays_a_nan_even_when_its_payload_is_cut(void **state)
{
    (void)state;
    for (int bit = 0; bit < 23; bit++) {
        uint32_t payload = 0x7F800000u | 1u << bit;
        assert_true(isnan(spw__float_of_bf16(spw__bf16_of_float(spw__float_of_bits(payload)))));
    }
    assert_true(isnan(spw__float_of_bf16(spw__bf16_of_float(spw__float_of_bits(0xFFFFFFFFu)))));
}

/* ------------------------------------------------------------------------------------ fp16 -- */

/* By the definition of binary16, in double. */
static double fp16_by_definition(uint16_t half)
{
    int exponent = half >> 10 & 31, fraction = half & 0x3FF;
    double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    if (exponent == 31)
        magnitude = fraction ? (double)NAN : (double)INFINITY;
    return half & 0x8000 ? -magnitude : magnitude;
}

static void every_fp16_is_exact_and_survives_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 65536; half++) {
        float wide = spw__float_of_fp16((uint16_t)half);
        double expected = fp16_by_definition((uint16_t)half);
        if (isnan(expected)) {
            assert_true(isnan(wide));
            assert_int_equal(spw__fp16_of_float(wide), SPW__FP16_NAN);
        } else {
            assert_true((double)wide == expected && !signbit(wide) == !(half & 0x8000));
            assert_int_equal(spw__fp16_of_float(wide), half);
        }
    }
}

/* By rint in double over the spacing that binary16 has there: ties to even. */
static uint16_t nearest_fp16(float value)
{
    double magnitude = fabs((double)value);
    int exponent = magnitude < 0x1p-14 ? -14 : ilogb(magnitude);
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double steps = rint(ldexp(magnitude, 10 - exponent)); /* 1024..2048, or less: subnormal */
    double half = steps + 1024.0 * (exponent + 14);
    return (uint16_t)(sign | (uint16_t)(half < 0x7C00 ? half : 0x7C00));
}

static void check_fp16(uint32_t bits)
{
    float value = spw__float_of_bits(bits);
    uint16_t expected = isnan(value) ? SPW__FP16_NAN : nearest_fp16(value);
    if (spw__fp16_of_float(value) != expected)
        fail_msg("%a (0x%08X): 0x%04X, not 0x%04X", (double)value, (unsigned)bits,
                 spw__fp16_of_float(value), expected);
}

/* Each fp16, the middle to the next one, and the floats on either side of both: all there is to
 * decide; subnormals, 65520 and the smallest positive middle (2^-25) are among them. */
static void fp16_rounds_to_the_nearest_at_every_boundary(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x7C00; half++) {
        double low = fp16_by_definition((uint16_t)half);
        double high = half == 0x7BFF ? 65536.0 : fp16_by_definition((uint16_t)(half + 1));
        float points[] = {(float)low, (float)((low + high) / 2)};
        for (int i = 0; i < 2; i++)
            for (uint32_t beside = 0; beside < 3; beside++) {
                uint32_t bits = spw__bits_of_float(points[i]) + beside - 1;
                check_fp16(bits & 0x7FFFFFFFu);
                check_fp16(bits | 0x80000000u);
            }
    }
}

static void fp16_rounds_to_the_nearest_anywhere(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (int i = 0; i < 1000000; i++)
        check_fp16((uint32_t)(support_random(&seed) >> 32));
    for (int bit = 0; bit < 23; bit++)
        check_fp16(0xFF800000u | 1u << bit);
    assert_int_equal(spw__fp16_of_float(65519.996f), 0x7BFF);
    assert_int_equal(spw__fp16_of_float(65520.0f), 0x7C00);
    assert_int_equal(spw__fp16_of_float(-3.4028235e38f), 0xFC00);
    assert_int_equal(spw__fp16_of_float(-INFINITY), 0xFC00);
    assert_int_equal(spw__fp16_of_float(0x1p-25f), 0);
    assert_int_equal(spw__fp16_of_float(-0x1.8p-24f), 0x8002);
    assert_int_equal(spw__fp16_of_float(spw__float_of_bits(0x80000001u)), 0x8000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_survives_the_round_trip),
        cmocka_unit_test(rounding_is_to_the_nearest_ties_to_even),
        cmocka_unit_test(the_ends_of_the_range_are_kept),
        cmocka_unit_test(a_nan_stays_a_nan_even_when_its_payload_is_cut),
        cmocka_unit_test(every_fp16_is_exact_and_survives_the_round_trip),
        cmocka_unit_test(fp16_rounds_to_the_nearest_at_every_boundary),
        cmocka_unit_test(fp16_rounds_to_the_nearest_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
