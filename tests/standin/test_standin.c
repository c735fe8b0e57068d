/* The stand-in itself: late work, what it refuses, what it lets pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "standin.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 4096 };

static CUcontext context;
static CUstream a, b;
static CUdeviceptr memory, other; /* BYTES each */

static bool is_apart; /* in a child: cmocka's own assertions would go on with the other tests */

static void same(uint64_t x, uint64_t y)
{
    if (is_apart && x != y) {
        (void)fprintf(stderr, "%llu != %llu\n", (unsigned long long)x, (unsigned long long)y);
        _exit(1);
    }
    assert_int_equal(x, y);
}

static void ok(CUresult result)
{
    same(result, CUDA_SUCCESS);
}

static unsigned char byte_at(CUdeviceptr address, uint64_t offset)
{
    return ((const volatile unsigned char *)(uintptr_t)address)[offset];
}

static void fill(CUdeviceptr address, unsigned char value, CUstream stream)
{
    ok(cuMemsetD8Async(address, value, BYTES, stream));
}

static void copy(CUdeviceptr dst, CUdeviceptr src, CUstream stream)
{
    ok(cuMemcpyAsync(dst, src, BYTES, stream));
}

static CUdeviceptr address_of(void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

static int begin(void **state)
{
    (void)state;
    standin_reset();
    ok(cuInit(0));
    ok(cuDevicePrimaryCtxRetain(&context, 0));
    ok(cuCtxPushCurrent(context));
    ok(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    ok(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    ok(cuMemAlloc(&memory, BYTES));
    ok(cuMemAlloc(&other, BYTES));
    return 0;
}

static int end(void **state)
{
    (void)state;
    ok(cuMemFree(memory));
    ok(cuMemFree(other));
    ok(cuStreamDestroy(a));
    ok(cuStreamDestroy(b));
    ok(cuCtxPopCurrent(&context));
    ok(cuDevicePrimaryCtxRelease(0));
    assert_int_equal(standin_live_bytes(), 0);
    assert_int_equal(standin_live_objects(), 0);
    return 0;
}

/* ------------------------------------------------------------------- in a process of its own -- */

/* What it wrote to stderr is in `said`. Returns its wait status. */
static int run_apart(void (*body)(void), char *said, size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit none = {0, 0};
        (void)setrlimit(RLIMIT_CORE, &none);
        (void)dup2(ends[1], STDERR_FILENO);
        is_apart = true;
        body();
        _exit(0);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n < size - 1 && (got = read(ends[0], said + n, size - 1 - n)) > 0;)
        n += (size_t)got;
    said[n] = '\0';
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void aborts(void (*body)(void), const char *word, const char *word2)
{
    char said[4096];
    int status = run_apart(body, said, sizeof said);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fail_msg("status %d, not an abort; said: %s", status, said);
    if (!strstr(said, "standin: ") || !strstr(said, word) || !strstr(said, word2))
        fail_msg("\"%s\" does not say \"%s\" and \"%s\"", said, word, word2);
}

static void passes(void (*body)(void))
{
    char said[4096];
    int status = run_apart(body, said, sizeof said);
    if (status != 0)
        fail_msg("status %d, said: %s", status, said);
}

/* ------------------------------------------------------------------------------------- late -- */

static void work_runs_only_when_somebody_waits_for_it(void **state)
{
    (void)state;
    fill(memory, 1, a);
    fill(other, 2, b);
    assert_int_equal(byte_at(memory, 0), STANDIN_POISON);
    ok(cuStreamSynchronize(b));
    assert_int_equal(byte_at(memory, 0), STANDIN_POISON);
    assert_int_equal(byte_at(other, BYTES - 1), 2);
    ok(cuStreamSynchronize(a));
    assert_int_equal(byte_at(memory, BYTES - 1), 1);
}

static void an_event_waits_for_what_came_before_it_alone(void **state)
{
    (void)state;
    CUevent event;
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    ok(cuEventSynchronize(event)); /* never recorded: complete */
    ok(cuStreamWaitEvent(b, event, 0));
    fill(memory, 1, a);
    ok(cuEventRecord(event, a));
    fill(other, 2, a);
    ok(cuEventSynchronize(event));
    assert_int_equal(byte_at(memory, 0), 1);
    assert_int_equal(byte_at(other, 0), STANDIN_POISON);
    ok(cuEventDestroy(event));
}

/* B waits for what A had done when the event was recorded the first time. */
static void a_wait_keeps_the_event_as_it_was(void **state)
{
    (void)state;
    CUevent event;
    CUdeviceptr third;
    ok(cuMemAlloc(&third, BYTES));
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    fill(memory, 1, a);
    ok(cuEventRecord(event, a));
    ok(cuStreamWaitEvent(b, event, 0));
    fill(other, 2, a);
    ok(cuEventRecord(event, a));
    copy(third, memory, b);
    ok(cuStreamSynchronize(b));
    assert_int_equal(byte_at(third, 0), 1);
    assert_int_equal(byte_at(other, 0), STANDIN_POISON);
    ok(cuEventSynchronize(event));
    assert_int_equal(byte_at(other, 0), 2);
    ok(cuEventDestroy(event));
    ok(cuMemFree(third));
}

/* Runs two streams that fill in turns, and writes who was ahead when the first one was done. */
static unsigned leads_of(uint64_t seed)
{
    unsigned leads = 0;
    standin_seed(seed);
    for (unsigned i = 0; i < 16; i++) {
        fill(memory, (unsigned char)(i + 1), a);
        fill(other, (unsigned char)(i + 1), b);
        ok(cuStreamSynchronize(a));
        leads |= (unsigned)(byte_at(other, 0) == i + 1) << i;
        ok(cuStreamSynchronize(b));
    }
    return leads;
}

static void a_seed_picks_the_order(void **state)
{
    (void)state;
    assert_int_equal(leads_of(0), 0);
    unsigned one = leads_of(1), two = leads_of(2);
    assert_int_equal(leads_of(1), one);
    assert_int_not_equal(one, 0);
    assert_int_not_equal(one, two);
    assert_int_not_equal(one, 0xFFFF);
}

static void freeing_memory_waits_for_all_work(void **state)
{
    (void)state;
    CUdeviceptr third;
    ok(cuMemAlloc(&third, BYTES));
    fill(third, 1, a);
    fill(memory, 2, b);
    ok(cuMemFree(third));
    assert_int_equal(byte_at(memory, 0), 2);
}

/* ------------------------------------------------------------------------------------ order -- */

static void write_twice_unordered(void)
{
    fill(memory, 1, a);
    fill(memory, 2, b);
    (void)cuStreamSynchronize(a);
    (void)cuStreamSynchronize(b);
}

static void write_after_unordered_read(void)
{
    copy(other, memory, a);
    fill(memory, 2, b);
    (void)cuStreamSynchronize(b);
    (void)cuStreamSynchronize(a);
}

/* The first ran long ago, as the host sees it; but nobody waited for it. */
static void write_after_work_that_ran_early(void)
{
    CUdeviceptr third;
    standin_seed(1);
    ok(cuMemAlloc(&third, BYTES));
    for (int i = 0; i < 100; i++) {
        fill(other, 1, a);
        fill(third, 1, b);
        (void)cuStreamSynchronize(a);
    }
    fill(third, 2, a);
    (void)cuStreamSynchronize(a);
}

static void write_last_byte_unordered(void)
{
    fill(memory, 1, a);
    ok(cuMemsetD8Async(memory + BYTES - 1, 2, 1, b));
    (void)cuStreamSynchronize(a);
    (void)cuStreamSynchronize(b);
}

static void write_pinned_memory_unordered(void)
{
    void *host;
    ok(cuMemAllocHost(&host, BYTES));
    copy(memory, address_of(host), a);
    copy(address_of(host), other, b);
    (void)cuStreamSynchronize(b);
    (void)cuStreamSynchronize(a);
}

static void wait_for_the_wrong_event(void)
{
    CUevent event;
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    ok(cuEventRecord(event, a));
    fill(memory, 1, a); /* after the event */
    ok(cuStreamWaitEvent(b, event, 0));
    fill(memory, 2, b);
    (void)cuStreamSynchronize(b);
    (void)cuStreamSynchronize(a);
}

static void unordered_pairs_are_named(void **state)
{
    (void)state;
    const char *text = "nothing orders them";
    aborts(write_twice_unordered, text, "cuMemsetD8Async");
    aborts(write_after_unordered_read, text, "cuMemcpyAsync");
    aborts(write_after_work_that_ran_early, text, "writes");
    aborts(write_last_byte_unordered, text, "writes");
    aborts(write_pinned_memory_unordered, text, "reads");
    aborts(wait_for_the_wrong_event, text, "cuMemsetD8Async");
}

static void write_twice_by_event(void)
{
    CUevent event;
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    fill(memory, 1, a);
    ok(cuEventRecord(event, a));
    ok(cuStreamWaitEvent(b, event, 0));
    fill(memory, 2, b);
    ok(cuStreamSynchronize(b));
    same(byte_at(memory, 7), 2);
}

static void write_twice_by_host(void)
{
    fill(memory, 1, a);
    ok(cuStreamSynchronize(a));
    fill(memory, 2, b);
    ok(cuStreamSynchronize(b));
}

static void read_twice_unordered(void)
{
    CUdeviceptr third;
    ok(cuMemAlloc(&third, BYTES));
    fill(memory, 1, a);
    ok(cuStreamSynchronize(a));
    copy(other, memory, a);
    copy(third, memory, b);
    ok(cuStreamSynchronize(b));
    ok(cuStreamSynchronize(a));
}

static void write_halves_unordered(void)
{
    ok(cuMemsetD8Async(memory, 1, BYTES / 2, a));
    ok(cuMemsetD8Async(memory + BYTES / 2, 2, BYTES / 2, b));
    ok(cuStreamSynchronize(b));
    ok(cuStreamSynchronize(a));
}

static void ordered_pairs_pass(void **state)
{
    (void)state;
    passes(write_twice_by_event);
    passes(write_twice_by_host);
    passes(read_twice_unordered);
    passes(write_halves_unordered);
}

/* Through a third stream, and out of a read that another read came after. */
static void order_passes_through_other_streams(void **state)
{
    (void)state;
    CUstream c;
    CUevent event;
    ok(cuStreamCreate(&c, CU_STREAM_NON_BLOCKING));
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (uint64_t seed = 0; seed < 20; seed++) {
        standin_seed(seed);
        fill(memory, (unsigned char)seed, a);
        ok(cuEventRecord(event, a));
        ok(cuStreamWaitEvent(b, event, 0));
        ok(cuEventRecord(event, b)); /* b has done nothing itself */
        ok(cuStreamWaitEvent(c, event, 0));
        copy(other, memory, c);
        ok(cuEventRecord(event, c));
        ok(cuStreamWaitEvent(a, event, 0));
    }
    ok(cuStreamSynchronize(a));
    assert_int_equal(byte_at(other, 0), 19);
    ok(cuEventDestroy(event));
    ok(cuStreamDestroy(c));
}

static void write_by_default_and_blocking_stream(void)
{
    CUstream blocking;
    ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    for (unsigned char i = 0; i < 10; i++) {
        fill(memory, i, NULL);
        fill(memory, i, blocking);
    }
    ok(cuStreamSynchronize(NULL));
    same(byte_at(memory, 0), 9);
}

static void write_by_default_and_other_stream(void)
{
    fill(memory, 1, NULL);
    fill(memory, 2, a);
    (void)cuStreamSynchronize(NULL);
    (void)cuStreamSynchronize(a);
}

static void the_default_stream_orders_blocking_streams_only(void **state)
{
    (void)state;
    passes(write_by_default_and_blocking_stream);
    aborts(write_by_default_and_other_stream, "nothing orders them", "stream 0");
}

/* Thousands of small pieces: what is remembered is cut up, and forgotten again. */
static void many_pieces_are_told_apart(void **state)
{
    (void)state;
    CUevent event;
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (uint64_t i = 0; i < BYTES; i += 2) {
        ok(cuMemsetD8Async(memory + i, 1, 1, a));
        ok(cuMemsetD8Async(memory + i + 1, 2, 1, b));
        ok(cuStreamSynchronize(i % 64 ? a : b));
    }
    ok(cuEventRecord(event, a));
    ok(cuStreamWaitEvent(b, event, 0));
    copy(other, memory, b);
    ok(cuStreamSynchronize(b));
    for (uint64_t i = 0; i < BYTES; i++)
        assert_int_equal(byte_at(other, i), 1 + i % 2);
    ok(cuEventDestroy(event));
}

/* ------------------------------------------------------------------------------------ memory -- */

static void new_memory_is_poisoned(void **state)
{
    (void)state;
    void *host;
    ok(cuMemAllocHost(&host, 100));
    assert_int_equal(byte_at(memory, 0), STANDIN_POISON);
    assert_int_equal(byte_at(memory, BYTES - 1), STANDIN_POISON);
    assert_int_equal(byte_at(address_of(host), 99), STANDIN_POISON);
    ok(cuMemFreeHost(host));
}

static void there_is_as_much_as_was_said(void **state)
{
    (void)state;
    size_t unused, total;
    CUdeviceptr most, more;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    standin_set_capacity(2 * BYTES + (8 << 20));
    ok(cuMemGetInfo(&unused, &total));
    assert_int_equal(unused, 8 << 20);
    assert_int_equal(total - unused, 2 * BYTES);
    assert_int_equal(cuMemAlloc(&most, (8 << 20) + 1), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemAlloc(&most, 6 << 20));
    ok(cuMemCreate(&handle, 2 << 20, &prop, 0));
    assert_int_equal(cuMemAlloc(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemFree(most));
    assert_int_equal(cuMemCreate(&handle, 8 << 20, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(standin_live_bytes(), 2 * BYTES + (2 << 20));
    ok(cuMemRelease(handle));
    assert_int_equal(standin_live_bytes(), 2 * BYTES);
}

/* A frame of one granule. */
static CUdeviceptr map_granule(void)
{
    CUdeviceptr address;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    ok(cuMemCreate(&handle, STANDIN_GRANULE, &prop, 0));
    ok(cuMemAddressReserve(&address, STANDIN_GRANULE, 0, 0, 0));
    ok(cuMemMap(address, STANDIN_GRANULE, 0, handle, 0));
    ok(cuMemSetAccess(address, STANDIN_GRANULE, &access, 1));
    ok(cuMemRelease(handle)); /* it lives as long as it is mapped */
    return address;
}

static void virtual_memory_comes_and_goes(void **state)
{
    (void)state;
    uint64_t before = standin_live_bytes();
    CUdeviceptr address = map_granule();
    assert_int_equal(address % STANDIN_GRANULE, 0);
    assert_int_equal(byte_at(address, STANDIN_GRANULE - 1), STANDIN_POISON);
    assert_int_equal(standin_live_bytes() - before, 2 * STANDIN_GRANULE);
    fill(address, 3, a);
    ok(cuStreamSynchronize(a));
    ok(cuMemUnmap(address, STANDIN_GRANULE));
    ok(cuMemAddressFree(address, STANDIN_GRANULE));
    assert_int_equal(standin_live_bytes(), before);
}

static void unmap_under_waiting_work(void)
{
    CUdeviceptr address = map_granule();
    fill(address, 3, a);
    (void)cuMemUnmap(address, STANDIN_GRANULE);
}

static void unmap_under_work_that_nobody_waited_for(void)
{
    CUdeviceptr address = map_granule();
    CUevent event;
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    standin_seed(1);
    for (int i = 0; i < 100; i++) {
        fill(address, 3, a);
        fill(other, 3, b);
        ok(cuEventRecord(event, b));
        ok(cuEventSynchronize(event));
    }
    (void)cuMemUnmap(address, STANDIN_GRANULE);
}

static void copy_from_memory_that_went(void)
{
    CUdeviceptr address = map_granule();
    ok(cuMemUnmap(address, STANDIN_GRANULE));
    copy(memory, address, a);
}

static void copy_past_the_end(void)
{
    ok(cuMemcpyAsync(memory, other, BYTES + 1, a));
}

static void free_twice(void)
{
    ok(cuMemFree(memory));
    (void)cuMemFree(memory);
}

static void free_pinned_memory_under_work(void)
{
    void *host;
    ok(cuMemAllocHost(&host, BYTES));
    copy(memory, address_of(host), a);
    (void)cuMemFreeHost(host);
}

static void fill_with_no_context(void)
{
    ok(cuCtxPopCurrent(NULL));
    (void)cuMemsetD8Async(memory, 1, BYTES, a);
}

static void fill_on_a_stream_that_went(void)
{
    ok(cuStreamDestroy(a));
    (void)cuMemsetD8Async(memory, 1, BYTES, a);
}

static void record_an_event_that_went(void)
{
    CUevent event;
    ok(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    ok(cuEventDestroy(event));
    (void)cuEventRecord(event, a);
}

static void unregister_what_is_not_registered(void)
{
    static char bytes[BYTES];
    (void)cuMemHostUnregister(bytes);
}

static void free_reserved_addresses_under_a_mapping(void)
{
    (void)cuMemAddressFree(map_granule(), STANDIN_GRANULE);
}

static void bad_calls_are_named(void **state)
{
    (void)state;
    aborts(unmap_under_waiting_work, "in cuMemUnmap", "still waits to run");
    aborts(unmap_under_work_that_nobody_waited_for, "in cuMemUnmap", "given back");
    aborts(copy_from_memory_that_went, "in cuMemcpyAsync", "gave back");
    aborts(copy_past_the_end, "in cuMemcpyAsync", "only in part");
    aborts(free_twice, "in cuMemFree", "already given back");
    aborts(free_pinned_memory_under_work, "in cuMemFreeHost", "still waits to run");
    aborts(fill_with_no_context, "in cuMemsetD8Async", "no current context");
    aborts(fill_on_a_stream_that_went, "in cuMemsetD8Async", "not a stream");
    aborts(record_an_event_that_went, "in cuEventRecord", "not a live event");
    aborts(unregister_what_is_not_registered, "in cuMemHostUnregister", "not registered");
    aborts(free_reserved_addresses_under_a_mapping, "in cuMemAddressFree", "still mapped");
}

static void pageable_memory_is_read_by_the_call(void **state)
{
    (void)state;
    unsigned char bytes[BYTES], back[BYTES];
    memset(bytes, 5, sizeof bytes);
    copy(memory, address_of(bytes), a);
    memset(bytes, 6, sizeof bytes);
    assert_int_equal(byte_at(memory, 0), STANDIN_POISON);
    copy(address_of(back), memory, a);
    assert_int_equal(back[0], 5); /* into it: done on return */
    assert_int_equal(back[BYTES - 1], 5);
}

static void registered_memory_is_read_when_the_copy_runs(void **state)
{
    (void)state;
    unsigned char *bytes = calloc(1, BYTES);
    ok(cuMemHostRegister(bytes, BYTES, 0));
    assert_int_equal(cuMemHostRegister(bytes + 8, 8, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    copy(memory, address_of(bytes), a);
    memset(bytes, 6, BYTES); /* too early */
    ok(cuStreamSynchronize(a));
    assert_int_equal(byte_at(memory, 0), 6);
    assert_int_equal(standin_live_bytes(), 3 * BYTES);
    ok(cuMemHostUnregister(bytes));
    free(bytes);
}

static void fill_of_managed_memory_is_ordered_by_nobody(void)
{
    CUdeviceptr managed;
    ok(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    fill(managed, 1, a);
    fill(managed, 2, b);
    ok(cuMemFree(managed));
}

static void prefetch_other_memory(void)
{
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    (void)cuMemPrefetchAsync(memory, BYTES, here, 0, a);
}

static void managed_memory_is_one_for_host_and_device(void **state)
{
    (void)state;
    CUdeviceptr managed;
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE};
    standin_set_capacity(2 * BYTES); /* it does not need any */
    ok(cuMemAllocManaged(&managed, BYTES, CU_MEM_ATTACH_GLOBAL));
    memset((void *)(uintptr_t)managed, 4, BYTES);
    ok(cuMemPrefetchAsync(managed, BYTES, here, 0, a));
    fill(managed, 5, b); /* a prefetch is in nobody's way */
    ok(cuStreamSynchronize(a));
    assert_int_equal(byte_at(managed, 0), 4);
    ok(cuStreamSynchronize(b));
    assert_int_equal(byte_at(managed, BYTES - 1), 5);
    assert_int_equal(standin_live_bytes(), 3 * BYTES);
    ok(cuMemFree(managed));
    aborts(fill_of_managed_memory_is_ordered_by_nobody, "in cuMemFree", "nothing orders them");
    aborts(prefetch_other_memory, "in cuMemPrefetchAsync", "not managed");
}

/* --------------------------------------------------------------------------------- failures -- */

static void the_nth_call_fails_once(void **state)
{
    (void)state;
    CUdeviceptr third;
    uint64_t before = standin_calls("cuMemAlloc");
    standin_fail_nth("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemAlloc(&third, 1));
    ok(cuMemFree(third));
    assert_int_equal(cuMemAlloc(&third, 1), CUDA_ERROR_OUT_OF_MEMORY);
    ok(cuMemAlloc(&third, 1));
    assert_int_equal(standin_calls("cuMemAlloc") - before, 3);
    standin_fail_nth(NULL, 2, CUDA_ERROR_LAUNCH_FAILED);
    ok(cuStreamSynchronize(a));
    ok(cuMemFree(third)); /* does not count */
    assert_int_equal(cuStreamSynchronize(a), CUDA_ERROR_LAUNCH_FAILED);
    standin_fail_nth(NULL, 1, CUDA_ERROR_LAUNCH_FAILED);
    standin_fail_nth(NULL, 0, CUDA_SUCCESS);
    ok(cuStreamSynchronize(a));
    const char *text;
    ok(cuGetErrorName(CUDA_ERROR_LAUNCH_FAILED, &text));
    assert_string_equal(text, "CUDA_ERROR_LAUNCH_FAILED");
}

/* ---------------------------------------------------------------------------------- threads -- */

/* Leaves its memory behind where it is not what it filled it with. */
static void *fill_alone(void *argument)
{
    (void)argument;
    CUdeviceptr mine;
    CUstream stream;
    ok(cuCtxPushCurrent(context));
    ok(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned char i = 0; i < 50; i++) {
        ok(cuMemAlloc(&mine, BYTES));
        fill(mine, i, stream);
        ok(cuStreamSynchronize(stream));
        if (byte_at(mine, 9) == i)
            ok(cuMemFree(mine));
    }
    ok(cuStreamDestroy(stream));
    ok(cuCtxPopCurrent(NULL));
    return NULL;
}

static void threads_share_it(void **state)
{
    (void)state;
    pthread_t threads[4];
    standin_seed(7);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fill_alone, NULL), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(standin_live_bytes(), 2 * BYTES);
}

/* --------------------------------------------------------------------------------- capture -- */

static void *make_wait(void *mode)
{
    ok(cuCtxPushCurrent(context));
    ok(cuThreadExchangeStreamCaptureMode(mode));
    CUresult result = cuStreamSynchronize(b);
    ok(cuCtxPopCurrent(NULL));
    return result == CUDA_SUCCESS ? mode : NULL;
}

/* Whether a thread in `mode` may wait while `a` is captured in mode `of`; if not, it breaks it. */
static bool may_wait(CUstreamCaptureMode of, CUstreamCaptureMode mode, bool is_another)
{
    pthread_t thread;
    void *done;
    standin_capture_begin(a, of);
    if (is_another) {
        same((uint64_t)pthread_create(&thread, NULL, make_wait, &mode), 0);
        same((uint64_t)pthread_join(thread, &done), 0);
    } else {
        done = make_wait(&mode); /* which is then what it was */
        ok(cuThreadExchangeStreamCaptureMode(&mode));
    }
    same(standin_capture_end(a), done != NULL);
    return done != NULL;
}

static void a_capture_is_broken_by_the_rules_of_its_mode(void **state)
{
    (void)state;
    enum { GLOBAL, LOCAL, RELAXED };
    for (int of = GLOBAL; of <= RELAXED; of++)
        for (int mode = GLOBAL; mode <= RELAXED; mode++) {
            bool free_here = of == RELAXED || mode == RELAXED;
            bool free_there = free_here || of == LOCAL || mode == LOCAL;
            CUstreamCaptureMode c = (CUstreamCaptureMode)of, m = (CUstreamCaptureMode)mode;
            assert_true(may_wait(c, m, false) == free_here);
            assert_true(may_wait(c, m, true) == free_there);
        }
}

static void fill_a_captured_stream(void)
{
    standin_capture_begin(a, CU_STREAM_CAPTURE_MODE_RELAXED);
    fill(memory, 1, a);
}

static void what_would_be_captured_is_not_meant(void **state)
{
    (void)state;
    aborts(fill_a_captured_stream, "captured", "cuMemsetD8Async");
}

static void the_default_stream_breaks_a_blocking_streams_capture(void **state)
{
    (void)state;
    CUstream blocking;
    CUstreamCaptureStatus status;
    ok(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    standin_capture_begin(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_int_equal(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    ok(cuStreamIsCapturing(blocking, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    assert_int_equal(cuMemsetD8Async(memory, 1, BYTES, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_false(standin_capture_end(blocking));
    ok(cuStreamDestroy(blocking));
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(work_runs_only_when_somebody_waits_for_it),
        TEST(an_event_waits_for_what_came_before_it_alone),
        TEST(a_wait_keeps_the_event_as_it_was),
        TEST(a_seed_picks_the_order),
        TEST(freeing_memory_waits_for_all_work),
        TEST(unordered_pairs_are_named),
        TEST(ordered_pairs_pass),
        TEST(order_passes_through_other_streams),
        TEST(the_default_stream_orders_blocking_streams_only),
        TEST(many_pieces_are_told_apart),
        TEST(new_memory_is_poisoned),
        TEST(there_is_as_much_as_was_said),
        TEST(virtual_memory_comes_and_goes),
        TEST(bad_calls_are_named),
        TEST(pageable_memory_is_read_by_the_call),
        TEST(registered_memory_is_read_when_the_copy_runs),
        TEST(managed_memory_is_one_for_host_and_device),
        TEST(the_nth_call_fails_once),
        TEST(threads_share_it),
        TEST(a_capture_is_broken_by_the_rules_of_its_mode),
        TEST(what_would_be_captured_is_not_meant),
        TEST(the_default_stream_breaks_a_blocking_streams_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
