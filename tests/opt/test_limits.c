/* Budgets that hold: no leak over many lives, and limits that are met before there is work to lose.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <spillway/spillway.h>

#include <dirent.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { N = 20000, MIB = 1 << 20, ROUNDS = 1000, WARM_UP = 50 };

static float p[N], g[N];

typedef struct life {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
} life;

static void life_begin(life *l, const char *store, spw_paging paging, uint64_t host_mem)
{
    spw_device_config device;
    spw_pager_config pager;
    spw_optim_config optim;
    spw_device_config_default(&device);
    spw_pager_config_default(&pager);
    spw_optim_config_default(&optim);
    device.mem = 2 * MIB;
    device.threads = 2;
    pager.store = store;
    pager.paging = paging;
    pager.host_mem = host_mem;
    optim.state = SPW_STATE_32BIT;
    assert_int_equal(spw_device_open("cpu", &device, &l->device), 0);
    assert_int_equal(spw_pager_create(l->device, &pager, &l->pager), 0);
    assert_int_equal(spw_optim_create(l->pager, &optim, &l->optim), 0);
    spw_param param = {.name = "w", .data = p, .grad = g, .n = N};
    assert_int_equal(spw_optim_add(l->optim, &param), 0);
}

static void life_end(life *l)
{
    spw_optim_destroy(l->optim);
    spw_pager_destroy(l->pager);
    spw_device_close(l->device);
}

static const char *new_file(void)
{
    static char name[64];
    static int n;
    (void)snprintf(name, sizeof name, "file:/tmp/spw-limits-%ld-%d", (long)getpid(), n++);
    return name;
}

/* ------------------------------------------------------------------------------------- leaks -- */

static uint64_t entries_of(const char *path)
{
    uint64_t n = 0;
    DIR *list = opendir(path);
    assert_non_null(list);
    while (readdir(list))
        n++;
    (void)closedir(list);
    return n;
}

static uint64_t lines_of(const char *path)
{
    uint64_t n = 0;
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    for (int c; (c = fgetc(file)) != EOF;)
        n += c == '\n';
    (void)fclose(file);
    return n;
}

/* What a process has: files, threads, maps, bytes of the heap (0 where a sanitizer has its own,
 * which looks for leaks itself). */
typedef struct holdings {
    uint64_t files, threads, maps, heap;
} holdings;

static holdings holdings_now(void)
{
    return (holdings){entries_of("/proc/self/fd"), entries_of("/proc/self/task"),
                      lines_of("/proc/self/maps"), mallinfo2().uordblks};
}

static void live_once(int number)
{
    static const spw_paging ways[] = {SPW_PAGING_COPY, SPW_PAGING_COPY, SPW_PAGING_MAPPED,
                                      SPW_PAGING_OFF};
    life l;
    void *piece = NULL;
    life_begin(&l, number % 4 ? "ram" : new_file(), ways[number % 4], 0);
    assert_int_equal(spw_optim_step(l.optim, &(spw_step){.lr = 1e-3, .max_norm = 1}), 0);
    assert_int_equal(spw_malloc(l.pager, MIB, &piece), 0);
    assert_int_equal(spw_optim_step(l.optim, &(spw_step){.lr = 1e-3}), 0);
    spw_free(l.pager, piece);
    life_end(&l);
}

static void a_thousand_lives_leave_nothing(void **state)
{
    holdings before = {0};
    (void)state;
    for (int i = 0; i < WARM_UP + ROUNDS; i++) {
        if (i == WARM_UP)
            before = holdings_now();
        live_once(i);
    }
    holdings after = holdings_now();
    assert_int_equal(after.files, before.files);
    assert_int_equal(after.threads, before.threads);
    assert_true(after.maps < before.maps + ROUNDS / 20);
    assert_true(after.heap < before.heap + ROUNDS * 16); /* less than the smallest block a life */
}

/* ------------------------------------------------------------------------------------ limits -- */

static void limit_files(uint64_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_disk_that_is_too_small_is_found_before_the_first_step(void **state)
{
    life l;
    (void)state;
    life_begin(&l, new_file(), SPW_PAGING_COPY, 0);
    limit_files(64 << 10);
    int first = spw_optim_lay_out(l.optim);
    int step = spw_optim_step(l.optim, &(spw_step){.lr = 1});
    limit_files(UINT64_MAX);
    assert_int_equal(first, SPW_ENOSPC);
    assert_int_equal(step, SPW_ENOSPC);
    assert_non_null(strstr(spw_last_error(), "/tmp/spw-limits"));
    assert_true(p[0] == p[N - 1]);
    assert_int_equal(spw_optim_lay_out(l.optim), 0); /* there is room now */
    assert_int_equal(spw_optim_step(l.optim, &(spw_step){.lr = 1e-3}), 0);
    life_end(&l);
}

static void a_cap_on_host_memory_is_found_before_the_first_step(void **state)
{
    life l;
    (void)state;
    life_begin(&l, "ram", SPW_PAGING_COPY, 64 << 10);
    assert_int_equal(spw_optim_lay_out(l.optim), SPW_EHOSTMEM);
    assert_non_null(strstr(spw_last_error(), "--host-mem"));
    assert_non_null(strstr(spw_last_error(), "file:PATH"));
    assert_int_equal(spw_optim_step(l.optim, &(spw_step){.lr = 1e-3}), SPW_EHOSTMEM);
    life_end(&l);
}

static void the_layout_is_fixed_and_takes_no_device_memory(void **state)
{
    life l;
    spw_device_stats before, after;
    spw_param param = {.name = "late", .data = p, .grad = g, .n = N};
    (void)state;
    assert_int_equal(spw_optim_lay_out(NULL), SPW_EINVAL);
    life_begin(&l, "ram", SPW_PAGING_COPY, 0);
    assert_int_equal(spw_device_stats_get(l.device, &before), 0);
    assert_int_equal(spw_optim_lay_out(l.optim), 0);
    assert_int_equal(spw_optim_lay_out(l.optim), 0);
    assert_int_equal(spw_device_stats_get(l.device, &after), 0);
    assert_int_equal(after.in_use_bytes, before.in_use_bytes);
    assert_int_equal(spw_optim_add(l.optim, &param), SPW_EINVAL);
    life_end(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_lives_leave_nothing),
        cmocka_unit_test(a_disk_that_is_too_small_is_found_before_the_first_step),
        cmocka_unit_test(a_cap_on_host_memory_is_found_before_the_first_step),
        cmocka_unit_test(the_layout_is_fixed_and_takes_no_device_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
