/*
 * sizes.h - sizes as people write them ("48MiB") and as messages show them.
 */
#ifndef SPW_BASE_SIZES_H
#define SPW_BASE_SIZES_H

#include <stddef.h>
#include <stdint.h>

/* A whole number of bytes with an optional KiB, MiB, GiB or TiB, or a decimal fraction with one
 * ("1.5GiB"). Returns 0, or SPW_EINVAL without a message (the caller knows the option's name). */
int spw__parse_size(const char *text, uint64_t *bytes);

/* "12.3 MiB"; buffer of at least 24 bytes; returns it. */
const char *spw__format_size(uint64_t bytes, char *buffer, size_t buffer_bytes);

#endif
