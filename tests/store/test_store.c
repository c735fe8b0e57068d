/* Both kinds of store, and the file store by both engines: contents, threads, errors, faults. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/file.h"
#include "store/store.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SLOT = 8192, N_SLOTS = 64 };

static char folder[] = "/tmp/spw-test-store-XXXXXX";

/* A name that no file has. */
static const char *new_name(void)
{
    static char name[128];
    static int count;
    (void)snprintf(name, sizeof name, "file:%s/store-%d", folder, count++);
    return name;
}

static const char *path_in(const char *name)
{
    return name + strlen("file:");
}

static int open_named(const char *name, uint32_t depth, spw__store **store)
{
    spw__store_config config = {.name = name, .io_depth = depth};
    return spw__store_open(&config, store);
}

static spw__store *file_of(uint32_t depth, uint64_t n_slots)
{
    spw__store *store;
    assert_int_equal(open_named(new_name(), depth, &store), 0);
    assert_false(store->addressable);
    assert_int_equal(spw__store_grow(store, SLOT, n_slots), 0);
    return store;
}

static spw__store *ram_of(uint64_t host_mem)
{
    spw__store *store;
    spw__store_config config = {.name = "ram", .host_mem = host_mem};
    assert_int_equal(spw__store_open(&config, &store), 0);
    assert_true(store->addressable);
    return store;
}

static unsigned char *buffers_of(size_t n)
{
    unsigned char *memory = aligned_alloc(4096, n * SLOT);
    assert_non_null(memory);
    return memory;
}

/* Bytes that tell slot and version. */
static void fill(unsigned char *memory, uint64_t slot, uint64_t version)
{
    for (uint32_t i = 0; i < SLOT; i++)
        memory[i] = (unsigned char)(slot * 151 + version * 37 + i + (i >> 8));
}

static bool holds(const unsigned char *memory, uint64_t slot, uint64_t version)
{
    for (uint32_t i = 0; i < SLOT; i++)
        if (memory[i] != (unsigned char)(slot * 151 + version * 37 + i + (i >> 8)))
            return false;
    return true;
}

static int put(spw__store *store, uint64_t slot, const void *memory)
{
    spw__store_io io;
    spw__store_start_write(store, &io, slot, memory);
    return spw__store_wait(store, &io);
}

static int get(spw__store *store, uint64_t slot, void *memory)
{
    spw__store_io io;
    spw__store_start_read(store, &io, slot, memory);
    return spw__store_wait(store, &io);
}

static void assert_says(const char *text)
{
    if (!strstr(spw_last_error(), text))
        fail_msg("\"%s\" does not say \"%s\"", spw_last_error(), text);
    assert_null(strchr(spw_last_error(), '\n'));
}

/* ---------------------------------------------------------------------------------- opening -- */

static void an_unknown_name_is_refused_with_what_is_allowed(void **state)
{
    (void)state;
    static const char *const names[] = {"disk", "", "file", "file:", "rams"};
    spw__store *store;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(open_named(names[i], 1, &store), SPW_EINVAL);
        assert_says("ram or file:PATH");
    }
    assert_int_equal(open_named(NULL, 1, &store), SPW_EINVAL);
    spw__store_close(NULL);
}

