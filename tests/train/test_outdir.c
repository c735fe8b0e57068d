#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "train/outdir.h"
#include "train/runlog.h"

#include <math.h>
#include <spillway/spillway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char home[64];

static int make_home(void **state)
{
    (void)state;
    (void)snprintf(home, sizeof home, "/tmp/spw-outdir-XXXXXX");
    return mkdtemp(home) ? 0 : -1;
}

static int drop_home(void **state)
{
    (void)state;
    return rmdir(home); /* fails, and so does the test, when something is left */
}

static const char *in_home(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", home, name);
    return path;
}

static bool there(const char *path)
{
    return access(path, F_OK) == 0;
}

static void an_abandoned_run_leaves_nothing(void **state)
{
    (void)state;
    spw__outdir out;
    assert_int_equal(spw__outdir_begin(&out, in_home("out")), 0);
    assert_false(there(in_home("out"))); /* so a run that is killed leaves nothing either */
    assert_int_equal(spw__outdir_stage(&out), 0);
    char *file = spw__path_join(out.staging, "half");
    assert_int_equal(spw__file_put(file, "x", 1), 0);
    free(file);
    spw__outdir_abandon(&out);
    assert_false(there(in_home("out")));
    spw__outdir_abandon(&out); /* again is allowed */
}

static void a_committed_result_is_whole_and_is_not_overwritten(void **state)
{
    (void)state;
    spw__outdir out;
    assert_int_equal(spw__outdir_begin(&out, in_home("out")), 0);
    assert_int_equal(spw__outdir_stage(&out), 0);
    char *file = spw__path_join(out.staging, "model.safetensors");
    assert_int_equal(spw__file_put(file, "whole", 5), 0);
    free(file);
    assert_int_equal(spw__outdir_commit(&out), 0);
    assert_true(there(in_home("out/model.safetensors")));
    assert_int_equal(spw__outdir_begin(&out, in_home("out")), SPW_EEXIST);
    assert_non_null(strstr(spw_last_error(), "holds a result already"));
    assert_true(there(in_home("out/model.safetensors")));
    assert_int_equal(unlink(in_home("out/model.safetensors")), 0);
    assert_int_equal(rmdir(in_home("out")), 0); /* the staging folder is gone */
}

static void a_folder_that_was_there_stays(void **state)
{
    (void)state;
    spw__outdir out;
    assert_int_equal(mkdir(in_home("out"), 0777), 0);
    assert_int_equal(spw__file_put(in_home("out/notes"), "mine", 4), 0);
    assert_int_equal(spw__outdir_begin(&out, in_home("out")), 0);
    spw__outdir_abandon(&out);
    assert_int_equal(unlink(in_home("out/notes")), 0);
    assert_int_equal(rmdir(in_home("out")), 0);
}

static void places_that_cannot_be_a_folder_are_refused(void **state)
{
    (void)state;
    spw__outdir out;
    assert_int_equal(spw__file_put(in_home("file"), "x", 1), 0);
    assert_int_equal(spw__outdir_begin(&out, in_home("file")), SPW_EEXIST);
    assert_true(spw__outdir_begin(&out, in_home("file/out")) < 0);
    assert_int_equal(spw__outdir_begin(&out, in_home("no/such/out")), SPW_ENOENT);
    assert_int_equal(unlink(in_home("file")), 0);
}

