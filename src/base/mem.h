/*
 * mem.h - host memory for the library's own tables, and runs of address space.
 *
 * Allocations answer NULL after recording SPW_EHOSTMEM, so a caller writes
 * `if (!(p = spw__calloc(n, sizeof *p))) return SPW_EHOSTMEM;`. Any thread.
 */
#ifndef SPW_BASE_MEM_H
#define SPW_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed; freed by free(). n * size is checked for overflow. */
void *spw__calloc(size_t n, size_t size);

/* Grows `*array` (elements of `size` bytes, freed by free()) so that it holds `needed`;
 * `*capacity` follows. Returns 0 or SPW_EHOSTMEM, the array then as it was. */
int spw__grow(void *array, size_t *capacity, size_t needed, size_t size);

char *spw__strdup(const char *text);

/* Anonymous pages, zero, page-aligned, touched only when used, huge where the system likes to;
 * `bytes` is rounded up to 2 MiB inside both. Freed by spw__unmap with the same `bytes`. */
void *spw__map(uint64_t bytes);
void spw__unmap(void *pointer, uint64_t bytes);

/* Bytes that this process could still take without swapping: what the system has available, and
 * what the process's control groups leave (containers, batch systems). UINT64_MAX where neither
 * says. */
uint64_t spw__memory_available(void);

/* Bytes of memory that the process may use at all: the machine's, or the tightest limit of its
 * control groups where that is less. */
uint64_t spw__memory_physical(void);

static inline uint64_t spw__round_up(uint64_t value, uint64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

#endif
