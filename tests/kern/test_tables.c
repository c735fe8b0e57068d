#include "support.h"

#include "kern/elements.h"
#include "kern/tables.h"

/* FNV-1a over the bytes: computed from tables whose sha256 (e732639a..., 305f002c...) were those of
 * the original's. */
static uint64_t checksum(const float *table)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < 256; i++)
        for (int byte = 0; byte < 4; byte++) {
            hash ^= spw__bits_of_float(table[i]) >> (8 * byte) & 0xFF;
            hash *= UINT64_C(0x100000001b3);
        }
    return hash;
}

static void tables_are_the_originals_bit_for_bit(void **state)
{
    (void)state;
    assert_int_equal(checksum(spw_code_table(1)), UINT64_C(0xd677f22a96665bc4));
    assert_int_equal(checksum(spw_code_table(0)), UINT64_C(0x43811b16730a873e));
}

static void tables_ascend_and_have_their_landmarks(void **state)
{
    (void)state;
    const float *m = spw_code_table(1), *v = spw_code_table(0);
    for (int i = 1; i < 256; i++) {
        assert_true(m[i - 1] < m[i]);
        assert_true(v[i - 1] < v[i]);
    }
    assert_float_equal(m[0], -0.99296874f, 0);
    assert_float_equal(m[SPW__CODE_ZERO], 0.0f, 0);
    assert_float_equal(m[128], 5.5e-7f, 0);
    assert_float_equal(m[255], 1.0f, 0);
    assert_float_equal(v[0], 0.0f, 0);
    assert_float_equal(v[1], 3.25e-7f, 0);
    assert_float_equal(v[254], 0.9964844f, 0);
    assert_float_equal(v[255], 1.0f, 0);
}

/* By the definition: compare with all middles; at one, the even neighbour. */
static int code_by_scanning(const spw__code_map *map, float x)
{
    int code = 0;
    while (code < 255 && (x > map->middle[code] || (x == map->middle[code] && code % 2)))
        code++;
    return code;
}

/* By distance, in double, knowing nothing of middles. */
static int code_by_distance(const float *table, double x)
{
    int best = 0;
    for (int i = 1; i < 256; i++)
        if (fabs(x - (double)table[i]) < fabs(x - (double)table[best]))
            best = i;
    return best;
}

static bool near_a_middle(const float *table, double x)
{
    for (int i = 0; i < 255; i++) {
        double middle = ((double)table[i] + (double)table[i + 1]) / 2;
        if (fabs(x - middle) <= 4 * fabs(middle) * 0x1p-23)
            return true;
    }
    return false;
}

static const spw__code_scale unit = {1.0f, 1.0f, 1.0f};

static void check_codes(float x)
{
    const spw__code_maps *maps = spw__code_maps_get();
    int m = spw__code_of_m(maps->m.encode, x, unit);
    assert_int_equal(m, code_by_scanning(&maps->m, x));
    if (!near_a_middle(maps->m.value, (double)x))
        assert_int_equal(m, code_by_distance(maps->m.value, (double)x));
    if (x < 0)
        return;
    int v = spw__code_of_v(maps->v.encode, x, unit);
    assert_int_equal(v, code_by_scanning(&maps->v, x));
    if (!near_a_middle(maps->v.value, (double)x))
        assert_int_equal(v, code_by_distance(maps->v.value, (double)x));
}

static void check_around(float middle)
{
    uint32_t bits = spw__bits_of_float(middle);
    for (uint32_t i = 0; i <= 12; i++)
        check_codes(spw__float_of_bits(bits - 6 + i));
}

static void codes_around_every_middle_are_exact(void **state)
{
    (void)state;
    const spw__code_maps *maps = spw__code_maps_get();
    for (int i = 0; i < 255; i++) {
        check_around(maps->m.middle[i]);
        check_around(maps->v.middle[i]);
    }
}

static void codes_of_random_numbers_are_the_nearest(void **state)
{
    (void)state;
    uint64_t seed = 11;
    for (int i = 0; i < 20000; i++)
        check_codes(support_uniform(&seed) * powf(10.0f, 4.0f * (support_uniform(&seed) - 1.0f)));
}

