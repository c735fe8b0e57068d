#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "format/safetensors.h"

#include <spillway/spillway.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char home[] = "/tmp/spw-safetensors-XXXXXX";
static char path[64];

static int make_home(void **state)
{
    (void)state;
    if (!mkdtemp(home))
        return -1;
    (void)snprintf(path, sizeof path, "%s/t.safetensors", home);
    return 0;
}

static int drop_home(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(home); /* fails, and so does the test, when something else is left */
}

/* Writes a file: `length` as the header's, then the header, then so many bytes of data. */
static void put(uint64_t length, const char *header, size_t data_bytes)
{
    size_t header_bytes = strlen(header), total = 8 + header_bytes + data_bytes;
    unsigned char *raw = calloc(1, total);
    assert_non_null(raw);
    for (int i = 0; i < 8; i++)
        raw[i] = (unsigned char)(length >> (8 * i));
    memcpy(raw + 8, header, header_bytes);
    assert_int_equal(spw__file_put(path, raw, total), 0);
    free(raw);
}

static void check_refused(const char *words)
{
    spw__safetensors file;
    int rc = spw__safetensors_open(path, &file);
    bool said = strstr(spw_last_error(), words) && strstr(spw_last_error(), path);
    if (rc != SPW_EFORMAT || !said)
        print_error("%d, not \"%s\" in: %s\n", rc, words, rc < 0 ? spw_last_error() : "(opened)");
    assert_int_equal(rc, SPW_EFORMAT);
    assert_true(said);
    assert_null(strchr(spw_last_error(), '\n'));
    assert_null(file.path); /* nothing is left to close, and closing is allowed */
    spw__safetensors_close(&file);
}

/* -------------------------------------------------------------------------------------- lies -- */

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

typedef struct lie {
    const char *header;
    size_t data_bytes;
    const char *words;
} lie;

