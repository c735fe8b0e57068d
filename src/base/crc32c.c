#include "base/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

static const uint32_t polynomial = 0x82F63B78; /* reflected */

/* table[k][b]: what byte b does to the checksum when k bytes follow it. */
static uint32_t table[8][256];
static pthread_once_t made = PTHREAD_ONCE_INIT;

static void make_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? polynomial : 0);
        table[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 255];
}

uint32_t spw__crc32c_by_tables(uint32_t crc, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    (void)pthread_once(&made, make_table);
    crc = ~crc;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        uint32_t low =
            (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        low ^= crc;
        crc = table[7][low & 255] ^ table[6][low >> 8 & 255] ^ table[5][low >> 16 & 255] ^
              table[4][low >> 24] ^ table[3][at[4]] ^ table[2][at[5]] ^ table[1][at[6]] ^
              table[0][at[7]];
    }
    for (; bytes; bytes--)
        crc = crc >> 8 ^ table[0][(crc ^ *at++) & 255];
    return ~crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const void *data,
                                                                 size_t bytes)
{
    const unsigned char *at = data;
    uint64_t wide = ~crc, word;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        memcpy(&word, at, sizeof word);
        wide = _mm_crc32_u64(wide, word);
    }
    uint32_t narrow = (uint32_t)wide;
    for (; bytes; bytes--)
        narrow = _mm_crc32_u8(narrow, *at++);
    return ~narrow;
}

uint32_t spw__crc32c(uint32_t crc, const void *data, size_t bytes)
{
    bool has_instruction = __builtin_cpu_supports("sse4.2");
    return has_instruction ? by_instruction(crc, data, bytes)
                           : spw__crc32c_by_tables(crc, data, bytes);
}
#else
uint32_t spw__crc32c(uint32_t crc, const void *data, size_t bytes)
{
    return spw__crc32c_by_tables(crc, data, bytes);
}
#endif