static void every_value_encodes_to_its_own_code(void **state)
{
    (void)state;
    const spw__code_maps *maps = spw__code_maps_get();
    for (int i = 0; i < 256; i++) {
        assert_int_equal(spw__code_of_m(maps->m.encode, maps->m.value[i], unit), i);
        assert_int_equal(spw__code_of_v(maps->v.encode, maps->v.value[i], unit), i);
    }
}

static void zero_has_one_code_whatever_its_sign(void **state)
{
    (void)state;
    const spw__code_maps *maps = spw__code_maps_get();
    spw__code_scale none = spw__code_scale_of(0);
    assert_int_equal(spw__code_of_m(maps->m.encode, 0.0f, unit), SPW__CODE_ZERO);
    assert_int_equal(spw__code_of_m(maps->m.encode, -0.0f, unit), SPW__CODE_ZERO);
    assert_int_equal(spw__code_of_m(maps->m.encode, -1e-30f, unit), SPW__CODE_ZERO);
    assert_int_equal(spw__code_of_m(maps->m.encode, -0.0f, none), SPW__CODE_ZERO);
    assert_int_equal(spw__code_of_v(maps->v.encode, 0.0f, none), 0);
    assert_float_equal(none.absmax, 0.0f, 0);
}

/* An element at `share` of the block's largest, for blocks from the smallest to the largest float.
 */
static void blocks_of_any_size_encode_alike(void **state)
{
    (void)state;
    const spw__code_maps *maps = spw__code_maps_get();
    const float sizes[] = {1e-37f, 1e-30f, 1e-20f, 0x1p-63f, 1.0f, 0x1p63f, 1e20f, 3.4028235e38f};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        spw__code_scale scale = spw__code_scale_of(spw__bits_of_float(sizes[s]));
        assert_int_equal(spw__code_of_m(maps->m.encode, sizes[s], scale), 255);
        assert_int_equal(spw__code_of_m(maps->m.encode, -sizes[s], scale), 0);
        assert_int_equal(spw__code_of_v(maps->v.encode, sizes[s], scale), 255);
        assert_int_equal(spw__code_of_m(maps->m.encode, sizes[s] * 0.25f, scale),
                         code_by_distance(maps->m.value, 0.25));
        assert_int_equal(spw__code_of_v(maps->v.encode, sizes[s] * 0.03f, scale),
                         code_by_distance(maps->v.value, 0.03));
    }
}

static void denormal_and_infinite_blocks_have_codes(void **state)
{
    (void)state;
    const spw__code_maps *maps = spw__code_maps_get();
    spw__code_scale small = spw__code_scale_of(4);
    assert_int_equal(spw__code_of_v(maps->v.encode, spw__float_of_bits(4), small), 255);
    assert_int_equal(spw__code_of_v(maps->v.encode, spw__float_of_bits(1), small),
                     code_by_distance(maps->v.value, 0.25));
    spw__code_scale over = spw__code_scale_of(0x7F800000u);
    assert_float_equal(over.absmax, 3.4028235e38f, 0);
    assert_int_equal(spw__code_of_v(maps->v.encode, INFINITY, over), 255);
    assert_int_equal(spw__code_of_m(maps->m.encode, -INFINITY, over), 0);
    assert_int_equal(spw__code_of_v(maps->v.encode, 1.0f, over), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_the_originals_bit_for_bit),
        cmocka_unit_test(tables_ascend_and_have_their_landmarks),
        cmocka_unit_test(codes_around_every_middle_are_exact),
        cmocka_unit_test(codes_of_random_numbers_are_the_nearest),
        cmocka_unit_test(every_value_encodes_to_its_own_code),
        cmocka_unit_test(zero_has_one_code_whatever_its_sign),
        cmocka_unit_test(blocks_of_any_size_encode_alike),
        cmocka_unit_test(denormal_and_infinite_blocks_have_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
