/*
 * arena.h - a fixed run of address space, handed out from both ends.
 *
 * Low pieces are placed first fit from the low end, high ones from the high end; free neighbours
 * merge. The table of pieces lies outside the arena, so the cap is exact. Not thread-safe: cpu.c
 * holds its lock. Freed ranges are poisoned under AddressSanitizer.
 */
#ifndef SPW_DEV_ARENA_H
#define SPW_DEV_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A used piece; gaps are what lies between. */
typedef struct spw__arena_piece {
    uint64_t begin, bytes; /* offsets */
    bool high;
} spw__arena_piece;

typedef struct spw__arena {
    char *memory;
    uint64_t capacity;
    spw__arena_piece *pieces; /* in address order */
    size_t n_pieces, piece_capacity;
    uint64_t in_use;
    uint64_t in_use_high; /* of it, high pieces */
} spw__arena;

int spw__arena_init(spw__arena *arena, uint64_t capacity);
void spw__arena_deinit(spw__arena *arena);

/* `bytes` (rounded up to `align`, at least one) at a multiple of `align` (a power of two).
 * SPW_ENOMEM, which the caller records, when no gap is wide enough; SPW_EHOSTMEM when the table
 * cannot grow. */
int spw__arena_alloc(spw__arena *arena, uint64_t bytes, uint64_t align, bool high, void **pointer);

/* Returns false if the pointer is none of the arena's pieces. */
bool spw__arena_free(spw__arena *arena, void *pointer);

uint64_t spw__arena_widest_gap(const spw__arena *arena);

/* Aborts in SPW_CHECKS builds when pieces overlap, leave the arena or do not add up. */
void spw__arena_check(const spw__arena *arena);

#endif
