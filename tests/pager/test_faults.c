/* The N-th allocation, copy, read or write fails, for N = 1, 2, ... until a run passes. */
#include "world.h"

typedef uint64_t (*injector)(uint64_t nth);

/* A run with a spike in the middle. Returns the first error, and what is left of the count of calls
 * to the fault; what the run leaves is checked here: after a failed sweep the pager answers
 * SPW_EFAILED, else the pages agree with the plain array. */
static int run(const spw_pager_config *config, injector inject, uint64_t nth, uint64_t *left)
{
    world w;
    inject(nth);
    int rc = world_open(&w, 60 * PAGE_BYTES, config, 40);
    if (rc < 0) {
        *left = inject(0);
        return rc;
    }
    void *spike = NULL;
    for (int i = 0; rc == 0 && i < 4; i++) {
        rc = world_sweep(&w, ~UINT64_C(0));
        if (rc == 0 && i == 1 && spw_malloc(w.pager, 50 * PAGE_BYTES, &spike) == 0) {
            spw_free(w.pager, spike);
            spike = NULL;
        }
    }
    *left = inject(0);
    if (rc == SPW_EIO) {
        assert_int_equal(world_sweep(&w, ~UINT64_C(0)), SPW_EFAILED);
        assert_non_null(strstr(spw_last_error(), "failed earlier"));
    } else if (rc == SPW_ENOMEM) {
        w.salt--;
        assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0); /* nothing was lost */
    }
    if (rc != SPW_EIO)
        assert_true(world_agrees(&w));
    world_close(&w);
    return rc;
}

/* A failure that the pager copes with (a page that stays, a slab it did not get) gives 0, so the
 * end is the run that the fault did not come to. */
static void until_it_passes(const spw_pager_config *config, injector inject)
{
    int errors = 0;
    for (uint64_t nth = 1, left = 0; !left; nth++) {
        spw_pager_config fresh = *config;
        char path[64];
        if (strncmp(config->store, "file:", 5) == 0)
            fresh.store = new_store_path(path, sizeof path);
        int rc = run(&fresh, inject, nth, &left);
        assert_true(!left || rc == 0);
        errors += rc < 0;
    }
    assert_true(errors > 0);
}

static spw_pager_config config_with(const char *store)
{
    spw_pager_config config;
    spw_pager_config_default(&config);
    config.paging = SPW_PAGING_COPY;
    config.store = store;
    return config;
}

static void allocations(void **unused)
{
    (void)unused;
    spw_pager_config config = config_with("ram");
    until_it_passes(&config, spw__dev_fail_alloc);
}

static void copies(void **unused)
{
    (void)unused;
    spw_pager_config config = config_with("ram");
    until_it_passes(&config, spw__dev_fail_copy);
}

static void reads(void **unused)
{
    (void)unused;
    char path[64];
    spw_pager_config config = config_with(new_store_path(path, sizeof path));
    until_it_passes(&config, spw__store_fail_read);
}

static void writes(void **unused)
{
    (void)unused;
    char path[64];
    spw_pager_config config = config_with(new_store_path(path, sizeof path));
    until_it_passes(&config, spw__store_fail_write);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations),
        cmocka_unit_test(copies),
        cmocka_unit_test(reads),
        cmocka_unit_test(writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
