/*
 * calls.h - the allocation calls that the hook stands under, and their repeating twins.
 *
 * What it is not: it allocates nothing itself. A twin calls the real function; when that is out of
 * memory it asks spw_reclaim for the bytes and calls again, as long as something is given back. May
 * be called with the allocator's own mutex held, from any thread.
 */
#ifndef SPW_HOOK_CALLS_H
#define SPW_HOOK_CALLS_H

#include <stdbool.h>
#include <stddef.h>

/* The twin of a function by its name, or NULL. */
void *spw__hook_twin(const char *name);

/* Finds the real functions, once; false if the process has no CUDA runtime. */
bool spw__hook_find_real(void);

/* patch.c: points the import slots of loaded libraries to the twins; returns how many. */
size_t spw__hook_patch(void);

#endif
