#include "dev/arena.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SPW__ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SPW__ASAN 1
#endif

#ifdef SPW__ASAN
#include <sanitizer/asan_interface.h>
static void poison(void *memory, uint64_t bytes)
{
    __asan_poison_memory_region(memory, (size_t)bytes);
}

static void unpoison(void *memory, uint64_t bytes)
{
    __asan_unpoison_memory_region(memory, (size_t)bytes);
}
#else
static void poison(void *memory, uint64_t bytes)
{
    (void)memory;
    (void)bytes;
}

static void unpoison(void *memory, uint64_t bytes)
{
    (void)memory;
    (void)bytes;
}
#endif

int spw__arena_init(spw__arena *arena, uint64_t capacity)
{
    *arena = (spw__arena){.capacity = capacity};
    arena->memory = spw__map(capacity);
    if (!arena->memory)
        return SPW_EHOSTMEM;
    poison(arena->memory, capacity);
    return 0;
}

void spw__arena_deinit(spw__arena *arena)
{
    if (arena->memory)
        unpoison(arena->memory, arena->capacity);
    spw__unmap(arena->memory, arena->capacity);
    free(arena->pieces);
    *arena = (spw__arena){.memory = NULL};
}

/* Gap i lies before piece i; the last one before the end. */
static uint64_t gap_begin(const spw__arena *arena, size_t i)
{
    return i ? arena->pieces[i - 1].begin + arena->pieces[i - 1].bytes : 0;
}

static uint64_t gap_end(const spw__arena *arena, size_t i)
{
    return i < arena->n_pieces ? arena->pieces[i].begin : arena->capacity;
}

/* Where `bytes` would begin in gap i, or UINT64_MAX. */
static uint64_t fit(const spw__arena *arena, size_t i, uint64_t bytes, uint64_t align, bool high)
{
    uint64_t begin = spw__round_up(gap_begin(arena, i), align), end = gap_end(arena, i);
    if (begin > end || end - begin < bytes)
        return UINT64_MAX;
    return high ? (end - bytes) / align * align : begin;
}

static int insert(spw__arena *arena, size_t at, spw__arena_piece piece)
{
    int rc = spw__grow(&arena->pieces, &arena->piece_capacity, arena->n_pieces + 1,
                       sizeof *arena->pieces);
    if (rc < 0)
        return rc;
    memmove(&arena->pieces[at + 1], &arena->pieces[at],
            (arena->n_pieces - at) * sizeof *arena->pieces);
    arena->pieces[at] = piece;
    arena->n_pieces++;
    arena->in_use += piece.bytes;
    arena->in_use_high += piece.high ? piece.bytes : 0;
    return 0;
}

int spw__arena_alloc(spw__arena *arena, uint64_t bytes, uint64_t align, bool high, void **pointer)
{
    if (bytes > arena->capacity)
        return SPW_ENOMEM;
    uint64_t rounded = spw__round_up(bytes ? bytes : 1, align);
    for (size_t n = 0; n <= arena->n_pieces; n++) {
        size_t i = high ? arena->n_pieces - n : n;
        uint64_t begin = fit(arena, i, rounded, align, high);
        if (begin == UINT64_MAX)
            continue;
        int rc = insert(arena, i, (spw__arena_piece){begin, rounded, high});
        if (rc < 0)
            return rc;
        unpoison(arena->memory + begin, rounded);
        *pointer = arena->memory + begin;
        return 0;
    }
    return SPW_ENOMEM;
}

/* Index of the piece that begins at `offset`, or n_pieces. */
static size_t find(const spw__arena *arena, uint64_t offset)
{
    size_t low = 0, high = arena->n_pieces;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (arena->pieces[middle].begin < offset)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < arena->n_pieces && arena->pieces[low].begin == offset;
    return found ? low : arena->n_pieces;
}

bool spw__arena_free(spw__arena *arena, void *pointer)
{
    size_t i = find(arena, (uint64_t)((char *)pointer - arena->memory));
    if (i == arena->n_pieces)
        return false;
    spw__arena_piece piece = arena->pieces[i];
    arena->n_pieces--;
    memmove(&arena->pieces[i], &arena->pieces[i + 1],
            (arena->n_pieces - i) * sizeof *arena->pieces);
    arena->in_use -= piece.bytes;
    arena->in_use_high -= piece.high ? piece.bytes : 0;
    poison(arena->memory + piece.begin, piece.bytes);
    return true;
}

uint64_t spw__arena_widest_gap(const spw__arena *arena)
{
    uint64_t widest = 0;
    for (size_t i = 0; i <= arena->n_pieces; i++) {
        uint64_t bytes = gap_end(arena, i) - gap_begin(arena, i);
        widest = bytes > widest ? bytes : widest;
    }
    return widest;
}

void spw__arena_check(const spw__arena *arena)
{
#ifdef SPW_CHECKS
    uint64_t end = 0, in_use = 0;
    for (size_t i = 0; i < arena->n_pieces; i++) {
        if (arena->pieces[i].begin < end || !arena->pieces[i].bytes)
            abort();
        end = arena->pieces[i].begin + arena->pieces[i].bytes;
        in_use += arena->pieces[i].bytes;
    }
    if (end > arena->capacity || in_use != arena->in_use)
        abort();
#else
    (void)arena;
#endif
}
