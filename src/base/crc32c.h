/*
 * crc32c.h - the checksum of checkpoints: CRC-32C (Castagnoli; RFC 3720, appendix B.4).
 *
 * Every change of up to 32 bits in a row is noticed, any other with probability 1 - 2^-32. Where
 * the CPU has the instruction (SSE 4.2) it is used, else tables; the values are the same. Any
 * thread.
 */
#ifndef SPW_BASE_CRC32C_H
#define SPW_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of some bytes that follow those whose checksum is `crc`; 0: of nothing before. */
uint32_t spw__crc32c(uint32_t crc, const void *data, size_t bytes);

/* The same by tables alone; for tests. */
uint32_t spw__crc32c_by_tables(uint32_t crc, const void *data, size_t bytes);

#endif