static void an_existing_file_is_left_alone(void **state)
{
    (void)state;
    const char *name = new_name();
    spw__store *store;
    FILE *file = fopen(path_in(name), "w");
    assert_non_null(file);
    (void)fputs("precious", file);
    (void)fclose(file);
    assert_int_equal(open_named(name, 1, &store), SPW_EEXIST);
    assert_says(path_in(name));
    assert_says("already exists");
    char text[16] = "";
    file = fopen(path_in(name), "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    (void)fclose(file);
    assert_string_equal(text, "precious");
    assert_int_equal(unlink(path_in(name)), 0);
}

static void a_missing_folder_is_named(void **state)
{
    (void)state;
    spw__store *store;
    assert_int_equal(open_named("file:/nowhere/to/be/found/store", 1, &store), SPW_ENOENT);
    assert_says("/nowhere/to/be/found/store");
    assert_int_equal(open_named("file:/dev/null/store", 1, &store), SPW_ENOENT);
}

static void the_file_leaves_its_folder_at_once_and_stays_usable(void **state)
{
    (void)state;
    const char *name = new_name();
    spw__store *store;
    unsigned char *memory = buffers_of(1);
    assert_int_equal(open_named(name, 2, &store), 0);
    assert_int_equal(access(path_in(name), F_OK), -1);
    assert_int_equal(spw__store_grow(store, SLOT, 4), 0);
    fill(memory, 3, 1);
    assert_int_equal(put(store, 3, memory), 0);
    memset(memory, 0, SLOT);
    assert_int_equal(get(store, 3, memory), 0);
    assert_true(holds(memory, 3, 1));
    assert_int_equal(spw__store_host_bytes(store), 0);
    spw__store_close(store);
    free(memory);
}

static void a_tmpfs_works_direct_or_buffered(void **state)
{
    (void)state;
    char name[64];
    spw__store *store;
    (void)snprintf(name, sizeof name, "file:/dev/shm/spw-test-%ld", (long)getpid());
    if (open_named(name, 2, &store) < 0) {
        print_message("SKIPPED: no tmpfs at /dev/shm (%s)\n", spw_last_error());
        skip();
    }
    unsigned char *memory = buffers_of(1);
    print_message("tmpfs: direct_io is %d\n", store->direct_io);
    assert_int_equal(spw__store_grow(store, SLOT, 2), 0);
    fill(memory, 1, 9);
    assert_int_equal(put(store, 1, memory), 0);
    memset(memory, 0, SLOT);
    assert_int_equal(get(store, 1, memory), 0);
    assert_true(holds(memory, 1, 9));
    spw__store_close(store);
    free(memory);
}

/* ----------------------------------------------------------------------------------- growing -- */

static void zero_slots_are_allowed(void **state)
{
    (void)state;
    spw__store *store = file_of(1, 0);
    assert_int_equal(store->n_slots, 0);
    spw__store_close(store);
    store = ram_of(0);
    assert_int_equal(spw__store_grow(store, SLOT, 0), 0);
    assert_int_equal(spw__store_host_bytes(store), 0);
    spw__store_close(store);
}

static void ram_grows_with_zeros_and_keeps_what_was_there(void **state)
{
    (void)state;
    spw__store *store = ram_of(0);
    assert_int_equal(spw__store_grow(store, SLOT, 3), 0);
    for (uint64_t s = 0; s < 3; s++)
        fill(spw__store_slot(store, s), s, 5);
    assert_int_equal(spw__store_grow(store, SLOT, 600), 0);
    assert_int_equal(spw__store_grow(store, SLOT, 2), 0); /* never fewer */
    assert_int_equal(store->n_slots, 600);
    assert_int_equal(spw__store_host_bytes(store), 600 * SLOT);
    for (uint64_t s = 0; s < 3; s++)
        assert_true(holds(spw__store_slot(store, s), s, 5));
    const unsigned char *rest = spw__store_slot(store, 3);
    for (uint64_t i = 0; i < 597 * SLOT; i++)
        assert_int_equal(rest[i], 0);
    spw__store_close(store);
}

static void the_ram_cap_is_exact_and_names_its_option(void **state)
{
    (void)state;
    spw__store *store = ram_of(10 * SLOT);
    assert_int_equal(spw__store_grow(store, SLOT, 11), SPW_EHOSTMEM);
    assert_says("--host-mem");
    assert_says("90112"); /* 11 slots */
    assert_says("81920"); /* the cap */
    assert_int_equal(store->slot_bytes, 0);
    assert_int_equal(store->n_slots, 0);
    assert_int_equal(spw__store_grow(store, SLOT, 10), 0);
    fill(spw__store_slot(store, 9), 9, 1);
    assert_int_equal(spw__store_grow(store, SLOT, 11), SPW_EHOSTMEM);
    assert_true(holds(spw__store_slot(store, 9), 9, 1));
    spw__store_close(store);
}

static void more_ram_than_the_machine_has_is_an_error(void **state)
{
    (void)state;
    spw__store *store = ram_of(0);
    assert_int_equal(spw__store_grow(store, SLOT, UINT64_C(1) << 33), SPW_EHOSTMEM); /* 64 TiB */
    assert_says("available");
    assert_int_equal(spw__store_grow(store, SLOT, UINT64_MAX / 2), SPW_EINVAL); /* would wrap */
    assert_int_equal(store->n_slots, 0);
    assert_int_equal(spw__store_grow(store, SLOT, 1), 0);
    spw__store_close(store);
}

static void new_slots_of_a_file_read_as_zeros_and_old_ones_stay(void **state)
{
    (void)state;
    spw__store *store = file_of(2, 2);
    unsigned char *memory = buffers_of(1);
    fill(memory, 1, 3);
    assert_int_equal(put(store, 1, memory), 0);
    assert_int_equal(spw__store_grow(store, SLOT, 40), 0);
    assert_int_equal(get(store, 1, memory), 0);
    assert_true(holds(memory, 1, 3));
    for (uint64_t s = 0; s < 40; s++) {
        memset(memory, 0xEE, SLOT);
        assert_int_equal(get(store, s, memory), 0);
        for (int i = 0; s != 1 && i < SLOT; i++)
            assert_int_equal(memory[i], 0);
    }
    spw__store_close(store);
    free(memory);
}

/* A disk that ends after `bytes`: a limit on the size of files. The signal for who goes past it
 * would end the process. */
static void limit_files(uint64_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void a_full_disk_is_found_by_grow_and_changes_nothing(void **state)
{
    (void)state;
    const char *name = new_name();
    spw__store *store;
    unsigned char *memory = buffers_of(1);
    assert_int_equal(open_named(name, 2, &store), 0);
    limit_files(16 * SLOT);
    int before = spw__store_grow(store, SLOT, 17);
    uint64_t slot_bytes = store->slot_bytes;
    int fits = spw__store_grow(store, SLOT, 16);
    fill(memory, 15, 2);
    int written = put(store, 15, memory);
    int after = spw__store_grow(store, SLOT, 1000);
    limit_files(UINT64_MAX);
    assert_int_equal(before, SPW_ENOSPC);
    assert_int_equal(slot_bytes, 0);
    assert_int_equal(fits, 0);
    assert_int_equal(written, 0);
    assert_int_equal(after, SPW_ENOSPC);
    assert_says(path_in(name));
    assert_says("8192000"); /* bytes that were wanted */
    assert_says("ulimit -f");
    assert_int_equal(store->n_slots, 16);
    memset(memory, 0, SLOT);
    assert_int_equal(get(store, 15, memory), 0);
    assert_true(holds(memory, 15, 2));
    spw__store_close(store);
    free(memory);
}

/* No file system has 32 TiB to give; one in memory says so at once. */
static void a_file_system_that_has_not_the_space_says_so(void **state)
{
    char name[96];
    spw__store *store;
    (void)state;
    (void)snprintf(name, sizeof name, "file:/dev/shm/spw-test-store-%ld", (long)getpid());
    if (open_named(name, 2, &store) < 0)
        skip();
    assert_int_equal(spw__store_grow(store, SLOT, (UINT64_C(32) << 40) / SLOT), SPW_ENOSPC);
    assert_says("/dev/shm/spw-test-store");
    assert_says("35184372088832");
    assert_int_equal(store->n_slots, 0);
    assert_int_equal(spw__store_grow(store, SLOT, 2), 0);
    spw__store_close(store);
}

/* --------------------------------------------------------------------------------- transfers -- */

static void more_transfers_than_the_depth_queue_up(void **state)
{
    (void)state;
    static const uint32_t depths[] = {1, 3, 16};
    unsigned char *memory = buffers_of(2 * N_SLOTS);
    for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
        spw__store *store = file_of(depths[d], N_SLOTS);
        static spw__store_io ios[2 * N_SLOTS];
        for (uint64_t s = 0; s < N_SLOTS; s++) {
            fill(memory + s * SLOT, s, d);
            spw__store_start_write(store, &ios[s], s, memory + s * SLOT);
        }
        for (uint64_t s = N_SLOTS; s-- > 0;) /* waited for in another order than started */
            assert_int_equal(spw__store_wait(store, &ios[s]), 0);
        for (uint64_t s = 0; s < N_SLOTS; s++)
            spw__store_start_read(store, &ios[s], s, memory + (N_SLOTS + s) * SLOT);
        for (uint64_t s = 0; s < N_SLOTS; s++)
            assert_int_equal(spw__store_wait(store, &ios[s]), 0);
        assert_memory_equal(memory, memory + N_SLOTS * SLOT, N_SLOTS * SLOT);
        spw__store_close(store);
    }
    free(memory);
}

enum { THREADS = 4, IN_FLIGHT = 5, ROUNDS = 120 };

typedef struct mover {
    pthread_t thread;
    spw__store *store;
    uint64_t first; /* its slots: first, first + THREADS, ... */
    uint64_t random;
    unsigned char *memory;
    const char *wrong;
} mover;

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D) >> 16;
}

