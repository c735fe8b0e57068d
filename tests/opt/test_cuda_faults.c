/* The n-th driver call of an optimizer's run on the stand-in fails: of memory, or for good. */
#include "opt/faults.h"

#include "standin/standin.h"

enum { MIB = 1 << 20 };

static standin_control control;

static uint64_t out_of_memory(uint64_t nth)
{
    return control.fail_nth(NULL, nth, CUDA_ERROR_OUT_OF_MEMORY);
}

static uint64_t broken(uint64_t nth)
{
    return control.fail_nth(NULL, nth, CUDA_ERROR_LAUNCH_FAILED);
}

static void begin_run(void)
{
    control.reset();
}

/* A context that cannot be entered gives nothing back: a real one cannot be when it is gone, with
 * all that was in it. */
static void end_of_run(void)
{
    const char *failed = control.failed();
    bool gives_back = !failed || (strcmp(failed, "cuCtxPushCurrent") != 0 &&
                                  strcmp(failed, "cuThreadExchangeStreamCaptureMode") != 0);
    uint64_t open = control.calls("cuCtxPushCurrent") - control.calls("cuCtxPopCurrent");
    if (gives_back && (control.live_bytes() || control.live_objects() || open))
        fail_msg("%s failed, and %llu bytes and %llu objects are left", failed ? failed : "nothing",
                 (unsigned long long)control.live_bytes(),
                 (unsigned long long)control.live_objects());
    assert_in_range(open, 0, 1); /* the push that failed is counted, too */
}

/* A page a frame; a cap that the tensors, the ring and some of the state fit under. */
static void run_all(spw_paging paging, bool by_file, uint64_t pinned_mem)
{
    const injector injectors[] = {out_of_memory, broken};
    for (int i = 0; i < 2; i++) {
        run_kind kind = {.device = "cuda:0", .inject = injectors[i], .by_file = by_file};
        spw_pager_config_default(&kind.pager);
        kind.state = i ? SPW_STATE_8BIT : SPW_STATE_32BIT;
        kind.mem = 10 * MIB;
        kind.spike = 3 * MIB; /* of 1.5 that are unused while a slab is there, 3.5 without it */
        kind.pager.paging = paging;
        kind.pager.ring_frames = 3;
        kind.pager.pinned_mem = pinned_mem;
        assert_true(fail_every_call(&kind, fault_every(59), begin_run, end_of_run) > 0);
    }
}

static void copy_from_pinned_memory(void **unused)
{
    (void)unused;
    run_all(SPW_PAGING_COPY, false, 0);
}

static void copy_through_a_pinned_ring(void **unused)
{
    (void)unused;
    run_all(SPW_PAGING_COPY, false, 1);
}

static void copy_from_a_file(void **unused)
{
    (void)unused;
    run_all(SPW_PAGING_COPY, true, 0);
}

static void mapped(void **unused)
{
    (void)unused;
    run_all(SPW_PAGING_MAPPED, false, 0);
}

static void unified(void **unused)
{
    (void)unused;
    run_all(SPW_PAGING_UNIFIED, false, 0);
}

static void off(void **unused)
{
    (void)unused;
    run_all(SPW_PAGING_OFF, false, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy_from_pinned_memory),
        cmocka_unit_test(copy_through_a_pinned_ring),
        cmocka_unit_test(copy_from_a_file),
        cmocka_unit_test(mapped),
        cmocka_unit_test(unified),
        cmocka_unit_test(off),
    };
    if (!standin_find(&control)) {
        (void)puts("skipped: the stand-in driver is not the one that loads");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
