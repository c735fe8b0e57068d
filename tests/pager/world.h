/*
 * world.h - a pager and a plain array that must agree with it.
 *
 * Every page is an array of words; a sweep applies the same step to the pager's pages and to the
 * model's. Included by the pager's test programs, each of which is one translation unit.
 */
#ifndef SPW_TESTS_PAGER_WORLD_H
#define SPW_TESTS_PAGER_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pager/pager.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PAGE_BYTES = 64 << 10, WORDS = PAGE_BYTES / 8 };

typedef struct world {
    spw_device *device;
    spw_pager *pager;
    uint64_t n_pages;
    uint64_t *model; /* [n_pages][WORDS] */
    uint64_t *list;  /* [n_pages] scratch for sweeps */
    uint64_t salt;   /* of the step under way */
    char path[64];   /* of the store's file */
} world;

/* xorshift64*: the tests' only source of chance; a failing test prints its seed. */
static inline uint64_t chance(uint64_t *state)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

static inline void step_words(uint64_t *words, uint64_t page, uint64_t salt)
{
    for (uint64_t i = 0; i < WORDS; i++)
        words[i] = words[i] * UINT64_C(6364136223846793005) + page + salt + i;
}

static inline int update_views(void *context, const spw__page_view *views, uint64_t n, void *stream)
{
    world *w = context;
    (void)stream;
    for (uint64_t i = 0; i < n; i++)
        step_words(views[i].memory, views[i].page, w->salt);
    return 0;
}

/* `mem` 0: no cap. Returns the first error, with nothing left behind. */
static inline int world_open(world *w, uint64_t mem, const spw_pager_config *config, uint64_t n)
{
    spw_device_config device_config;
    spw_device_config_default(&device_config);
    device_config.mem = mem;
    device_config.threads = 2;
    memset(w, 0, sizeof *w);
    int rc = spw_device_open("cpu", &device_config, &w->device);
    if (rc < 0)
        return rc;
    rc = spw_pager_create(w->device, config, &w->pager);
    if (rc == 0)
        rc = spw__pager_set_pages(w->pager, PAGE_BYTES, n);
    if (rc < 0) {
        spw_pager_destroy(w->pager);
        spw_device_close(w->device);
        return rc;
    }
    w->n_pages = n;
    w->model = calloc(n, PAGE_BYTES);
    w->list = calloc(n, sizeof *w->list);
    assert_non_null(w->model);
    assert_non_null(w->list);
    return 0;
}

static inline void world_close(world *w)
{
    spw_pager_destroy(w->pager);
    spw_device_stats stats;
    assert_int_equal(spw_device_stats_get(w->device, &stats), 0);
    assert_int_equal(stats.frame_bytes, 0);
    spw_device_close(w->device);
    free(w->model);
    free(w->list);
}

/* A sweep over the pages for which `mask` has a bit (page number modulo 64). */
static inline int world_sweep(world *w, uint64_t mask)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < w->n_pages; i++)
        if (mask >> (i % 64) & 1)
            w->list[n++] = i;
    w->salt++;
    spw__sweep sweep = {w->list, n, update_views, w, NULL};
    int rc = spw__pager_sweep(w->pager, &sweep);
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        step_words(w->model + w->list[i] * WORDS, w->list[i], w->salt);
    return rc;
}

static inline bool world_agrees(world *w)
{
    uint64_t *page = malloc(PAGE_BYTES);
    bool same = page != NULL;
    for (uint64_t i = 0; same && i < w->n_pages; i++)
        same = spw__pager_read(w->pager, i, 0, page, PAGE_BYTES) == 0 &&
               memcmp(page, w->model + i * WORDS, PAGE_BYTES) == 0;
    free(page);
    return same;
}

static inline uint64_t resident_bytes(world *w)
{
    spw_pager_stats stats;
    assert_int_equal(spw_pager_stats_get(w->pager, &stats), 0);
    return stats.resident_bytes;
}

/* "file:/tmp/..." in w->path's place, unused so far; the store unlinks it. */
static inline const char *new_store_path(char *path, size_t bytes)
{
    static int n;
    (void)snprintf(path, bytes, "file:/tmp/spw-test-%ld-%d", (long)getpid(), n++);
    return path;
}

#endif
