/* Random walks: whatever is paged, when and how, the pages hold what a plain array holds. */
#include "walk/chance.h"
#include "world.h"

enum { MOST_PIECES = 24, EPISODE = 120, WALKS = 5 /* that share the operations */ };

typedef struct walk {
    world w;
    uint64_t seed, state;
    void *pieces[MOST_PIECES]; /* from spw_malloc */
} walk;

static void fail_walk(const walk *k, const char *what)
{
    fail_msg("%s; SPW_WALK_SEED=%llu; %s", what, (unsigned long long)k->seed, spw_last_error());
}

static void do_malloc(walk *k)
{
    size_t i = chance(&k->state) % MOST_PIECES;
    uint64_t bytes = chance(&k->state) % (UINT64_C(1) << 20);
    spw_free(k->w.pager, k->pieces[i]);
    k->pieces[i] = NULL;
    int rc = spw_malloc(k->w.pager, bytes, &k->pieces[i]);
    if (rc == 0)
        memset(k->pieces[i], 0xA5, bytes);
    else if (rc != SPW_ENOMEM)
        fail_walk(k, "spw_malloc");
}

static void do_write(walk *k)
{
    uint64_t page = chance(&k->state) % k->w.n_pages, words[16];
    uint64_t at = chance(&k->state) % (WORDS - 16);
    for (int i = 0; i < 16; i++)
        words[i] = chance(&k->state);
    if (spw__pager_write(k->w.pager, page, at * 8, words, sizeof words) < 0)
        fail_walk(k, "write");
    memcpy(k->w.model + page * WORDS + at, words, sizeof words);
}

static void do_read(walk *k)
{
    uint64_t page = chance(&k->state) % k->w.n_pages, words[16];
    uint64_t at = chance(&k->state) % (WORDS - 16);
    if (spw__pager_read(k->w.pager, page, at * 8, words, sizeof words) < 0)
        fail_walk(k, "read");
    if (memcmp(words, k->w.model + page * WORDS + at, sizeof words) != 0)
        fail_walk(k, "a page differs from the plain array");
}

static void do_something(walk *k)
{
    uint64_t freed;
    switch (chance(&k->state) % 8) {
    case 0:
    case 1:
        if (world_sweep(&k->w, ~UINT64_C(0)) < 0)
            fail_walk(k, "full sweep");
        break;
    case 2:
        if (world_sweep(&k->w, chance(&k->state)) < 0)
            fail_walk(k, "partial sweep");
        break;
    case 3:
        do_write(k);
        break;
    case 4:
        (void)spw_pager_reclaim(k->w.pager, chance(&k->state) % (1 << 20), &freed);
        break;
    case 5:
        (void)spw_pager_reserve(k->w.pager, chance(&k->state) % (1 << 20));
        break;
    case 6:
        do_read(k);
        break;
    default:
        do_malloc(k);
    }
}

/* The first sweep may come while another thread has what the ring needs: it may be repeated. */
static void begin_walk(walk *k)
{
    int rc = world_sweep(&k->w, ~UINT64_C(0));
    for (int tries = 0; rc == SPW_ENOMEM && tries < 1000; tries++) {
        k->w.salt--;
        rc = world_sweep(&k->w, ~UINT64_C(0));
    }
    if (rc < 0)
        fail_walk(k, "first sweep");
}

static void run_walk(uint64_t seed, const spw_pager_config *config, uint64_t mem, bool crowded)
{
    walk k = {.seed = seed, .state = seed * 2 + 1};
    tenant tenants[N_TENANTS];
    uint64_t n_pages = 1 + chance(&k.state) % 70;
    if (world_open(&k.w, mem ? mem + 8 * PAGE_BYTES : 0, config, n_pages) < 0)
        fail_walk(&k, "open");
    if (crowded)
        assert_true(tenants_begin(tenants, k.w.pager, seed, 1 << 20));
    begin_walk(&k);
    for (int i = 0; i < EPISODE; i++)
        do_something(&k);
    if (!world_agrees(&k.w))
        fail_walk(&k, "the pages differ from the plain array");
    if (crowded)
        tenants_end(tenants);
    for (int i = 0; i < MOST_PIECES; i++)
        spw_free(k.w.pager, k.pieces[i]);
    world_close(&k.w);
}

static void walk_with(spw_paging paging, bool file, uint64_t mem)
{
    char path[64];
    uint64_t ops = walk_ops(WALKS * 8 * EPISODE) / WALKS;
    for (uint64_t i = 0; i * EPISODE < ops; i++) {
        uint64_t seed = walk_seed() + i, state = seed * 77 + 5;
        spw_pager_config config;
        spw_pager_config_default(&config);
        config.paging = paging;
        config.store = file ? new_store_path(path, sizeof path) : "ram";
        config.ring_frames = (uint32_t)(3 + chance(&state) % 6);
        config.state_percent = (double)(chance(&state) % 5) * 25;
        config.occupancy = 0.5 + (double)(chance(&state) % 6) * 0.1;
        run_walk(seed, &config, mem, chance(&state) % 3 == 0);
    }
}

static void copy_from_ram_under_a_cap(void **unused)
{
    (void)unused;
    walk_with(SPW_PAGING_COPY, false, 6 << 20);
}

static void copy_from_ram_with_room_for_all(void **unused)
{
    (void)unused;
    walk_with(SPW_PAGING_COPY, false, 64 << 20);
}

static void copy_from_a_file_under_a_cap(void **unused)
{
    (void)unused;
    walk_with(SPW_PAGING_COPY, true, 6 << 20);
}

static void mapped(void **unused)
{
    (void)unused;
    walk_with(SPW_PAGING_MAPPED, false, 6 << 20);
}

static void off(void **unused)
{
    (void)unused;
    walk_with(SPW_PAGING_OFF, false, 64 << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy_from_ram_under_a_cap),
        cmocka_unit_test(copy_from_ram_with_room_for_all),
        cmocka_unit_test(copy_from_a_file_under_a_cap),
        cmocka_unit_test(mapped),
        cmocka_unit_test(off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
