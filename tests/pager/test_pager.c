/* What the budget, reclaim and the statistics promise. */
#include "world.h"

#include <pthread.h>
#include <stdatomic.h>

static spw_pager_config copy_config(void)
{
    spw_pager_config config;
    spw_pager_config_default(&config);
    config.paging = SPW_PAGING_COPY;
    return config;
}

static spw_pager_stats stats_of(world *w)
{
    spw_pager_stats stats;
    assert_int_equal(spw_pager_stats_get(w->pager, &stats), 0);
    return stats;
}

static void moves_only_what_does_not_fit(void **unused)
{
    (void)unused;
    for (int percent = 0; percent <= 100; percent += 25) {
        world w;
        spw_pager_config config = copy_config();
        config.state_percent = percent;
        assert_int_equal(world_open(&w, 0, &config, 64), 0);
        for (int i = 0; i < 3; i++)
            assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
        spw_pager_stats before = stats_of(&w);
        assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
        spw_pager_stats after = stats_of(&w);
        uint64_t away = after.state_bytes - after.resident_bytes;
        assert_int_equal(after.resident_bytes, after.state_bytes * (uint64_t)percent / 100);
        assert_int_equal(after.bytes_in - before.bytes_in, away);
        assert_int_equal(after.bytes_out - before.bytes_out, away);
        assert_true(world_agrees(&w));
        world_close(&w);
    }
}