static void a_log_is_cut_at_its_first_line_only(void **state)
{
    (void)state;
    spw__runlog log;
    char *text;
    size_t bytes;
    assert_int_equal(spw__file_put(in_home("log"), "an older and longer log\n", 24), 0);
    assert_int_equal(spw__runlog_open(&log, in_home("log"), 0), 0);
    spw__runlog_close(&log);
    assert_int_equal(spw__file_read(in_home("log"), 1000, &text, &bytes), 0);
    assert_int_equal(bytes, 24); /* a run that failed early took nothing */
    free(text);
    spw__step_record record = {.step = 3, .loss = 0.5, .grad_norm = NAN, .tokens = 7};
    assert_int_equal(spw__runlog_open(&log, in_home("log"), 0), 0);
    assert_int_equal(spw__runlog_write(&log, &record), 0);
    spw__runlog_close(&log);
    assert_int_equal(spw__file_read(in_home("log"), 1000, &text, &bytes), 0);
    static const char begin[] = "{\"step\": 3, \"loss\": 0.5, \"loss_hex\": \"0x1p-1\"";
    assert_int_equal(strncmp(text, begin, sizeof begin - 1), 0);
    assert_non_null(strstr(text, "\"grad_norm\": null"));
    assert_int_equal(text[bytes - 1], '\n');
    free(text);
    assert_int_equal(unlink(in_home("log")), 0);
}

/* Lines of steps that stay; then a cut line, and lines after a resumed run's step, go. */
static void a_resumed_log_keeps_the_steps_before(void **state)
{
    (void)state;
    static const char *const older[] = {
        "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n",
        "{\"step\": 1}\n{\"step\": 2}\n{\"ste",
        "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}",
        "{\"step\": 1}\n{\"step\": 2}\nnot JSON\n{\"step\": 2}\n",
    };
    static const char begin[] = "{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3, \"loss\"";
    for (size_t i = 0; i < sizeof older / sizeof *older; i++) {
        spw__runlog log;
        char *text;
        size_t bytes;
        assert_int_equal(spw__file_put(in_home("log"), older[i], strlen(older[i])), 0);
        assert_int_equal(spw__runlog_open(&log, in_home("log"), 2), 0);
        assert_int_equal(spw__runlog_write(&log, &(spw__step_record){.step = 3}), 0);
        assert_int_equal(spw__runlog_write(&log, &(spw__step_record){.step = 4}), 0);
        assert_int_equal(spw__runlog_sync(&log), 0);
        spw__runlog_close(&log);
        assert_int_equal(spw__file_read(in_home("log"), 10000, &text, &bytes), 0);
        assert_int_equal(strncmp(text, begin, sizeof begin - 1), 0);
        int lines = 0;
        for (size_t k = 0; k < bytes; k++)
            lines += text[k] == '\n';
        assert_int_equal(lines, 4);
        free(text);
    }
    assert_int_equal(unlink(in_home("log")), 0);
}

static void a_log_without_a_line_is_removed_and_a_bad_one_is_told(void **state)
{
    (void)state;
    spw__runlog log;
    assert_int_equal(spw__runlog_open(&log, in_home("log"), 0), 0);
    spw__runlog_close(&log);
    assert_false(there(in_home("log")));
    assert_true(spw__runlog_open(&log, in_home("no/log"), 0) < 0);
    assert_non_null(strstr(spw_last_error(), "--log"));
    assert_int_equal(spw__runlog_open(&log, NULL, 0), 0);
    assert_int_equal(spw__runlog_write(&log, &(spw__step_record){.step = 1}), 0);
    spw__runlog_close(&log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_abandoned_run_leaves_nothing, make_home, drop_home),
        cmocka_unit_test_setup_teardown(a_committed_result_is_whole_and_is_not_overwritten,
                                        make_home, drop_home),
        cmocka_unit_test_setup_teardown(a_folder_that_was_there_stays, make_home, drop_home),
        cmocka_unit_test_setup_teardown(places_that_cannot_be_a_folder_are_refused, make_home,
                                        drop_home),
        cmocka_unit_test_setup_teardown(a_log_is_cut_at_its_first_line_only, make_home, drop_home),
        cmocka_unit_test_setup_teardown(a_resumed_log_keeps_the_steps_before, make_home, drop_home),
        cmocka_unit_test_setup_teardown(a_log_without_a_line_is_removed_and_a_bad_one_is_told,
                                        make_home, drop_home),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
