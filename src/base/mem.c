#include "base/mem.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const uint64_t huge_page_bytes = UINT64_C(2) << 20;

void *spw__calloc(size_t n, size_t size)
{
    void *pointer = calloc(n ? n : 1, size ? size : 1);
    if (!pointer)
        (void)spw__error(SPW_EHOSTMEM, "out of host memory: %zu x %zu bytes", n, size);
    return pointer;
}

int spw__grow(void *array, size_t *capacity, size_t needed, size_t size)
{
    if (needed <= *capacity)
        return 0;
    size_t larger = *capacity ? *capacity : 16;
    while (larger < needed)
        larger = larger > SIZE_MAX / 2 ? needed : larger * 2;
    void *old;
    memcpy(&old, array, sizeof old);
    void *grown = larger > SIZE_MAX / size ? NULL : realloc(old, larger * size);
    if (!grown)
        return spw__error(SPW_EHOSTMEM, "out of host memory: %zu x %zu bytes", larger, size);
    memcpy(array, &grown, sizeof grown);
    *capacity = larger;
    return 0;
}

char *spw__strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = spw__calloc(bytes, 1);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

void *spw__map(uint64_t bytes)
{
    uint64_t rounded = spw__round_up(bytes ? bytes : 1, huge_page_bytes);
    void *pointer = MAP_FAILED;
    if (rounded >= bytes && rounded <= SIZE_MAX)
        pointer = mmap(NULL, (size_t)rounded, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pointer == MAP_FAILED) {
        (void)spw__error(SPW_EHOSTMEM, "cannot map %" PRIu64 " bytes of host memory", bytes);
        return NULL;
    }
    (void)madvise(pointer, (size_t)rounded, MADV_HUGEPAGE); /* a wish, not a need */
    return pointer;
}

void spw__unmap(void *pointer, uint64_t bytes)
{
    if (pointer)
        (void)munmap(pointer, (size_t)spw__round_up(bytes ? bytes : 1, huge_page_bytes));
}
