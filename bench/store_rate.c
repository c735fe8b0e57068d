/*
 * What the file store moves: store_rate PATH BLOCK_BYTES N_BLOCKS DEPTH write|read|mixed
 *
 * Writes every slot once untimed, so that the file's blocks are there, then times one pass in order
 * with DEPTH transfers in flight and prints its rate as one JSON object. mixed reads and writes
 * every other slot in turn, as a sweep does. Twice as many are started ahead and waited for in
 * order, like the pager's ring of 8 frames over a queue of 4: then one that is late does not leave
 * the disk with fewer.
 */
#include "store/store.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_DEPTH = 64, PLACES_A_TRANSFER = 2 };

typedef struct rate {
    spw__store *store;
    char *memory; /* n_places blocks */
    uint64_t block_bytes, n_blocks, depth, n_places;
    spw__store_io ios[MOST_DEPTH * PLACES_A_TRANSFER];
} rate;

static double seconds_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool writes(const char *kind, uint64_t block)
{
    return kind[0] == 'w' || (kind[0] == 'm' && block % 2);
}

/* All blocks in order; block i uses the place of block i - n_places, once that is done. */
static int pass(rate *r, const char *kind)
{
    for (uint64_t i = 0; i < r->n_blocks + r->n_places; i++) {
        uint64_t place = i % r->n_places;
        char *memory = r->memory + place * r->block_bytes;
        if (i >= r->n_places && spw__store_wait(r->store, &r->ios[place]) < 0)
            return -1;
        if (i >= r->n_blocks)
            continue;
        if (writes(kind, i))
            spw__store_start_write(r->store, &r->ios[place], i, memory);
        else
            spw__store_start_read(r->store, &r->ios[place], i, memory);
    }
    return 0;
}

static int measure(rate *r, const char *kind)
{
    if (spw__store_grow(r->store, r->block_bytes, r->n_blocks) < 0 || pass(r, "write") < 0)
        return -1;
    double begin = seconds_now();
    if (pass(r, kind) < 0)
        return -1;
    double seconds = seconds_now() - begin;
    double bytes = (double)r->block_bytes * (double)r->n_blocks;
    (void)printf("{\"kind\": \"%s\", \"gbs\": %.4f, \"direct_io\": %d}\n", kind,
                 bytes / seconds * 1e-9, r->store->direct_io);
    return 0;
}

/* Bytes that no disk can shrink, as fio writes. */
static void fill(char *memory, uint64_t bytes)
{
    uint64_t random = 1;
    for (uint64_t i = 0; i < bytes; i += sizeof random) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        memcpy(memory + i, &random, sizeof random);
    }
}

static int open_store(rate *r, const char *path)
{
    char name[4096];
    (void)snprintf(name, sizeof name, "file:%s", path);
    spw__store_config config = {.name = name, .io_depth = (uint32_t)r->depth};
    r->memory = aligned_alloc(4096, r->n_places * r->block_bytes);
    if (!r->memory)
        return -1;
    fill(r->memory, r->n_places * r->block_bytes);
    return spw__store_open(&config, &r->store);
}

int main(int n, char **arguments)
{
    static rate r;
    if (n == 6) {
        r.block_bytes = strtoull(arguments[2], NULL, 10);
        r.n_blocks = strtoull(arguments[3], NULL, 10);
        r.depth = strtoull(arguments[4], NULL, 10);
        r.n_places = r.depth * PLACES_A_TRANSFER;
    }
    if (!r.n_blocks || !r.block_bytes || r.block_bytes % 4096 || r.depth - 1 >= MOST_DEPTH) {
        (void)fprintf(stderr,
                      "usage: store_rate PATH BLOCK_BYTES N_BLOCKS DEPTH "
                      "write|read|mixed (DEPTH at most %d)\n",
                      MOST_DEPTH);
        return 2;
    }
    int rc = open_store(&r, arguments[1]);
    if (rc == 0)
        rc = measure(&r, arguments[5]);
    if (rc < 0)
        (void)fprintf(stderr, "store_rate: %s\n", spw_last_error());
    spw__store_close(r.store);
    free(r.memory);
    return rc < 0;
}
