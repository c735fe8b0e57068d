/* The checksum: the RFC's values, and the instruction and the tables alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/crc32c.h"

#include <string.h>

static void gives_the_values_of_rfc_3720(void **unused)
{
    (void)unused;
    unsigned char bytes[32];
    memset(bytes, 0, sizeof bytes);
    assert_int_equal(spw__crc32c(0, bytes, sizeof bytes), 0x8A9136AA);
    memset(bytes, 0xFF, sizeof bytes);
    assert_int_equal(spw__crc32c(0, bytes, sizeof bytes), 0x62A8AB43);
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)i;
    assert_int_equal(spw__crc32c(0, bytes, sizeof bytes), 0x46DD794E);
    assert_int_equal(spw__crc32c(0, "123456789", 9), 0xE3069283);
    assert_int_equal(spw__crc32c(0, bytes, 0), 0);
}

static void instruction_and_tables_agree_at_every_length_and_place(void **unused)
{
    (void)unused;
    unsigned char bytes[128];
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 37 + 11);
    for (size_t first = 0; first < 9; first++)
        for (size_t n = 0; first + n <= sizeof bytes; n++)
            assert_int_equal(spw__crc32c(7, bytes + first, n),
                             spw__crc32c_by_tables(7, bytes + first, n));
}

static void goes_on_where_it_stopped(void **unused)
{
    (void)unused;
    const char *text = "a page of moments, then another";
    size_t n = strlen(text);
    for (size_t cut = 0; cut <= n; cut++)
        assert_int_equal(spw__crc32c(spw__crc32c(0, text, cut), text + cut, n - cut),
                         spw__crc32c(0, text, n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_values_of_rfc_3720),
        cmocka_unit_test(instruction_and_tables_agree_at_every_length_and_place),
        cmocka_unit_test(goes_on_where_it_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
