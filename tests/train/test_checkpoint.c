/* Checkpoint folders: whole or not there, whatever write fails; which of them is taken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "format/json.h"
#include "train/checkpoint.h"
#include "train/folders.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char out[64];
static spw__progress silent;

static int make_out(void **unused)
{
    (void)unused;
    (void)snprintf(out, sizeof out, "/tmp/spw-checkpoint-XXXXXX");
    return mkdtemp(out) ? 0 : -1;
}

static int drop_out(void **unused)
{
    (void)unused;
    spw__checkpoint_retire(out, 0, 0);
    spw__checkpoint_sweep(out);
    return rmdir(out); /* fails, and so does the test, when something is left */
}

static int put(const char *folder, const char *name, const char *text)
{
    char *path = spw__path_join(folder, name);
    int rc = spw__file_put(path, text, strlen(text));
    free(path);
    return rc;
}

static int save(uint64_t step, const char *text)
{
    char *staging;
    int rc = spw__checkpoint_begin(out, &staging);
    if (rc < 0)
        return rc;
    rc = put(staging, SPW__CHECKPOINT_OPTIMIZER, text);
    if (rc < 0) {
        spw__checkpoint_abandon(staging);
        return rc;
    }
    json_t *document = json_pack("{s:s}", "text", text);
    rc = spw__checkpoint_commit(out, staging, step, document);
    json_decref(document);
    return rc;
}

/* The newest valid one is of `step` and holds `text`; step 0: there is none. */
static void assert_newest(uint64_t step, const char *text)
{
    spw__checkpoint found;
    assert_int_equal(spw__checkpoint_find(out, &silent, &found), 0);
    assert_int_equal(found.step, step);
    if (step) {
        const char *said = json_string_value(json_object_get(found.document, "text"));
        assert_string_equal(said, text);
    }
    spw__checkpoint_free(&found);
}

static void the_newest_valid_one_is_taken(void **unused)
{
    (void)unused;
    assert_newest(0, "");
    assert_int_equal(save(9, "nine"), 0);
    assert_int_equal(save(10, "ten"), 0);
    assert_newest(10, "ten"); /* by number, not by letter */
    char path[128];
    (void)snprintf(path, sizeof path, "%s/checkpoint-10", out);
    assert_int_equal(put(path, SPW__CHECKPOINT_OPTIMIZER, "tan"), 0);
    assert_newest(9, "nine");
    assert_true(strstr(spw_last_error(), "checkpoint-10/" SPW__CHECKPOINT_OPTIMIZER) != NULL);
    assert_int_equal(save(10, "ten again"), 0); /* in the place of the damaged one */
    assert_newest(10, "ten again");
}

static void names_that_only_look_like_one_are_none(void **unused)
{
    (void)unused;
    static const char *const names[] = {"checkpoint-", "checkpoint-0", "checkpoint-07",
                                        "checkpoint-7x", "checkpoint-99999999999999999999999"};
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", out, names[i]);
        assert_int_equal(mkdir(path, 0777), 0);
    }
    assert_false(spw__checkpoint_any(out));
    spw__checkpoint_retire(out, 0, 0); /* and are not ours to remove */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", out, names[i]);
        assert_int_equal(rmdir(path), 0);
    }
}

static void two_stay(void **unused)
{
    (void)unused;
    for (uint64_t step = 1; step <= 5; step++)
        assert_int_equal(save(step, "x"), 0);
    spw__checkpoint_retire(out, 5, 4);
    char path[128];
    for (int step = 1; step <= 5; step++) {
        (void)snprintf(path, sizeof path, "%s/checkpoint-%d", out, step);
        assert_int_equal(access(path, F_OK) == 0, step >= 4);
    }
}

static int count_name(void *context, const char *name)
{
    (void)name;
    ++*(int *)context;
    return 0;
}

/* Every create, write, sync and rename of a file fails once. */
static void a_save_that_fails_leaves_the_one_before(void **unused)
{
    (void)unused;
    assert_int_equal(save(1, "one"), 0);
    int rc = SPW_EIO;
    uint64_t nth = 0;
    while (rc < 0) {
        spw__file_fail(++nth);
        rc = save(2, "two");
        spw__file_fail(0);
        assert_true(rc == 0 || rc == SPW_EIO);
        int n = 0;
        assert_int_equal(spw__folder_each(out, count_name, &n), 0);
        assert_int_equal(n, rc == 0 ? 2 : 1);
        assert_newest(rc == 0 ? 2 : 1, rc == 0 ? "two" : "one");
    }
    assert_true(nth > 8);
}

static void what_killed_runs_left_is_swept(void **unused)
{
    (void)unused;
    char *staging, path[128];
    assert_int_equal(spw__checkpoint_begin(out, &staging), 0);
    assert_int_equal(put(staging, "half", "x"), 0);
    free(staging);
    (void)snprintf(path, sizeof path, "%s/.partial-12345", out);
    assert_int_equal(mkdir(path, 0777), 0);
    assert_int_equal(put(path, "half", "x"), 0);
    assert_int_equal(save(3, "three"), 0); /* begins with an empty folder */
    assert_newest(3, "three");
    spw__checkpoint_sweep(out);
    assert_int_equal(access(path, F_OK), -1);
    assert_newest(3, "three");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_newest_valid_one_is_taken, make_out, drop_out),
        cmocka_unit_test_setup_teardown(names_that_only_look_like_one_are_none, make_out, drop_out),
        cmocka_unit_test_setup_teardown(two_stay, make_out, drop_out),
        cmocka_unit_test_setup_teardown(a_save_that_fails_leaves_the_one_before, make_out,
                                        drop_out),
        cmocka_unit_test_setup_teardown(what_killed_runs_left_is_swept, make_out, drop_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
