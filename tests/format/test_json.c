#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "format/json.h"

#include <spillway/spillway.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static json_t *parsed(const char *text)
{
    json_t *document;
    assert_int_equal(spw__json_parse(text, strlen(text), "W", false, &document), 0);
    return document;
}

static void check_bad(const char *text, bool unique, const char *message)
{
    json_t *document;
    assert_int_equal(spw__json_parse(text, strlen(text), "W", unique, &document), SPW_EFORMAT);
    if (!strstr(spw_last_error(), message))
        print_error("%s\n", spw_last_error());
    assert_non_null(strstr(spw_last_error(), message));
    assert_null(document);
}

static void an_error_names_line_column_and_byte(void **state)
{
    (void)state;
    check_bad("{\"a\": 1,\n \"b\" 2}", false, "W: not JSON: line 2, column 6 (byte 15): ");
    check_bad("{\"a\": x}\n", false, "W: not JSON: column 7 (byte 7): ");
    check_bad("", false, "W: not JSON: ");
    check_bad("{} {}", false, "W: not JSON: ");
    check_bad("{\"a\": \"\xFF\"}", false, "W: not JSON: ");
    check_bad("\"\\ud800\"", false, "W: not JSON: ");
}

static void nesting_has_an_end(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    char *text = malloc(N + 1);
    assert_non_null(text);
    memset(text, '[', N);
    text[N] = 0;
    check_bad(text, false, "W: not JSON: ");
    free(text);
}

static void a_key_twice_is_an_error_where_it_matters(void **state)
{
    (void)state;
    check_bad("{\"a\": 1, \"a\": 2}", true, "duplicate");
    json_t *document = parsed("{\"a\": 1, \"a\": 2}");
    assert_int_equal(json_integer_value(json_object_get(document, "a")), 2);
    json_decref(document);
}

static void a_zero_character_is_text(void **state)
{
    (void)state;
    json_t *document = parsed("[\"a\\u0000b\"]");
    assert_int_equal(json_string_length(json_array_get(document, 0)), 3);
    json_decref(document);
}

/* transformers writes 1e30 as an integer. */
static void an_integer_past_64_bits_is_a_real(void **state)
{
    (void)state;
    json_t *document = parsed("{\"n\": 1000000000000000019884624838656}");
    double real = 0;
    assert_int_equal(spw__json_get_real(document, "n", "W", true, &real), 0);
    assert_true(real == 1e30);
    json_decref(document);
}

static void getters_name_the_key_and_what_is_wanted(void **state)
{
    (void)state;
    json_t *document = parsed("{\"i\": 3, \"r\": 0.5, \"b\": true, \"s\": \"x\", \"n\": null}");
    int64_t integer = 7;
    double real = 7;
    bool truth = false;
    const char *string = "y";
    assert_int_equal(spw__json_get_integer(document, "i", "W", true, &integer), 0);
    assert_int_equal(integer, 3);
    assert_int_equal(spw__json_get_real(document, "i", "W", true, &real), 0);
    assert_true(real == 3);
    assert_int_equal(spw__json_get_bool(document, "b", "W", true, &truth), 0);
    assert_true(truth);
    assert_int_equal(spw__json_get_string(document, "s", "W", true, &string), 0);
    assert_string_equal(string, "x");

    assert_int_equal(spw__json_get_integer(document, "r", "W", false, &integer), SPW_EFORMAT);
    assert_string_equal(spw_last_error(), "W: \"r\" is not an integer");
    assert_int_equal(spw__json_get_real(document, "s", "W", true, &real), SPW_EFORMAT);
    assert_string_equal(spw_last_error(), "W: \"s\" is not a number");
    assert_int_equal(spw__json_get_bool(document, "i", "W", true, &truth), SPW_EFORMAT);
    assert_string_equal(spw_last_error(), "W: \"i\" is not true or false");
    assert_int_equal(spw__json_get_string(document, "i", "W", true, &string), SPW_EFORMAT);
    assert_string_equal(spw_last_error(), "W: \"i\" is not a string");
    json_decref(document);
}

static void an_absent_key_leaves_the_value_unless_it_is_required(void **state)
{
    (void)state;
    json_t *document = parsed("{\"n\": null}");
    int64_t integer = 7;
    assert_int_equal(spw__json_get_integer(document, "n", "W", false, &integer), 0);
    assert_int_equal(spw__json_get_integer(document, "none", "W", false, &integer), 0);
    assert_int_equal(integer, 7);
    assert_int_equal(spw__json_get_integer(document, "n", "W", true, &integer), SPW_EFORMAT);
    assert_string_equal(spw_last_error(), "W: lacks \"n\"");
    json_decref(document);
}

static void a_file_has_a_limit_and_an_object_at_its_root(void **state)
{
    (void)state;
    char path[] = "/tmp/spw-json-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    json_t *document = NULL;
    assert_int_equal(spw__file_put(path, "[1, 2, 3]", 9), 0);
    assert_int_equal(spw__json_load(path, 9, &document), SPW_EFORMAT);
    assert_non_null(strstr(spw_last_error(), "object"));
    assert_non_null(strstr(spw_last_error(), path));
    assert_int_equal(spw__json_load(path, 8, &document), SPW_EFORMAT);
    assert_non_null(strstr(spw_last_error(), path));
    assert_int_equal(spw__file_put(path, "{}", 2), 0);
    assert_int_equal(spw__json_load(path, 8, &document), 0);
    json_decref(document);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(spw__json_load(path, 8, &document), SPW_ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_error_names_line_column_and_byte),
        cmocka_unit_test(nesting_has_an_end),
        cmocka_unit_test(a_key_twice_is_an_error_where_it_matters),
        cmocka_unit_test(a_zero_character_is_text),
        cmocka_unit_test(an_integer_past_64_bits_is_a_real),
        cmocka_unit_test(getters_name_the_key_and_what_is_wanted),
        cmocka_unit_test(an_absent_key_leaves_the_value_unless_it_is_required),
        cmocka_unit_test(a_file_has_a_limit_and_an_object_at_its_root),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
