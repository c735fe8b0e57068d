/*
 * triad.h - what this machine's memory moves: the yardstick of the CPU kernels.
 *
 * STREAM's triad, a = b + 3 c over doubles in arrays far larger than a cache, counted as STREAM
 * counts: 24 bytes an element (the store's read for ownership is not). Called by benchmarks; takes
 * 384 MiB and about a second.
 */
#ifndef SPW_CLI_TRIAD_H
#define SPW_CLI_TRIAD_H

#include "base/pool.h"

/* The best of several passes on the pool's threads, in GB/s (10^9); 0 if there is no memory. */
double spw__triad_gbs(spw__pool *pool);

#endif