/* Starts IN_FLIGHT transfers on slots that follow a random one, then waits for all. */
static void move_some(mover *m, bool write, uint64_t at, const uint64_t *versions)
{
    spw__store_io ios[IN_FLIGHT];
    uint64_t n = N_SLOTS / THREADS;
    for (uint64_t i = 0; i < IN_FLIGHT; i++) {
        uint64_t k = (at + i) % n, slot = m->first + k * THREADS;
        unsigned char *memory = m->memory + i * SLOT;
        if (write) {
            fill(memory, slot, versions[k]);
            spw__store_start_write(m->store, &ios[i], slot, memory);
        } else {
            spw__store_start_read(m->store, &ios[i], slot, memory);
        }
    }
    for (uint64_t i = 0; i < IN_FLIGHT; i++) {
        uint64_t k = (at + i) % n, slot = m->first + k * THREADS;
        if (spw__store_wait(m->store, &ios[i]) != 0)
            m->wrong = "a transfer failed";
        else if (!write && versions[k] && !holds(m->memory + i * SLOT, slot, versions[k]))
            m->wrong = "a slot holds other bytes than were written";
    }
}

static void *move(void *argument)
{
    mover *m = argument;
    uint64_t versions[N_SLOTS / THREADS] = {0}, n = N_SLOTS / THREADS;
    for (uint64_t round = 1; round <= ROUNDS && !m->wrong; round++) {
        uint64_t at = next_random(&m->random) % n;
        bool write = next_random(&m->random) % 2;
        for (uint64_t i = 0; write && i < IN_FLIGHT; i++)
            versions[(at + i) % n] = round;
        move_some(m, write, at, versions);
    }
    return NULL;
}

