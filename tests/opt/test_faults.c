/* The n-th allocation, copy, read or write of an optimizer's run on the cpu device fails. */
#include "opt/faults.h"

#include "dev/dev.h"
#include "store/store.h"

/* State of 0.5 MiB beside 0.5 MiB of tensors: some of it may stay, and a spike takes that. */
static run_kind kind_with(spw_paging paging, spw_state state, injector inject)
{
    run_kind kind = {.device = "cpu", .state = state, .inject = inject};
    kind.mem = paging == SPW_PAGING_COPY ? 1536 << 10 : 3 << 20; /* else state does not give way */
    spw_pager_config_default(&kind.pager);
    kind.pager.paging = paging;
    kind.pager.ring_frames = 3;
    kind.spike = 700 << 10;
    return kind;
}

static void run_all(spw_paging paging, bool by_file, injector inject)
{
    int errors = 0;
    for (int state = SPW_STATE_32BIT; state <= SPW_STATE_8BIT; state++) {
        run_kind kind = kind_with(paging, (spw_state)state, inject);
        kind.by_file = by_file;
        errors += fail_every_call(&kind, 1, NULL, NULL);
    }
    assert_true(errors > 0);
}

static void allocations(void **unused)
{
    (void)unused;
    run_all(SPW_PAGING_COPY, false, spw__dev_fail_alloc);
    run_all(SPW_PAGING_MAPPED, false, spw__dev_fail_alloc);
    run_all(SPW_PAGING_OFF, false, spw__dev_fail_alloc);
}

static void copies(void **unused)
{
    (void)unused;
    run_all(SPW_PAGING_COPY, false, spw__dev_fail_copy);
    run_all(SPW_PAGING_MAPPED, false, spw__dev_fail_copy);
    run_all(SPW_PAGING_OFF, false, spw__dev_fail_copy);
}

static void reads(void **unused)
{
    (void)unused;
    run_all(SPW_PAGING_COPY, true, spw__store_fail_read);
}

static void writes(void **unused)
{
    (void)unused;
    run_all(SPW_PAGING_COPY, true, spw__store_fail_write);
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
