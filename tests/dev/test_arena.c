/* The arena: an exact cap, two ends, neighbours that merge, and a random walk beside a plain map.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "dev/arena.h"

#include <spillway/spillway.h>

#include <stdlib.h>
#include <string.h>

enum { UNIT = 64, FRAME = 4096 };

/* xorshift64*: the same numbers everywhere. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(0x2545F4914F6CDD1D) >> 16;
}

static spw__arena arena_of(uint64_t capacity)
{
    spw__arena arena;
    assert_int_equal(spw__arena_init(&arena, capacity), 0);
    return arena;
}

static char *low(spw__arena *arena, uint64_t bytes)
{
    void *p = NULL;
    return spw__arena_alloc(arena, bytes, UNIT, false, &p) == 0 ? p : NULL;
}

static char *high(spw__arena *arena, uint64_t bytes)
{
    void *p = NULL;
    return spw__arena_alloc(arena, bytes, FRAME, true, &p) == 0 ? p : NULL;
}

static void gives_the_whole_capacity_and_no_more(void **state)
{
    (void)state;
    spw__arena arena = arena_of(100 * UNIT);
    assert_null(low(&arena, 100 * UNIT + 1));
    for (int i = 0; i < 100; i++)
        assert_non_null(low(&arena, UNIT));
    assert_int_equal(arena.in_use, 100 * UNIT);
    assert_null(low(&arena, 1));
    assert_null(low(&arena, 0));
    spw__arena_deinit(&arena);
    arena = arena_of(100 * UNIT);
    char *all = low(&arena, 100 * UNIT);
    assert_non_null(all);
    memset(all, 1, 100 * UNIT);
    spw__arena_deinit(&arena);
}

static void refuses_sizes_that_would_wrap(void **state)
{
    (void)state;
    spw__arena arena = arena_of(100 * UNIT);
    void *p;
    assert_int_equal(spw__arena_alloc(&arena, UINT64_MAX, UNIT, false, &p), SPW_ENOMEM);
    assert_int_equal(spw__arena_alloc(&arena, UINT64_MAX - 62, UNIT, false, &p), SPW_ENOMEM);
    assert_int_equal(spw__arena_alloc(&arena, UINT64_MAX - 4000, FRAME, true, &p), SPW_ENOMEM);
    assert_int_equal(arena.n_pieces, 0);
    spw__arena_deinit(&arena);
}

static void memory_comes_from_the_low_end_and_frames_from_the_high(void **state)
{
    (void)state;
    uint64_t capacity = 10 * FRAME + 100; /* the high end is no frame boundary */
    spw__arena arena = arena_of(capacity);
    char *a = low(&arena, 100), *b = low(&arena, 1);
    char *f = high(&arena, FRAME), *g = high(&arena, 10);
    assert_ptr_equal(a, arena.memory);
    assert_ptr_equal(b, arena.memory + 128);
    assert_ptr_equal(f, arena.memory + 9 * FRAME);
    assert_ptr_equal(g, arena.memory + 8 * FRAME);
    assert_int_equal(arena.in_use, 128 + 64 + 2 * FRAME);
    assert_int_equal(arena.in_use_high, 2 * FRAME);
    assert_int_equal(spw__arena_widest_gap(&arena), 8 * FRAME - 192);
    spw__arena_deinit(&arena);
}

static void freed_neighbours_merge_in_any_order(void **state)
{
    (void)state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int o = 0; o < 6; o++) {
        spw__arena arena = arena_of(3 * UNIT);
        char *pieces[3] = {low(&arena, UNIT), low(&arena, UNIT), low(&arena, UNIT)};
        for (int i = 0; i < 3; i++)
            assert_true(spw__arena_free(&arena, pieces[orders[o][i]]));
        assert_int_equal(spw__arena_widest_gap(&arena), 3 * UNIT);
        assert_ptr_equal(low(&arena, 3 * UNIT), arena.memory);
        spw__arena_deinit(&arena);
    }
}

