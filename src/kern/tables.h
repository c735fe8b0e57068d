/*
 * tables.h - the 8-bit code tables and what makes encoding quick.
 *
 * A code is an index into 256 ascending values in [-1, 1] (m, signed) or [0, 1] (v); the element is
 * value * absmax of its block. The values are bitsandbytes' dynamic map: for i = 0..6, 10^(i-6)
 * times the means of neighbours among 2^i + 1 (signed; unsigned 2^(i+1) + 1) points spaced evenly
 * from 0.1 to 1, and 0 and 1.
 *
 * Encoding is exact: the nearest value, a tie between two goes to the even index. It is one look-up
 * by the upper half of the float x = |element| / absmax. Thresholds lie so far apart that at most
 * one falls among floats with equal upper halves, so an entry holds the rank below it (upper 16
 * bits) and 0xFFFF minus the threshold's lower half (lower 16 bits): adding x's lower half carries
 * into the rank exactly when x is past the threshold.
 *
 * Made once, by whichever thread asks first; constant and valid for ever afterwards. Not here: who
 * multiplies by what (elements.h).
 */
#ifndef SPW_KERN_TABLES_H
#define SPW_KERN_TABLES_H

#include <stdint.h>

enum {
    SPW__CODES = 256,
    SPW__CODE_KEY_FIRST = 0x3400, /* upper half of 2^-23: below every threshold */
    SPW__CODE_KEY_LAST = 0x3F80,  /* upper half of 1.0 */
    SPW__CODE_KEYS = SPW__CODE_KEY_LAST - SPW__CODE_KEY_FIRST + 1,
    SPW__CODE_ZERO = 127, /* the signed code of 0; the unsigned one is 0 */
};

typedef struct spw__code_map {
    float value[SPW__CODES];         /* ascending */
    float middle[SPW__CODES - 1];    /* between value[i] and value[i + 1], rounded to fp32 */
    uint32_t encode[SPW__CODE_KEYS]; /* by magnitude; rank 0 is the value 0 */
} spw__code_map;

typedef struct spw__code_maps {
    spw__code_map m; /* signed: code = 127 + rank, or 127 - rank for negative elements */
    spw__code_map v; /* unsigned: code = rank */
} spw__code_maps;

const spw__code_maps *spw__code_maps_get(void);

#endif
