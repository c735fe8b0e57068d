/* What control groups allow, on made-up files of both versions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/available.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/spw-test-available-XXXXXX";
static char self_cgroup[64];
static const spw__memory_places places = {self_cgroup, folder};

/* `path` under the folder; its own folders are made on the way. */
static void put(const char *path, const char *text)
{
    char full[256];
    (void)snprintf(full, sizeof full, "%s/%s", folder, path);
    for (char *at = full + strlen(folder) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        (void)mkdir(full, 0700);
        *at = '/';
    }
    FILE *file = fopen(full, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int fresh(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf %s && mkdir %s", folder, folder);
    (void)snprintf(self_cgroup, sizeof self_cgroup, "%s/self", folder);
    return system(command);
}

static void expect(uint64_t most, uint64_t left)
{
    assert_int_equal(spw__memory_in_groups(&places, false), most);
    assert_int_equal(spw__memory_in_groups(&places, true), left);
}

static void without_groups_there_is_no_limit(void **state)
{
    (void)state;
    expect(UINT64_MAX, UINT64_MAX); /* no file at all */
    put("self", "nonsense\n0\n:\n");
    expect(UINT64_MAX, UINT64_MAX);
    put("self", "0::/\n");
    expect(UINT64_MAX, UINT64_MAX);
    put("memory.max", "max\n");
    expect(UINT64_MAX, UINT64_MAX);
}

static void version_2_limits_at_any_level(void **state)
{
    (void)state;
    put("self", "0::/a/b\n");
    put("a/b/memory.max", "max\n");
    put("a/memory.max", "1000000\n");
    put("a/memory.current", "700000\n");
    put("a/memory.stat", "anon 5\ninactive_file 200000\n");
    expect(1000000, 500000);
    put("a/b/memory.max", "400000\n");
    put("a/b/memory.current", "450000\n");
    expect(400000, 0);
}

static void version_1_limits_too(void **state)
{
    (void)state;
    put("self", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n0::/\n");
    put("memory/docker/abc/memory.limit_in_bytes", "800000\n");
    put("memory/docker/abc/memory.usage_in_bytes", "300000\n");
    put("memory/docker/abc/memory.stat", "inactive_file 9\ntotal_inactive_file 100000\n");
    put("memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("memory/memory.usage_in_bytes", "1\n");
    expect(800000, 600000);
}

/* A container sees its own group at the root, whatever name the host has for it. */
static void a_group_that_is_not_mounted_is_looked_for_at_the_root(void **state)
{
    (void)state;
    put("self", "4:hugetlb,memory:/docker/abc\n");
    put("memory/memory.limit_in_bytes", "600000\n");
    put("memory/memory.usage_in_bytes", "100000\n");
    expect(600000, 500000);
    put("self", "4:notmemory:/docker/abc\n");
    expect(UINT64_MAX, UINT64_MAX);
}

static void the_machine_has_no_more_than_its_groups_say(void **state)
{
    const spw__memory_places real = {"/proc/self/cgroup", "/sys/fs/cgroup"};
    uint64_t most = spw__memory_physical();
    (void)state;
    assert_true(most > 0 && most <= spw__memory_in_groups(&real, false));
    assert_true(most <= (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
}

#define TEST(function) cmocka_unit_test_setup(function, fresh)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(without_groups_there_is_no_limit),
        TEST(version_2_limits_at_any_level),
        TEST(version_1_limits_too),
        TEST(a_group_that_is_not_mounted_is_looked_for_at_the_root),
        TEST(the_machine_has_no_more_than_its_groups_say),
    };
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) + failed;
}
