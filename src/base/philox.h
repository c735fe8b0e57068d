/*
 * philox.h - random bits from a counter: Philox4x32-10 of Salmon et al., "Parallel random numbers:
 * as easy as 1, 2, 3" (SC 2011).
 *
 * No state and no order: the same (counter, key) gives the same 128 bits on every thread and
 * device, so a mask can be made again instead of kept. Callers key by meaning (seed, step, element)
 * and never by thread. Shared by C and CUDA through SPW__INLINE.
 */
#ifndef SPW_BASE_PHILOX_H
#define SPW_BASE_PHILOX_H

#include "base/half.h"

#include <stdint.h>

/* Four random words of `counter` under `key`, ten rounds. `out` may be `counter`. */
SPW__INLINE void spw__philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t even = (uint64_t)0xD2511F53u * c0;
        uint64_t odd = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(odd >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)odd;
        c2 = (uint32_t)(even >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)even;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* A random word as a float in [0, 1), a multiple of 2^-24. */
SPW__INLINE float spw__unit_of_bits(uint32_t bits)
{
    return (float)(bits >> 8) * 0x1p-24f;
}

#endif
