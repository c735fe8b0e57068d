/* Base: sizes, error strings, whole files, the pool, maps, growing arrays, Philox, lock order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/lock.h"
#include "base/mem.h"
#include "base/philox.h"
#include "base/pool.h"
#include "base/sizes.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[] = "/tmp/spw-test-base-XXXXXX";

/* ------------------------------------------------------------------------------------- sizes -- */

static void sizes_are_read_as_people_write_them(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {
        {"0", 0},
        {"1", 1},
        {"4096", 4096},
        {"1KiB", 1024},
        {"48MiB", UINT64_C(48) << 20},
        {"1.5GiB", UINT64_C(3) << 29},
        {"0.5KiB", 512},
        {"2TiB", UINT64_C(2) << 40},
        {"7B", 7},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t bytes = 99;
        assert_int_equal(spw__parse_size(good[i].text, &bytes), 0);
        assert_int_equal(bytes, good[i].bytes);
    }
}

static void what_is_no_size_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",     " ",      "MiB", "-1",  "+1",   "1 MiB",       "1mb",   "1MB",   "1.5",  "1kib",
        "0x10", "0x1KiB", "nan", "inf", "1e30", "99999999TiB", "1MiBB", "1MiB ", ".5GiB"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t bytes = 99;
        if (spw__parse_size(bad[i], &bytes) != SPW_EINVAL)
            fail_msg("\"%s\" was taken as %llu bytes", bad[i], (unsigned long long)bytes);
        assert_int_equal(bytes, 99);
    }
}

static void sizes_are_shown_with_one_decimal(void **state)
{
    (void)state;
    char buffer[24];
    assert_string_equal(spw__format_size(0, buffer, sizeof buffer), "0 B");
    assert_string_equal(spw__format_size(1023, buffer, sizeof buffer), "1023 B");
    assert_string_equal(spw__format_size(1536, buffer, sizeof buffer), "1.5 KiB");
    assert_string_equal(spw__format_size(UINT64_C(48) << 20, buffer, sizeof buffer), "48.0 MiB");
    assert_string_equal(spw__format_size(UINT64_MAX, buffer, sizeof buffer), "16777216.0 TiB");
}

/* ------------------------------------------------------------------------------------ errors -- */

static void every_code_has_its_frozen_number_and_a_text(void **state)
{
    (void)state;
    assert_string_equal(spw_strerror(SPW_OK), "success");
    for (int code = 0; code >= -11; code--)
        assert_string_not_equal(spw_strerror(code), "unknown error");
    assert_string_equal(spw_strerror(1), "unknown error");
    assert_string_equal(spw_strerror(-12), "unknown error");
    assert_int_equal(SPW_ENOMEM, -2);
    assert_int_equal(SPW_EBUSY, -11);
}

static void the_message_is_one_line_and_cut_where_it_is_too_long(void **state)
{
    (void)state;
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(spw__error(SPW_EIO, "two\nlines\r of %d", 7), SPW_EIO);
    assert_string_equal(spw_last_error(), "two lines  of 7");
    assert_int_equal(spw__error(SPW_EIO, "more: %s", spw_last_error()), SPW_EIO);
    assert_string_equal(spw_last_error(), "more: two lines  of 7");
    assert_int_equal(spw__error(SPW_EINVAL, "%s", text), SPW_EINVAL);
    assert_int_equal(strlen(spw_last_error()), 1023);
    assert_int_equal(spw__error_errno(EIO, "%s", text), SPW_EIO);
    assert_int_equal(strlen(spw_last_error()), 1023);
}

static void system_errors_become_ours(void **state)
{
    (void)state;
    static const int pairs[][2] = {
        {ENOSPC, SPW_ENOSPC},  {EDQUOT, SPW_ENOSPC},   {EEXIST, SPW_EEXIST}, {ENOENT, SPW_ENOENT},
        {ENOTDIR, SPW_ENOENT}, {ENOMEM, SPW_EHOSTMEM}, {EIO, SPW_EIO},       {EACCES, SPW_EIO}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        assert_int_equal(spw__error_errno(pairs[i][0], "a/b: cannot %s", "read"), pairs[i][1]);
        assert_int_equal(strncmp(spw_last_error(), "a/b: cannot read: ", 18), 0);
        assert_non_null(strstr(spw_last_error(), strerror(pairs[i][0])));
    }
}

