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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bf16_survives_the_round_trip),
        cmocka_unit_test(rounding_is_to_the_nearest_ties_to_even),
        cmocka_unit_test(the_ends_of_the_range_are_kept),
        cmocka_unit_test(a_nan_stays_a_nan_even_when_its_payload_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