static void frames_given_back_lowest_first_widen_one_gap(void **state)
{
    (void)state;
    spw__arena arena = arena_of(8 * FRAME);
    char *frames[6];
    for (int i = 0; i < 6; i++)
        frames[i] = high(&arena, FRAME);
    for (int i = 5; i >= 2; i--)
        assert_true(spw__arena_free(&arena, frames[i]));
    assert_int_equal(spw__arena_widest_gap(&arena), 6 * FRAME);
    assert_ptr_equal(low(&arena, 6 * FRAME), arena.memory);
    spw__arena_deinit(&arena);
}

static void a_gap_too_narrow_is_passed_over(void **state)
{
    (void)state;
    spw__arena arena = arena_of(10 * UNIT);
    char *a = low(&arena, 2 * UNIT);
    assert_non_null(low(&arena, UNIT));
    char *c = low(&arena, 4 * UNIT);
    assert_non_null(low(&arena, UNIT));
    assert_true(spw__arena_free(&arena, a));
    assert_true(spw__arena_free(&arena, c));
    assert_null(low(&arena, 5 * UNIT)); /* 8 units are free, in gaps of 2, 4 and 2 */
    assert_int_equal(spw__arena_widest_gap(&arena), 4 * UNIT);
    assert_ptr_equal(low(&arena, 3 * UNIT), c);
    assert_ptr_equal(low(&arena, 2 * UNIT), a);
    spw__arena_deinit(&arena);
}

static void foreign_and_freed_pointers_are_refused(void **state)
{
    (void)state;
    spw__arena arena = arena_of(10 * UNIT);
    char *a = low(&arena, 2 * UNIT), other;
    assert_false(spw__arena_free(&arena, a + UNIT));
    assert_false(spw__arena_free(&arena, a - 1));
    assert_false(spw__arena_free(&arena, &other));
    assert_true(spw__arena_free(&arena, a));
    assert_false(spw__arena_free(&arena, a));
    assert_int_equal(arena.in_use, 0);
    spw__arena_deinit(&arena);
}

static void holds_thousands_of_pieces(void **state)
{
    (void)state;
    enum { N = 5000 };
    spw__arena arena = arena_of(N * UNIT);
    static char *pieces[N];
    for (int i = 0; i < N; i++)
        assert_non_null(pieces[i] = low(&arena, UNIT));
    for (int i = 0; i < N; i += 2)
        assert_true(spw__arena_free(&arena, pieces[i]));
    assert_null(low(&arena, 2 * UNIT));
    for (int i = 1; i < N; i += 2)
        assert_true(spw__arena_free(&arena, pieces[i]));
    spw__arena_check(&arena);
    assert_int_equal(arena.in_use, 0);
    assert_int_equal(spw__arena_widest_gap(&arena), N * UNIT);
    spw__arena_deinit(&arena);
}

/* ----------------------------------------------------------- the random walk and its plain map */

enum { UNITS = 2000, SLOTS = 300 }; /* 125 KiB: the high end is no frame boundary */

typedef struct walk_piece {
    unsigned char *at;
    uint64_t begin, units, asked;
    unsigned char fill;
} walk_piece;

typedef struct walk {
    spw__arena arena;
    bool used[UNITS];
    walk_piece pieces[SLOTS];
    uint64_t random, in_use;
} walk;

static bool is_free(const walk *w, uint64_t begin, uint64_t units)
{
    for (uint64_t i = begin; i < begin + units; i++)
        if (i >= UNITS || w->used[i])
            return false;
    return true;
}

/* Where the arena must put it: first fit from the low end, or the highest aligned place. */
static uint64_t expected_place(const walk *w, uint64_t units, bool frame)
{
    uint64_t step = frame ? FRAME / UNIT : 1;
    if (!frame) {
        for (uint64_t i = 0; i < UNITS; i++)
            if (is_free(w, i, units))
                return i;
        return UNITS;
    }
    for (uint64_t i = UNITS / step + 1; i-- > 0;)
        if (is_free(w, i * step, units))
            return i * step;
    return UNITS;
}