static void a_first_sweep_reads_nothing(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    config.state_mem = 0;
    assert_int_equal(world_open(&w, 0, &config, 9), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    assert_int_equal(stats_of(&w).bytes_in, 0);
    assert_int_equal(stats_of(&w).bytes_out, 9 * PAGE_BYTES);
    world_close(&w);
}

static void pages_without_work_are_not_touched(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    config.state_mem = 0;
    assert_int_equal(world_open(&w, 0, &config, 16), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    spw_pager_stats before = stats_of(&w);
    assert_int_equal(world_sweep(&w, UINT64_C(0x8001)), 0);
    assert_int_equal(stats_of(&w).bytes_in - before.bytes_in, 2 * PAGE_BYTES);
    assert_int_equal(world_sweep(&w, 0), 0);
    assert_int_equal(stats_of(&w).bytes_in - before.bytes_in, 2 * PAGE_BYTES);
    world_close(&w);
}

static void state_gives_way_to_an_allocation(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    config.occupancy = 1;
    uint64_t mem = 40 * PAGE_BYTES;
    assert_int_equal(world_open(&w, mem, &config, 32), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    assert_int_equal(resident_bytes(&w), 32 * PAGE_BYTES);
    void *spike;
    uint64_t all_but_the_ring = mem - stats_of(&w).ring_bytes;
    assert_int_equal(spw_malloc(w.pager, all_but_the_ring, &spike), 0);
    memset(spike, 0x5A, all_but_the_ring);
    assert_int_equal(resident_bytes(&w), 0);
    assert_true(stats_of(&w).reclaims > 0);
    void *more;
    assert_int_equal(spw_malloc(w.pager, PAGE_BYTES, &more), SPW_ENOMEM);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    assert_true(world_agrees(&w));
    spw_free(w.pager, spike);
    world_close(&w);
}

static void state_returns_as_the_estimate_decays(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    config.occupancy = 1;
    assert_int_equal(world_open(&w, 40 * PAGE_BYTES, &config, 32), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    void *spike;
    assert_int_equal(spw_malloc(w.pager, 32 * PAGE_BYTES, &spike), 0);
    spw_free(w.pager, spike);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0); /* the spike was in this step */
    assert_in_range(resident_bytes(&w), 0, 4 * PAGE_BYTES);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0); /* half of it */
    assert_in_range(resident_bytes(&w), 18 * PAGE_BYTES, 20 * PAGE_BYTES);
    for (int i = 0; i < 6; i++)
        assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    assert_int_equal(resident_bytes(&w), 32 * PAGE_BYTES);
    assert_true(world_agrees(&w));
    world_close(&w);
}

static void a_reservation_is_kept_free(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    config.occupancy = 1;
    assert_int_equal(world_open(&w, 40 * PAGE_BYTES, &config, 32), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    assert_int_equal(spw_pager_reserve(w.pager, 20 * PAGE_BYTES), 0);
    assert_in_range(resident_bytes(&w), 0, 16 * PAGE_BYTES);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    uint64_t reclaims = stats_of(&w).reclaims;
    void *memory;
    assert_int_equal(spw_malloc(w.pager, 20 * PAGE_BYTES, &memory), 0);
    assert_int_equal(stats_of(&w).reclaims, reclaims);
    spw_free(w.pager, memory);
    assert_int_equal(spw_pager_reserve(w.pager, 0), 0);
    for (int i = 0; i < 8; i++)
        assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    assert_int_equal(resident_bytes(&w), 32 * PAGE_BYTES);
    world_close(&w);
}

static void off_never_gives_way(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    config.paging = SPW_PAGING_OFF;
    assert_int_equal(world_open(&w, 40 * PAGE_BYTES, &config, 32), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    void *spike;
    assert_int_equal(spw_malloc(w.pager, 16 * PAGE_BYTES, &spike), SPW_ENOMEM);
    assert_non_null(strstr(spw_last_error(), "1048576"));
    world_close(&w);
    assert_int_equal(world_open(&w, 20 * PAGE_BYTES, &config, 32), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), SPW_ENOMEM);
    world_close(&w);
}

static void no_room_for_the_ring_may_be_tried_again(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    assert_int_equal(world_open(&w, 16 * PAGE_BYTES, &config, 32), 0);
    void *memory;
    assert_int_equal(spw_malloc(w.pager, 14 * PAGE_BYTES, &memory), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), SPW_ENOMEM);
    assert_non_null(strstr(spw_last_error(), "ring"));
    spw_free(w.pager, memory);
    w.salt--;
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    assert_true(world_agrees(&w));
    world_close(&w);
}

/* ---------------------------------------------------------------------------------- threads -- */

typedef struct tenant {
    world *w;
    atomic_bool stop;
    uint64_t seed;
    int n_failed;
} tenant;

/* Of 60 pages, 4 are the ring's. Two tenants of at most 16 each leave a gap of 16 wherever they
 * lie, if all state gives way: a request must never fail. */
enum { TENANT_PAGES = 16 };

static void *take_and_free(void *argument)
{
    tenant *t = argument;
    uint64_t state = t->seed;
    while (!atomic_load(&t->stop)) {
        void *memory = NULL;
        uint64_t freed;
        if (spw_malloc(t->w->pager, chance(&state) % (TENANT_PAGES * PAGE_BYTES), &memory) == 0)
            spw_free(t->w->pager, memory);
        else
            t->n_failed++;
        (void)spw_pager_reclaim(t->w->pager, chance(&state) % (4 * PAGE_BYTES), &freed);
        spw_pager_stats stats;
        (void)spw_pager_stats_get(t->w->pager, &stats);
    }
    return NULL;
}

static void sweep_beside_tenants(const char *store)
{
    world w;
    spw_pager_config config = copy_config();
    config.store = store;
    assert_int_equal(world_open(&w, 60 * PAGE_BYTES, &config, 48), 0);
    assert_int_equal(spw__pager_prepare(w.pager), 0);
    tenant tenants[2] = {{.w = &w, .seed = 11}, {.w = &w, .seed = 22}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_free, &tenants[i]), 0);
    for (int i = 0; i < 40; i++)
        assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    for (int i = 0; i < 2; i++) {
        atomic_store(&tenants[i].stop, true);
        pthread_join(threads[i], NULL);
        assert_int_equal(tenants[i].n_failed, 0);
    }
    assert_true(world_agrees(&w));
    world_close(&w);
}

typedef struct asker {
    spw_pager *pager;
    pthread_barrier_t *begin, *end;
    int rc;
} asker;

static void *ask_for_eight_pages(void *argument)
{
    asker *a = argument;
    void *memory;
    pthread_barrier_wait(a->begin);
    a->rc = spw_malloc(a->pager, 8 * PAGE_BYTES, &memory);
    pthread_barrier_wait(a->end);
    if (a->rc == 0)
        spw_free(a->pager, memory);
    return NULL;
}

/* Through the pager that has the state, and through it or another of the device. */
static void two_threads_ask(bool through_another)
{
    world w;
    spw_pager *other;
    spw_pager_config config = copy_config();
    pthread_barrier_t begin, end;
    pthread_t threads[2];
    config.occupancy = 1;
    assert_int_equal(world_open(&w, 36 * PAGE_BYTES, &config, 32), 0);
    assert_int_equal(spw_pager_create(w.device, &config, &other), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    pthread_barrier_init(&begin, NULL, 2);
    pthread_barrier_init(&end, NULL, 2);
    asker askers[2] = {{w.pager, &begin, &end, 0},
                       {through_another ? other : w.pager, &begin, &end, 0}};
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_for_eight_pages, &askers[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(askers[0].rc, 0);
    assert_int_equal(askers[1].rc, 0);
    pthread_barrier_destroy(&begin);
    pthread_barrier_destroy(&end);
    spw_pager_destroy(other);
    world_close(&w);
}

static void two_threads_ask_while_one_is_being_given(void **unused)
{
    (void)unused;
    for (int round = 0; round < 40; round++) {
        two_threads_ask(false);
        two_threads_ask(true);
    }
}

/* Half of the state is taken in the middle of a sweep: the sweep does not take it back. */
static int reclaim_then_update(void *context, const spw__page_view *views, uint64_t n, void *stream)
{
    world *w = context;
    static uint64_t freed;
    if (views[0].page == 40 && !freed)
        assert_int_equal(spw_pager_reclaim(w->pager, 24 * PAGE_BYTES, &freed), 0);
    return update_views(context, views, n, stream);
}

static void a_sweep_does_not_take_back_what_a_reclaim_gave(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    spw_pager_stats stats;
    config.occupancy = 1;
    assert_int_equal(world_open(&w, 60 * PAGE_BYTES, &config, 48), 0);
    for (uint64_t i = 0; i < 48; i++)
        w.list[i] = i;
    spw__sweep sweep = {w.list, 48, reclaim_then_update, &w, NULL};
    assert_int_equal(spw__pager_sweep(w.pager, &sweep), 0);
    assert_int_equal(spw_pager_stats_get(w.pager, &stats), 0);
    assert_true(stats.bytes_reclaimed >= 24 * PAGE_BYTES);
    assert_true(stats.resident_bytes <= 48 * PAGE_BYTES - stats.bytes_reclaimed);
    world_close(&w);
}

static void an_allocation_takes_what_it_lacks_and_no_more(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    spw_pager_stats before, after;
    void *memory;
    config.occupancy = 1;
    assert_int_equal(world_open(&w, 400 * PAGE_BYTES, &config, 256), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    assert_int_equal(spw_pager_stats_get(w.pager, &before), 0);
    uint64_t gap = 400 * PAGE_BYTES - before.resident_bytes - before.ring_bytes;
    assert_int_equal(spw_malloc(w.pager, gap + PAGE_BYTES, &memory), 0);
    assert_int_equal(spw_pager_stats_get(w.pager, &after), 0);
    assert_true(after.bytes_reclaimed <= 2 * w.pager->slab_frames * PAGE_BYTES);
    spw_free(w.pager, memory);
    uint64_t resident = after.resident_bytes;
    assert_int_equal(spw_malloc(w.pager, 401 * PAGE_BYTES, &memory), SPW_ENOMEM);
    assert_int_equal(spw_pager_stats_get(w.pager, &after), 0);
    assert_int_equal(after.resident_bytes, resident); /* what can never fit takes nothing */
    world_close(&w);
}

static void one_page_that_cannot_be_saved_does_not_keep_the_others(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    void *memory;
    config.occupancy = 1;
    assert_int_equal(world_open(&w, 270 * PAGE_BYTES, &config, 256), 0);
    assert_int_equal(world_sweep(&w, ~UINT64_C(0)), 0);
    spw__dev_fail_copy(5);
    assert_int_equal(spw_malloc(w.pager, 100 * PAGE_BYTES, &memory), 0);
    spw__dev_fail_copy(0);
    spw_free(w.pager, memory);
    assert_true(world_agrees(&w));
    world_close(&w);
}

static void reclaim_from_other_threads_in_a_sweep(void **unused)
{
    (void)unused;
    char path[64];
    sweep_beside_tenants("ram");
    sweep_beside_tenants(new_store_path(path, sizeof path));
}

/* ----------------------------------------------------------------------------------- config -- */

static void refuses_what_makes_no_sense(void **unused)
{
    (void)unused;
    world w;
    spw_pager_config config = copy_config();
    config.page_bytes = 100000;
    assert_int_equal(world_open(&w, 0, &config, 1), SPW_EINVAL);
    assert_non_null(strstr(spw_last_error(), "page size"));
    config = copy_config();
    config.occupancy = 0;
    assert_int_equal(world_open(&w, 0, &config, 1), SPW_EINVAL);
    config = copy_config();
    config.state_percent = 101;
    assert_int_equal(world_open(&w, 0, &config, 1), SPW_EINVAL);
    config = copy_config();
    config.paging = SPW_PAGING_UNIFIED;
    assert_int_equal(world_open(&w, 0, &config, 1), SPW_ENOTSUP);
    config = copy_config();
    config.paging = SPW_PAGING_MAPPED;
    config.store = "file:/tmp/spw-test-never-made";
    assert_int_equal(world_open(&w, 0, &config, 1), SPW_ENOTSUP);
    config = copy_config();
    config.store = "tape";
    assert_int_equal(world_open(&w, 0, &config, 1), SPW_EINVAL);
    config = copy_config();
    config.size = 0;
    assert_int_equal(world_open(&w, 0, &config, 1), SPW_EINVAL);
    config = copy_config();
    config.host_mem = 10 * PAGE_BYTES;
    assert_int_equal(world_open(&w, 0, &config, 11), SPW_EHOSTMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(moves_only_what_does_not_fit),
        cmocka_unit_test(a_first_sweep_reads_nothing),
        cmocka_unit_test(pages_without_work_are_not_touched),
        cmocka_unit_test(state_gives_way_to_an_allocation),
        cmocka_unit_test(state_returns_as_the_estimate_decays),
        cmocka_unit_test(a_reservation_is_kept_free),
        cmocka_unit_test(off_never_gives_way),
        cmocka_unit_test(no_room_for_the_ring_may_be_tried_again),
        cmocka_unit_test(reclaim_from_other_threads_in_a_sweep),
        cmocka_unit_test(two_threads_ask_while_one_is_being_given),
        cmocka_unit_test(a_sweep_does_not_take_back_what_a_reclaim_gave),
        cmocka_unit_test(an_allocation_takes_what_it_lacks_and_no_more),
        cmocka_unit_test(one_page_that_cannot_be_saved_does_not_keep_the_others),
        cmocka_unit_test(refuses_what_makes_no_sense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
