/* Files with checksums: written in any order and in parts, and read by anyone's safetensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "format/checked.h"
#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[64];

static int set_path(void **unused)
{
    (void)unused;
    (void)snprintf(path, sizeof path, "/tmp/spw-test-checked-%ld.safetensors", (long)getpid());
    return 0;
}

static int remove_file(void **unused)
{
    (void)unused;
    (void)unlink(path);
    return 0;
}

static const spw__tensor_spec specs[] = {
    {.name = "floats", .shape = {3}, .dims = 1, .dtype = SPW__DTYPE_F32},
    {.name = "none", .shape = {0}, .dims = 1, .dtype = SPW__DTYPE_F32},
    {.name = "codes", .shape = {5}, .dims = 1, .dtype = SPW__DTYPE_U8},
};

static void begin(spw__checked_writer *writer)
{
    json_t *metadata = json_pack("{s:s}", "what", "a test");
    assert_int_equal(spw__checked_begin(writer, path, specs, 3, metadata), 0);
    json_decref(metadata);
}

static void tensors_come_in_any_order_and_in_parts(void **unused)
{
    (void)unused;
    static const float floats[] = {1, 2, 3};
    spw__checked_writer writer;
    begin(&writer);
    assert_int_equal(spw__checked_write(&writer, 2, "ab", 2), 0);
    assert_int_equal(spw__checked_write(&writer, 0, floats, 8), 0);
    assert_int_equal(spw__checked_write(&writer, 2, "cde", 3), 0);
    assert_int_equal(spw__checked_write(&writer, 0, floats + 2, 4), 0);
    assert_int_equal(spw__checked_commit(&writer), 0);
    spw__safetensors file;
    assert_int_equal(spw__checked_open(path, &file), 0);
    assert_int_equal(spw__checked_verify(&file), 0);
    assert_string_equal(json_string_value(json_object_get(file.metadata, "what")), "a test");
    const spw__tensor *tensor = spw__safetensors_find(&file, "floats");
    assert_memory_equal(tensor->data, floats, sizeof floats);
    assert_int_equal(spw__tensor_offset(&file, tensor) % 4, 0);
    char codes[4];
    tensor = spw__safetensors_find(&file, "codes");
    assert_int_equal(spw__tensor_read(&file, tensor, 1, codes, 4), 0);
    assert_memory_equal(codes, "bcde", 4);
    uint32_t crc;
    assert_int_equal(spw__checked_crc(&file, spw__safetensors_find(&file, "none"), &crc), 0);
    assert_int_equal(crc, 0);
    spw__safetensors_close(&file);
}

static void too_few_and_too_many_bytes_are_refused(void **unused)
{
    (void)unused;
    spw__checked_writer writer;
    (void)unlink(path);
    begin(&writer);
    assert_int_equal(spw__checked_write(&writer, 2, "abcdef", 6), SPW_EINVAL);
    assert_int_equal(spw__checked_write(&writer, 2, "abcde", 5), 0);
    assert_int_equal(spw__checked_commit(&writer), SPW_EINVAL);
    assert_non_null(strstr(spw_last_error(), "tensor floats: 0 of 12 bytes"));
    assert_int_equal(access(path, F_OK), -1);
    begin(&writer);
    spw__checked_abandon(&writer);
    assert_int_equal(access(path, F_OK), -1);
}

static void a_file_that_shrinks_after_it_was_opened_is_an_error(void **unused)
{
    (void)unused;
    static const float floats[] = {1, 2, 3};
    spw__checked_writer writer;
    begin(&writer);
    assert_int_equal(spw__checked_write(&writer, 2, "abcde", 5), 0);
    assert_int_equal(spw__checked_write(&writer, 0, floats, 12), 0);
    assert_int_equal(spw__checked_commit(&writer), 0);
    spw__safetensors file;
    assert_int_equal(spw__checked_open(path, &file), 0);
    assert_int_equal(truncate(path, (off_t)file.map_bytes - 2), 0);
    assert_int_equal(spw__checked_verify(&file), SPW_EIO);
    assert_non_null(strstr(spw_last_error(), "tensor codes: the file ends at byte"));
    spw__safetensors_close(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_come_in_any_order_and_in_parts),
        cmocka_unit_test(too_few_and_too_many_bytes_are_refused),
        cmocka_unit_test(a_file_that_shrinks_after_it_was_opened_is_an_error),
    };
    return cmocka_run_group_tests(tests, set_path, remove_file);
}