static uint64_t widest_of_map(const walk *w)
{
    uint64_t widest = 0, run = 0;
    for (uint64_t i = 0; i < UNITS; i++) {
        run = w->used[i] ? 0 : run + 1;
        widest = run > widest ? run : widest;
    }
    return widest * UNIT;
}

static bool filled(const walk_piece *piece)
{
    for (uint64_t i = 0; i < piece->asked; i++)
        if (piece->at[i] != piece->fill)
            return false;
    return true;
}

static const char *walk_alloc(walk *w, walk_piece *piece)
{
    bool frame = next_random(&w->random) % 3 == 0;
    uint64_t asked =
        frame ? 1 + next_random(&w->random) % (2 * FRAME) : next_random(&w->random) % (40 * UNIT);
    uint64_t grain = frame ? FRAME : UNIT;
    uint64_t units = ((asked ? asked : 1) + grain - 1) / grain * grain / UNIT;
    uint64_t place = expected_place(w, units, frame);
    void *p = NULL;
    int rc = spw__arena_alloc(&w->arena, asked, grain, frame, &p);
    if (place == UNITS)
        return rc == SPW_ENOMEM ? NULL : "was given what does not fit";
    if (rc != 0 || (char *)p != w->arena.memory + place * UNIT)
        return "is not where first fit puts it";
    *piece = (walk_piece){p, place, units, asked, (unsigned char)next_random(&w->random)};
    memset(p, piece->fill, asked);
    memset(&w->used[place], 1, units);
    w->in_use += units * UNIT;
    return NULL;
}

static const char *walk_free(walk *w, walk_piece *piece)
{
    if (!filled(piece))
        return "was written over";
    if (!spw__arena_free(&w->arena, piece->at))
        return "cannot be freed";
    memset(&w->used[piece->begin], 0, piece->units);
    w->in_use -= piece->units * UNIT;
    piece->at = NULL;
    return NULL;
}

static const char *walk_step(walk *w)
{
    walk_piece *piece = &w->pieces[next_random(&w->random) % SLOTS];
    const char *wrong = piece->at ? walk_free(w, piece) : walk_alloc(w, piece);
    spw__arena_check(&w->arena);
    if (!wrong && w->arena.in_use != w->in_use)
        wrong = "left a wrong sum in use";
    if (!wrong && spw__arena_widest_gap(&w->arena) != widest_of_map(w))
        wrong = "left a wrong widest gap";
    return wrong;
}

static void a_random_walk_agrees_with_a_plain_map(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        static walk w;
        w = (walk){.arena = arena_of(UNITS * UNIT), .random = seed};
        for (int step = 0; step < 3000; step++) {
            const char *wrong = walk_step(&w);
            if (wrong)
                fail_msg("seed %d, step %d: a piece %s", (int)seed, step, wrong);
        }
        spw__arena_deinit(&w.arena);
    }
}

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>

static void freed_memory_is_poisoned(void **state)
{
    (void)state;
    spw__arena arena = arena_of(10 * UNIT);
    assert_true(__asan_address_is_poisoned(arena.memory));
    char *a = low(&arena, UNIT);
    assert_false(__asan_address_is_poisoned(a));
    assert_true(__asan_address_is_poisoned(a + UNIT));
    assert_true(spw__arena_free(&arena, a));
    assert_true(__asan_address_is_poisoned(a));
    spw__arena_deinit(&arena);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_the_whole_capacity_and_no_more),
        cmocka_unit_test(refuses_sizes_that_would_wrap),
        cmocka_unit_test(memory_comes_from_the_low_end_and_frames_from_the_high),
        cmocka_unit_test(freed_neighbours_merge_in_any_order),
        cmocka_unit_test(frames_given_back_lowest_first_widen_one_gap),
        cmocka_unit_test(a_gap_too_narrow_is_passed_over),
        cmocka_unit_test(foreign_and_freed_pointers_are_refused),
        cmocka_unit_test(holds_thousands_of_pieces),
        cmocka_unit_test(a_random_walk_agrees_with_a_plain_map),
#ifdef __SANITIZE_ADDRESS__
        cmocka_unit_test(freed_memory_is_poisoned),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