static void threads_move_their_slots_at_once(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        spw__store *store = file_of((uint32_t)(2 * seed), N_SLOTS);
        mover movers[THREADS];
        for (uint64_t i = 0; i < THREADS; i++) {
            movers[i] = (mover){.store = store, .first = i, .random = seed * 100 + i};
            movers[i].memory = buffers_of(IN_FLIGHT);
            assert_int_equal(pthread_create(&movers[i].thread, NULL, move, &movers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(movers[i].thread, NULL);
            free(movers[i].memory);
        }
        for (int i = 0; i < THREADS; i++)
            if (movers[i].wrong)
                fail_msg("seed %d, thread %d: %s", (int)seed, i, movers[i].wrong);
        spw__store_close(store);
    }
}

typedef struct waiter {
    pthread_t thread;
    spw__store *store;
    spw__store_io *ios;
    int failed;
} waiter;

static void *wait_for_quarter(void *argument)
{
    waiter *w = argument;
    for (int i = 0; i < N_SLOTS / THREADS; i++)
        w->failed += spw__store_wait(w->store, &w->ios[i]) != 0;
    return NULL;
}

static void what_one_thread_starts_others_may_wait_for(void **state)
{
    (void)state;
    spw__store *store = file_of(4, N_SLOTS);
    unsigned char *memory = buffers_of(N_SLOTS);
    static spw__store_io ios[N_SLOTS];
    waiter waiters[THREADS];
    for (uint64_t s = 0; s < N_SLOTS; s++) {
        fill(memory + s * SLOT, s, 1);
        spw__store_start_write(store, &ios[s], s, memory + s * SLOT);
    }
    for (int i = 0; i < THREADS; i++) {
        waiters[i] = (waiter){.store = store, .ios = ios + i * (N_SLOTS / THREADS)};
        assert_int_equal(pthread_create(&waiters[i].thread, NULL, wait_for_quarter, &waiters[i]),
                         0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(waiters[i].thread, NULL);
        assert_int_equal(waiters[i].failed, 0);
    }
    for (uint64_t s = 0; s < N_SLOTS; s++) {
        assert_int_equal(get(store, s, memory), 0);
        assert_true(holds(memory, s, 1));
    }
    spw__store_close(store);
    free(memory);
}

/* ------------------------------------------------------------------------------------ errors -- */

static void the_nth_read_or_write_fails_once(void **state)
{
    (void)state;
    spw__store *store = file_of(2, 4);
    unsigned char *memory = buffers_of(1);
    fill(memory, 0, 1);
    spw__store_fail_write(2);
    assert_int_equal(put(store, 0, memory), 0);
    assert_int_equal(put(store, 1, memory), SPW_EIO);
    assert_says("cannot write 8192 bytes at 8192");
    assert_int_equal(put(store, 1, memory), 0);
    spw__store_fail_read(1);
    assert_int_equal(get(store, 3, memory), SPW_EIO);
    assert_says("cannot read 8192 bytes at 24576");
    assert_int_equal(get(store, 3, memory), 0);
    spw__store_fail_read(1);
    spw__store_fail_read(0);
    assert_int_equal(get(store, 3, memory), 0);
    spw__store_close(store);
    free(memory);
}

static void a_transfer_that_the_system_refuses_is_an_error_and_the_next_works(void **state)
{
    (void)state;
    spw__store *store = file_of(2, 4);
    unsigned char *memory = buffers_of(1);
    void *forbidden = mmap(NULL, SLOT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(forbidden, MAP_FAILED);
    assert_int_equal(get(store, 1, forbidden), SPW_EIO);
    assert_says(folder);
    assert_says("cannot read 8192 bytes at 8192");
    assert_says("Bad address");
    assert_int_equal(put(store, 2, forbidden), SPW_EIO);
    assert_says("cannot write 8192 bytes at 16384");
    fill(memory, 2, 4);
    assert_int_equal(put(store, 2, memory), 0);
    assert_int_equal(get(store, 2, memory), 0);
    assert_true(holds(memory, 2, 4));
    spw__store_close(store);
    free(memory);
    munmap(forbidden, SLOT);
}

/* A slot beyond the end of the file: reads give nothing, which must not look like success. */
static void a_short_file_is_an_error(void **state)
{
    (void)state;
    spw__store *store = file_of(2, 2);
    unsigned char *memory = buffers_of(1);
    assert_int_equal(get(store, 7, memory), SPW_EIO);
    assert_says("cannot read 8192 bytes at 57344");
    spw__store_close(store);
    free(memory);
}

/* -------------------------------------------------------------------------------------- main -- */

static int use_threads(void **state)
{
    (void)state;
    return setenv("SPW_IO", "threads", 1);
}

static int use_uring(void **state)
{
    (void)state;
    return unsetenv("SPW_IO");
}

static void say_which_engine(void **state)
{
    (void)state;
    spw__file_engine *engine;
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    int rc = spw__file_uring_open(fd, 2, &engine);
    if (rc == 0)
        engine->ops->close(engine);
    close(fd);
    if (rc < 0) {
        assert_int_equal(rc, SPW_ENOTSUP);
        print_message("SKIPPED: the io_uring tests run on threads here: %s\n", spw_last_error());
        skip();
    }
}

#define FILE_TESTS                                                                                 \
    cmocka_unit_test(the_file_leaves_its_folder_at_once_and_stays_usable),                         \
        cmocka_unit_test(a_tmpfs_works_direct_or_buffered),                                        \
        cmocka_unit_test(new_slots_of_a_file_read_as_zeros_and_old_ones_stay),                     \
        cmocka_unit_test(a_full_disk_is_found_by_grow_and_changes_nothing),                        \
        cmocka_unit_test(a_file_system_that_has_not_the_space_says_so),                            \
        cmocka_unit_test(more_transfers_than_the_depth_queue_up),                                  \
        cmocka_unit_test(threads_move_their_slots_at_once),                                        \
        cmocka_unit_test(what_one_thread_starts_others_may_wait_for),                              \
        cmocka_unit_test(the_nth_read_or_write_fails_once),                                        \
        cmocka_unit_test(a_transfer_that_the_system_refuses_is_an_error_and_the_next_works),       \
        cmocka_unit_test(a_short_file_is_an_error)

int main(void)
{
    const struct CMUnitTest common[] = {
        cmocka_unit_test(an_unknown_name_is_refused_with_what_is_allowed),
        cmocka_unit_test(an_existing_file_is_left_alone),
        cmocka_unit_test(a_missing_folder_is_named),
        cmocka_unit_test(zero_slots_are_allowed),
        cmocka_unit_test(ram_grows_with_zeros_and_keeps_what_was_there),
        cmocka_unit_test(the_ram_cap_is_exact_and_names_its_option),
        cmocka_unit_test(more_ram_than_the_machine_has_is_an_error),
    };
    const struct CMUnitTest by_threads[] = {FILE_TESTS};
    const struct CMUnitTest by_uring[] = {cmocka_unit_test(say_which_engine), FILE_TESTS};
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(common, NULL, NULL);
    failed += cmocka_run_group_tests(by_threads, use_threads, NULL);
    failed += cmocka_run_group_tests(by_uring, use_uring, NULL);
    (void)rmdir(folder);
    return failed;
}
