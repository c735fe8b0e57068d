/*
 * available.h - where the kernel says what control groups allow; mem.h has what follows from it.
 *
 * Apart from the real places, which available.c names, only tests ask. Any thread.
 */
#ifndef SPW_BASE_AVAILABLE_H
#define SPW_BASE_AVAILABLE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct spw__memory_places {
    const char *self_cgroup; /* "/proc/self/cgroup" */
    const char *cgroup_root; /* "/sys/fs/cgroup" */
} spw__memory_places;

/* The tightest limit of the process's control groups in bytes, or what they leave of it; UINT64_MAX
 * where they set none. */
uint64_t spw__memory_in_groups(const spw__memory_places *places, bool left);

#endif