static const lie lies[] = {
    /* the header */
    {"", 0, "byte 8: the header is not a JSON object"},
    {"[1]", 0, "byte 8: the header is not a JSON object"},
    {" {}", 0, "byte 8: the header is not a JSON object"},
    {"{\"a\"", 0, "not JSON"},
    {"{}{}", 0, "not JSON"},
    {"{\"\xFF\":1}", 0, "not JSON"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[0,4]") "}", 4, "duplicate"},
    /* dtype */
    {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, "tensor a: dtype F33 is not known"},
    {"{" T("a", "f32", "[1]", "[0,4]") "}", 4, "tensor a: dtype f32 is not known"},
    {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor a: dtype (none)"},
    {"{\"a\":3}", 0, "tensor a: dtype (none)"},
    {"{\"a\":null}", 0, "tensor a: dtype (none)"},
    /* shape */
    {"{" T("a", "F32", "4", "[0,4]") "}", 4, "tensor a: shape is not a list"},
    {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, "shape is not a list of at most 8"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor a: shape is not a list"},
    {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, "tensor a: a shape or offset is not a whole"},
    {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, "tensor a: a shape or offset is not a whole"},
    {"{" T("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "tensor a: a shape or offset is not a whole"},
    {"{" T("a", "F32", "[18446744073709551617]", "[0,4]") "}", 4, "is not a whole"},
    {"{" T("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "tensor a: its shape overflows"},
    {"{" T("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, "tensor a: 0 bytes at byte"},
    {"{" T("a", "F32", "[2]", "[0,4]") "}", 4, "tensor a: 4 bytes at byte 62 do not fit its shape"},
    {"{" T("a", "F4", "[3]", "[0,1]") "}", 1, "do not fit its shape and F4"},
    /* offsets */
    {"{" T("a", "F32", "[1]", "4") "}", 4, "tensor a: data_offsets is not a pair"},
    {"{" T("a", "F32", "[1]", "[0,4,8]") "}", 4, "tensor a: data_offsets is not a pair"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor a: data_offsets is not a pair"},
    {"{" T("a", "F32", "[1]", "[-4,0]") "}", 4, "tensor a: a shape or offset is not a whole"},
    {"{" T("a", "F32", "[1]", "[0,8]") "}", 4, "tensor a: bytes 0 to 8 of data that has 4"},
    {"{" T("a", "F32", "[1]", "[8,12]") "}", 4, "tensor a: bytes 8 to 12 of data that has 4"},
    {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, "tensor a: bytes 4 to 0 of data"},
    {"{" T("a", "F32", "[1]", "[0,9223372036854775807]") "}", 4, "of data that has 4"},
    /* cover */
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[0,4]") "}", 4,
     "overlaps another"},
    {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[4,8]") "}", 8, "b: overlaps"},
    {"{" T("a", "F32", "[1]", "[4,8]") "}", 8, "tensor a: a hole at byte"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12, "b: a hole"},
    {"{" T("a", "F32", "[1]", "[0,4]") "}", 7, "3 bytes at the end belong to no tensor"},
    {"{}", 1, "1 bytes at the end belong to no tensor"},
    /* metadata */
    {"{\"__metadata__\":3}", 0, "__metadata__ is not an object of strings"},
    {"{\"__metadata__\":{\"format\":1}}", 0, "__metadata__ is not an object of strings"},
};

static void every_lie_is_refused_and_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        put(strlen(lies[i].header), lies[i].header, lies[i].data_bytes);
        check_refused(lies[i].words);
    }
}

static void a_header_longer_than_the_file_or_the_limit_is_refused(void **state)
{
    (void)state;
    put(3, "{}", 0);
    check_refused("byte 0: a header of 3 bytes in a file of 10: truncated?");
    put(100000000, "{}", 0);
    check_refused("byte 0: a header of 100000000 bytes in a file of 10");
    put(100000001, "{}", 0);
    check_refused("byte 0: a header of 100000001 bytes, at most 100000000 are allowed");
    put(UINT64_MAX, "{}", 0);
    check_refused("byte 0: a header of 18446744073709551615 bytes");
}

static void what_is_no_file_is_named(void **state)
{
    (void)state;
    spw__safetensors file;
    assert_int_equal(spw__safetensors_open("/tmp/spw-no-such-file", &file), SPW_ENOENT);
    assert_non_null(strstr(spw_last_error(), "/tmp/spw-no-such-file"));
    assert_int_equal(spw__safetensors_open(home, &file), SPW_EINVAL);
    assert_non_null(strstr(spw_last_error(), "not a regular file"));
}

/* -------------------------------------------------------------------------------- round trip -- */

static const spw__tensor_spec specs[] = {
    {.name = "z.weight", .shape = {3, 5}, .dims = 2, .dtype = SPW__DTYPE_F32},
    {.name = "b\"\xC3\xA9", .shape = {7}, .dims = 1, .dtype = SPW__DTYPE_BF16},
    {.name = "empty", .shape = {4, 0}, .dims = 2, .dtype = SPW__DTYPE_F32},
    {.name = "h", .shape = {1, 2, 3}, .dims = 3, .dtype = SPW__DTYPE_F16},
    {.name = "codes", .shape = {5}, .dims = 1, .dtype = SPW__DTYPE_U8},
    {.name = "scalar", .dims = 0, .dtype = SPW__DTYPE_U8},
};
enum { N_SPECS = sizeof specs / sizeof *specs };
static const size_t spec_bytes[N_SPECS] = {60, 14, 0, 12, 5, 1};
enum { DATA_BYTES = 60 + 14 + 12 + 5 + 1 };

static void write_good(void)
{
    spw__file_writer writer;
    unsigned char data[DATA_BYTES];
    for (int i = 0; i < DATA_BYTES; i++)
        data[i] = (unsigned char)(i + 1);
    assert_int_equal(spw__safetensors_begin(&writer, path, specs, N_SPECS), 0);
    for (size_t at = 0, i = 0; i < N_SPECS; at += spec_bytes[i++])
        assert_int_equal(spw__file_write(&writer, data + at, spec_bytes[i]), 0);
    assert_int_equal(spw__file_commit(&writer), 0);
}

static void check_tensor(const spw__safetensors *file, size_t i, size_t at)
{
    static const char *const dtypes[] = {"F32", "BF16", "F32", "F16", "U8", "U8"};
    const spw__tensor *tensor = spw__safetensors_find(file, specs[i].name);
    assert_non_null(tensor);
    assert_int_equal(tensor->bytes, spec_bytes[i]);
    assert_int_equal(tensor->dims, specs[i].dims);
    assert_int_equal(tensor->dtype, specs[i].dtype);
    assert_string_equal(tensor->dtype_name, dtypes[i]);
    uint64_t n = 1;
    for (uint32_t d = 0; d < tensor->dims; d++) {
        assert_int_equal(tensor->shape[d], specs[i].shape[d]);
        n *= specs[i].shape[d];
    }
    assert_int_equal(tensor->n, n);
    for (size_t b = 0; b < tensor->bytes; b++)
        assert_int_equal(((const unsigned char *)tensor->data)[b], at + b + 1);
}

static void what_is_written_is_read(void **state)
{
    (void)state;
    spw__safetensors file;
    write_good();
    assert_int_equal(spw__safetensors_open(path, &file), 0);
    assert_int_equal(file.n_tensors, N_SPECS);
    for (size_t at = 0, i = 0; i < N_SPECS; at += spec_bytes[i++])
        check_tensor(&file, i, at);
    for (size_t i = 1; i < file.n_tensors; i++)
        assert_true(strcmp(file.tensors[i - 1].name, file.tensors[i].name) < 0);
    assert_null(spw__safetensors_find(&file, "absent"));
    assert_null(spw__safetensors_find(&file, ""));
    assert_null(spw__safetensors_find(&file, "__metadata__"));
    const char *data = spw__safetensors_find(&file, "z.weight")->data;
    assert_int_equal((data - (const char *)file.map) % 8, 0);
    assert_non_null(memmem(file.map, file.map_bytes, "\"format\":\"pt\"", 13));
    spw__safetensors_close(&file);
}

static void a_file_without_tensors_is_a_file(void **state)
{
    (void)state;
    spw__file_writer writer;
    spw__safetensors file;
    assert_int_equal(spw__safetensors_begin(&writer, path, NULL, 0), 0);
    assert_int_equal(spw__file_commit(&writer), 0);
    assert_int_equal(spw__safetensors_open(path, &file), 0);
    assert_int_equal(file.n_tensors, 0);
    assert_null(spw__safetensors_find(&file, "a"));
    spw__safetensors_close(&file);
    put(2, "{}", 0);
    assert_int_equal(spw__safetensors_open(path, &file), 0);
    spw__safetensors_close(&file);
}

static void types_that_are_known_but_not_used_are_read(void **state)
{
    (void)state;
    static const char header[] =
        "{" T("a", "F6_E2M3", "[4]", "[0,3]") "," T("b", "I64", "[1]", "[3,11]") "}";
    spw__safetensors file;
    put(sizeof header - 1, header, 11);
    assert_int_equal(spw__safetensors_open(path, &file), 0);
    assert_int_equal(file.tensors[0].dtype, SPW__DTYPE_OTHER);
    assert_string_equal(file.tensors[0].dtype_name, "F6_E2M3");
    assert_int_equal(file.tensors[1].bytes, 8);
    spw__safetensors_close(&file);
}

static void an_abandoned_file_leaves_nothing(void **state)
{
    (void)state;
    spw__file_writer writer;
    (void)unlink(path);
    assert_int_equal(spw__safetensors_begin(&writer, path, specs, N_SPECS), 0);
    spw__file_abandon(&writer);
    assert_int_equal(access(path, F_OK), -1);
    /* a temporary that stayed would fail drop_home */
}

static void a_file_cut_anywhere_is_refused(void **state)
{
    (void)state;
    char *good;
    size_t bytes;
    write_good();
    assert_int_equal(spw__file_read(path, 1 << 20, &good, &bytes), 0);
    for (size_t n = 0; n < bytes; n++) {
        assert_int_equal(spw__file_put(path, good, n), 0);
        check_refused("");
    }
    free(good);
}

/* Under the sanitizers: reading what a changed header describes stays inside the map. */
static void a_changed_byte_never_leads_outside_the_file(void **state)
{
    (void)state;
    static const unsigned char changes[] = {'9', '-', '}', ',', '"', 0, 0xFF};
    char *good;
    size_t bytes, refused = 0;
    write_good();
    assert_int_equal(spw__file_read(path, 1 << 20, &good, &bytes), 0);
    for (size_t at = 0; at < bytes - DATA_BYTES; at++) {
        unsigned sum = 0;
        spw__safetensors file;
        char kept = good[at];
        good[at] = (char)changes[at % sizeof changes];
        assert_int_equal(spw__file_put(path, good, bytes), 0);
        good[at] = kept;
        if (spw__safetensors_open(path, &file) < 0) {
            refused++;
            continue;
        }
        for (size_t i = 0; i < file.n_tensors; i++)
            for (uint64_t b = 0; b < file.tensors[i].bytes; b++)
                sum += ((const unsigned char *)file.tensors[i].data)[b];
        assert_int_equal(sum, DATA_BYTES * (DATA_BYTES + 1) / 2); /* each byte in one tensor */
        spw__safetensors_close(&file);
    }
    assert_true(refused > 100);
    free(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_lie_is_refused_and_named),
        cmocka_unit_test(a_header_longer_than_the_file_or_the_limit_is_refused),
        cmocka_unit_test(what_is_no_file_is_named),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(a_file_without_tensors_is_a_file),
        cmocka_unit_test(types_that_are_known_but_not_used_are_read),
        cmocka_unit_test(an_abandoned_file_leaves_nothing),
        cmocka_unit_test(a_file_cut_anywhere_is_refused),
        cmocka_unit_test(a_changed_byte_never_leads_outside_the_file),
    };
    return cmocka_run_group_tests(tests, make_home, drop_home);
}
