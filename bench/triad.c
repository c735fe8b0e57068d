/* triad [THREADS]: what the memory moves, by STREAM's triad; by default on all cores. */
#include "cli/triad.h"

#include <spillway/spillway.h>

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    spw__pool *pool;
    if (spw__pool_create(argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 0, &pool) < 0) {
        fprintf(stderr, "triad: %s\n", spw_last_error());
        return 1;
    }
    printf("triad, %u threads: %.2f GB/s\n", spw__pool_threads(pool), spw__triad_gbs(pool));
    spw__pool_destroy(pool);
    return 0;
}
