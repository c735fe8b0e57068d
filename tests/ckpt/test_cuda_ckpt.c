/*
 * Checkpoints of the cuda device's optimizers: saved right after a step was queued, loaded under
 * any way to hold state, and on the other device. Runs on the stand-in driver by its RPATH, on a
 * GPU with the real libcuda.so.1 preloaded.
 */
#include "ckpt/rig.h"

static char path[64];

static int set_path(void **unused)
{
    (void)unused;
    (void)snprintf(path, sizeof path, "/tmp/spw-test-cuda-ckpt-%ld.safetensors", (long)getpid());
    return 0;
}

static int remove_file(void **unused)
{
    (void)unused;
    return unlink(path);
}

enum { WAYS = 8 };

static setup cuda_setup(spw_state state, int way, char *store, size_t room)
{
    static const double percents[WAYS] = {0, 25, 50, 100, 50, 25, -1, -1};
    setup s = plain_setup(state);
    s.device = "cuda:0";
    s.pager.page_bytes = UINT64_C(65536) << (way % 2);
    s.pager.state_percent = percents[way];
    (void)snprintf(store, room, "file:%s.store-%d", path, way);
    if (way == 4)
        s.pager.store = store;
    if (way == 5)
        s.pager.pinned_mem = 1; /* through a pinned ring */
    if (way == 6)
        s.pager.paging = SPW_PAGING_OFF;
    if (way == 7)
        s.pager.paging = SPW_PAGING_MAPPED;
    return s;
}

/* a saves while its last step may still be queued; b goes on from the file, beside it. */
static void check(const setup *of_a, const setup *of_b)
{
    rig a, b;
    rig_open(&a, of_a);
    rig_steps(&a, 0, 4);
    uint64_t freed; /* pages give way, and the next step brings them back */
    assert_int_equal(spw_pager_reclaim(a.pager, 1 << 18, &freed), 0);
    rig_steps(&a, 4, 6);
    assert_int_equal(spw_optim_save(a.optim, path), 0);
    rig_open(&b, of_b);
    rig_take_parameters(&b, &a);
    assert_int_equal(spw_optim_load(b.optim, path), 0);
    rig_steps(&a, 6, 9);
    rig_steps(&b, 6, 9);
    assert_same_state(&a, &b);
    assert_int_equal(spw_optim_save(b.optim, path), 0);
    rig_steps(&b, 9, 11);
    rig_take_parameters(&b, &a);
    assert_int_equal(spw_optim_load(b.optim, path), 0); /* over pages on the device */
    assert_same_state(&a, &b);
    rig_close(&a);
    rig_close(&b);
}

static void a_run_goes_on_under_every_way_to_hold_state(void **unused)
{
    (void)unused;
    char store_a[96], store_b[96];
    for (int i = 0; i < 2 * WAYS; i++) {
        spw_state state = i % 2 ? SPW_STATE_8BIT : SPW_STATE_32BIT;
        setup a = cuda_setup(state, i / 2, store_a, sizeof store_a);
        setup b = cuda_setup(state, (i / 2 + 3) % WAYS, store_b, sizeof store_b);
        check(&a, &b);
    }
}

static void a_run_goes_on_on_the_other_device(void **unused)
{
    (void)unused;
    char store[96];
    for (int i = 0; i < 2; i++) {
        setup cuda = cuda_setup((spw_state)i, 1, store, sizeof store);
        setup cpu = plain_setup((spw_state)i);
        check(&cuda, &cpu);
        check(&cpu, &cuda);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_run_goes_on_under_every_way_to_hold_state),
        cmocka_unit_test(a_run_goes_on_on_the_other_device),
    };
    return cmocka_run_group_tests(tests, set_path, remove_file);
}