static void *fail_elsewhere(void *argument)
{
    const char *before = spw_last_error();
    int *empty = argument;
    *empty = before[0] == '\0';
    spw__error(SPW_EIO, "another thread's");
    return NULL;
}

static void each_thread_has_its_own_message(void **state)
{
    (void)state;
    pthread_t thread;
    int empty = 0;
    spw__error(SPW_EIO, "mine");
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &empty), 0);
    pthread_join(thread, NULL);
    assert_true(empty);
    assert_string_equal(spw_last_error(), "mine");
}

/* ------------------------------------------------------------------------------------- files -- */

static char *path_of(const char *name)
{
    char *path = spw__path_join(folder, name);
    assert_non_null(path);
    return path;
}

static void assert_holds(const char *path, const char *text)
{
    char *data;
    size_t bytes;
    assert_int_equal(spw__file_read(path, 1 << 20, &data, &bytes), 0);
    assert_int_equal(bytes, strlen(text));
    assert_string_equal(data, text);
    free(data);
}

static int n_files(void)
{
    int n = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

static void a_file_appears_whole_or_not_at_all(void **state)
{
    (void)state;
    char *path = path_of("whole");
    spw__file_writer writer;
    assert_int_equal(spw__file_put(path, "old", 3), 0);
    assert_int_equal(spw__file_begin(&writer, path), 0);
    assert_int_equal(spw__file_write(&writer, "new and ", 8), 0);
    assert_holds(path, "old");
    assert_int_equal(spw__file_write(&writer, "longer", 6), 0);
    assert_holds(path, "old");
    assert_int_equal(spw__file_commit(&writer), 0);
    assert_holds(path, "new and longer");
    assert_int_equal(n_files(), 1);
    assert_int_equal(spw__file_begin(&writer, path), 0);
    assert_int_equal(spw__file_write(&writer, "never", 5), 0);
    spw__file_abandon(&writer);
    spw__file_abandon(&writer);
    assert_holds(path, "new and longer");
    assert_int_equal(n_files(), 1);
    assert_int_equal(spw__file_put(path, "", 0), 0);
    assert_holds(path, "");
    assert_int_equal(unlink(path), 0);
    free(path);
}

/* A process that dies before the commit leaves the old file as it was. */
static void a_death_while_writing_leaves_the_old_file(void **state)
{
    (void)state;
    char *path = path_of("survivor");
    assert_int_equal(spw__file_put(path, "old", 3), 0);
    pid_t child = fork();
    if (child == 0) {
        spw__file_writer writer;
        if (spw__file_begin(&writer, path) == 0 && spw__file_write(&writer, "half", 4) == 0)
            (void)kill(getpid(), SIGKILL);
        _exit(1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_holds(path, "old");
    char left[256];
    (void)snprintf(left, sizeof left, "%s.tmp-%ld", path, (long)child);
    assert_int_equal(unlink(left), 0);
    assert_int_equal(unlink(path), 0);
    free(path);
}

static void limit_files(uint64_t bytes)
{
    struct rlimit limit;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_write_that_fails_leaves_the_old_file_and_no_other(void **state)
{
    (void)state;
    char *path = path_of("full"), *big = spw__calloc(1 << 20, 1);
    assert_non_null(big);
    assert_int_equal(spw__file_put(path, "old", 3), 0);
    limit_files(64 << 10);
    int rc = spw__file_put(path, big, 1 << 20);
    limit_files(UINT64_MAX);
    assert_true(rc < 0);
    assert_non_null(strstr(spw_last_error(), path));
    assert_holds(path, "old");
    assert_int_equal(n_files(), 1);
    assert_int_equal(unlink(path), 0);
    free(big);
    free(path);
}

static void files_that_cannot_be_read_or_made_are_named(void **state)
{
    (void)state;
    char *path = path_of("absent"), *data = NULL;
    char *deep = path_of("no/such/folder/file");
    size_t bytes;
    assert_int_equal(spw__file_read(path, 10, &data, &bytes), SPW_ENOENT);
    assert_non_null(strstr(spw_last_error(), path));
    assert_int_equal(spw__file_put(deep, "x", 1), SPW_ENOENT);
    assert_non_null(strstr(spw_last_error(), deep));
    assert_int_equal(spw__file_read(folder, 10, &data, &bytes), SPW_EINVAL);
    assert_int_equal(spw__file_put(path, "12345678901", 11), 0);
    assert_int_equal(spw__file_read(path, 10, &data, &bytes), SPW_EFORMAT);
    assert_int_equal(spw__file_read(path, 11, &data, &bytes), 0);
    assert_int_equal(bytes, 11);
    free(data);
    assert_int_equal(unlink(path), 0);
    free(path);
    free(deep);
}

/* -------------------------------------------------------------------------------------- pool -- */

enum { MOST_TASKS = 1000 };

typedef struct tally {
    atomic_int runs[MOST_TASKS];
    int input, output[MOST_TASKS]; /* plain: what orders them is the pool */
} tally;

static void count_task(void *context, size_t index)
{
    tally *t = context;
    atomic_fetch_add(&t->runs[index], 1);
    t->output[index] = t->input + (int)index;
}

static void every_task_runs_once_on_any_number_of_threads(void **state)
{
    (void)state;
    static const unsigned threads[] = {1, 2, 3, 8};
    static const size_t n_tasks[] = {0, 1, 2, 7, MOST_TASKS};
    for (size_t i = 0; i < sizeof threads / sizeof *threads; i++) {
        spw__pool *pool;
        assert_int_equal(spw__pool_create(threads[i], &pool), 0);
        assert_int_equal(spw__pool_threads(pool), threads[i]);
        for (int round = 0; round < 50; round++) {
            static tally t;
            memset(&t, 0, sizeof t);
            size_t n = n_tasks[round % 5];
            t.input = round;
            spw__pool_run(pool, n, count_task, &t);
            for (size_t k = 0; k < MOST_TASKS; k++) {
                assert_int_equal(atomic_load(&t.runs[k]), k < n ? 1 : 0);
                assert_int_equal(t.output[k], k < n ? round + (int)k : 0);
            }
        }
        spw__pool_destroy(pool);
    }
    spw__pool_destroy(NULL);
}

static void the_default_is_a_thread_a_core(void **state)
{
    (void)state;
    spw__pool *pool;
    assert_int_equal(spw__pool_create(0, &pool), 0);
    assert_true(spw__pool_threads(pool) >= 1);
    assert_true(spw__pool_threads(pool) <= (unsigned)sysconf(_SC_NPROCESSORS_CONF));
    spw__pool_destroy(pool);
}

typedef struct caller {
    pthread_t thread;
    spw__pool *pool;
    bool right;
} caller;

static void *call_often(void *argument)
{
    caller *c = argument;
    tally *t = spw__calloc(1, sizeof *t);
    c->right = t != NULL;
    for (int round = 0; c->right && round < 100; round++) {
        t->input = round;
        spw__pool_run(c->pool, 20, count_task, t);
        for (int k = 0; k < 20; k++)
            c->right = c->right && t->runs[k] == round + 1 && t->output[k] == round + k;
    }
    free(t);
    return NULL;
}

static void callers_take_turns(void **state)
{
    (void)state;
    spw__pool *pool;
    caller callers[3];
    assert_int_equal(spw__pool_create(3, &pool), 0);
    for (int i = 0; i < 3; i++) {
        callers[i] = (caller){.pool = pool};
        assert_int_equal(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(callers[i].thread, NULL);
        assert_true(callers[i].right);
    }
    spw__pool_destroy(pool);
}

/* ------------------------------------------------------------------------------------ memory -- */

static void maps_are_zero_and_errors_are_recorded(void **state)
{
    (void)state;
    unsigned char *p = spw__map((5 << 20) + 1);
    assert_non_null(p);
    for (size_t i = 0; i < (5 << 20) + 1; i += 511)
        assert_int_equal(p[i], 0);
    p[5 << 20] = 1;
    spw__unmap(p, (5 << 20) + 1);
    spw__unmap(NULL, 1);
    assert_null(spw__map(UINT64_MAX));
    assert_non_null(strstr(spw_last_error(), "18446744073709551615"));
    assert_null(spw__map(UINT64_C(1) << 62));
}

static void arrays_grow_and_keep_what_they_hold(void **state)
{
    (void)state;
    uint64_t *array = NULL;
    size_t capacity = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_equal(spw__grow(&array, &capacity, i + 1, sizeof *array), 0);
        assert_true(capacity > i);
        array[i] = i * i;
    }
    for (uint64_t i = 0; i < 1000; i++)
        assert_int_equal(array[i], i * i);
    size_t before = capacity;
    assert_int_equal(spw__grow(&array, &capacity, SIZE_MAX / 8, sizeof *array), SPW_EHOSTMEM);
    assert_int_equal(capacity, before);
    assert_int_equal(array[999], 999 * 999);
    free(array);
}

/* ------------------------------------------------------------------------------------ philox -- */

/* The known answers of the paper's authors (Random123, kat_vectors, philox4x32 of 10 rounds). */
static void philox_gives_the_published_answers(void **state)
{
    (void)state;
    static const uint32_t f = 0xffffffff;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{f, f, f, f}, {f, f}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        spw__philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
    assert_true(spw__unit_of_bits(0) == 0.0f);
    assert_true(spw__unit_of_bits(f) < 1.0f);
}

/* ------------------------------------------------------------------------------------- locks -- */

#ifdef SPW_CHECKS
/* The signal that ends a child which runs `wrong`, or 0. */
static int signal_of(void (*wrong)(void))
{
    pid_t child = fork();
    if (child == 0) {
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        wrong();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void take_in_order(void)
{
    spw__lock store, device;
    spw__lock_init(&store, SPW__RANK_STORE);
    spw__lock_init(&device, SPW__RANK_DEVICE);
    spw__lock_take(&store);
    spw__lock_take(&device);
    spw__lock_drop(&device);
    spw__lock_drop(&store);
    spw__lock_assert_none();
}

static void take_out_of_order(void)
{
    spw__lock store, device;
    spw__lock_init(&store, SPW__RANK_STORE);
    spw__lock_init(&device, SPW__RANK_DEVICE);
    spw__lock_take(&device);
    spw__lock_take(&store);
}

static void call_out_under_a_lock(void)
{
    spw__lock pager;
    spw__lock_init(&pager, SPW__RANK_PAGER);
    spw__lock_take(&pager);
    spw__lock_assert_none();
}

static void locks_out_of_order_abort_in_checked_builds(void **state)
{
    (void)state;
    assert_int_equal(signal_of(take_in_order), 0);
    assert_int_equal(signal_of(take_out_of_order), SIGABRT);
    assert_int_equal(signal_of(call_out_under_a_lock), SIGABRT);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read_as_people_write_them),
        cmocka_unit_test(what_is_no_size_is_refused),
        cmocka_unit_test(sizes_are_shown_with_one_decimal),
        cmocka_unit_test(every_code_has_its_frozen_number_and_a_text),
        cmocka_unit_test(the_message_is_one_line_and_cut_where_it_is_too_long),
        cmocka_unit_test(system_errors_become_ours),
        cmocka_unit_test(each_thread_has_its_own_message),
        cmocka_unit_test(a_file_appears_whole_or_not_at_all),
        cmocka_unit_test(a_death_while_writing_leaves_the_old_file),
        cmocka_unit_test(a_write_that_fails_leaves_the_old_file_and_no_other),
        cmocka_unit_test(files_that_cannot_be_read_or_made_are_named),
        cmocka_unit_test(every_task_runs_once_on_any_number_of_threads),
        cmocka_unit_test(the_default_is_a_thread_a_core),
        cmocka_unit_test(callers_take_turns),
        cmocka_unit_test(maps_are_zero_and_errors_are_recorded),
        cmocka_unit_test(arrays_grow_and_keep_what_they_hold),
        cmocka_unit_test(philox_gives_the_published_answers),
#ifdef SPW_CHECKS
        cmocka_unit_test(locks_out_of_order_abort_in_checked_builds),
#endif
    };
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(folder);
    return failed;
}
