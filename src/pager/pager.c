#include "pager/pager.h"

#include "base/error.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_IO_DEPTH = 256 };

static const uint64_t min_page_bytes = UINT64_C(64) << 10;
static const uint64_t max_page_bytes = UINT64_C(16) << 20;
static const uint64_t min_slab_bytes = UINT64_C(2) << 20;
static const uint64_t max_slab_bytes = UINT64_C(64) << 20;

void spw_pager_config_default(spw_pager_config *config)
{
    *config = (spw_pager_config){
        .size = sizeof *config,
        .paging = SPW_PAGING_AUTO,
        .store = "ram",
        .state_mem = SPW_ALL_STATE,
        .state_percent = -1,
        .occupancy = 0.90,
    };
}

static int check_config(const spw_pager_config *config)
{
    if (config->size != sizeof *config)
        return spw__error(SPW_EINVAL,
                          "spw_pager_config.size is %u, not %zu: call spw_pager_config_default",
                          config->size, sizeof *config);
    if ((unsigned)config->paging > SPW_PAGING_OFF)
        return spw__error(SPW_EINVAL, "paging %d is none of spw_paging", (int)config->paging);
    if (!config->store)
        return spw__error(SPW_EINVAL, "store is NULL: name \"ram\" or \"file:PATH\"");
    if (config->state_percent > 100 || config->state_percent != config->state_percent)
        return spw__error(SPW_EINVAL, "state_percent %g is over 100", config->state_percent);
    if (!(config->occupancy > 0 && config->occupancy <= 1))
        return spw__error(SPW_EINVAL, "occupancy %g is not above 0 and at most 1",
                          config->occupancy);
    uint64_t page = config->page_bytes;
    if (page && (page < min_page_bytes || page > max_page_bytes || (page & (page - 1))))
        return spw__error(
            SPW_EINVAL, "page size %" PRIu64 " is not a power of two from 64 KiB to 16 MiB", page);
    if (config->io_depth > MOST_IO_DEPTH)
        return spw__error(SPW_EINVAL, "io_depth %u is over %d", config->io_depth, MOST_IO_DEPTH);
    if (config->ring_frames && (config->ring_frames < 3 || config->ring_frames > 64))
        return spw__error(SPW_EINVAL, "ring_frames %u is not 3 to 64", config->ring_frames);
    return 0;
}

/* AUTO on the cpu device: without any cap the arena and the ram store are the same memory, so
 * moving pages between them gains nothing. */
static spw_paging resolve_auto(const spw_pager *pager)
{
    spw__dev_usage usage;
    spw__dev_usage_get(pager->device, &usage);
    bool capped = pager->config.state_mem != SPW_ALL_STATE || pager->config.state_percent >= 0;
    return usage.has_cap || pager->by_file || capped ? SPW_PAGING_COPY : SPW_PAGING_MAPPED;
}

static int resolve_paging(spw_pager *pager)
{
    spw_paging *paging = &pager->config.paging;
    if (*paging == SPW_PAGING_AUTO)
        *paging = resolve_auto(pager);
    if (*paging == SPW_PAGING_UNIFIED && !pager->device->managed)
        return spw__error(SPW_ENOTSUP,
                          "paging unified needs CUDA managed memory with concurrent access, which "
                          "this %s device does not have: use copy or mapped",
                          pager->device->ops->name);
    if (*paging == SPW_PAGING_MAPPED && pager->by_file)
        return spw__error(SPW_ENOTSUP, "paging mapped needs the ram store: a file cannot be "
                                       "updated in place; use copy");
    return 0;
}

static int open_store(spw_pager *pager, const spw_pager_config *config)
{
    if (pager->config.paging == SPW_PAGING_OFF || pager->config.paging == SPW_PAGING_UNIFIED)
        return 0;
    spw__store_config store = {
        .name = config->store,
        .host_mem = config->host_mem,
        .io_depth = config->io_depth ? config->io_depth : 4,
    };
    return spw__store_open(&store, &pager->store);
}

int spw_pager_create(spw_device *device, const spw_pager_config *config, spw_pager **result)
{
    spw_pager_config defaults;
    spw_pager_config_default(&defaults);
    if (!device || !result)
        return spw__error(SPW_EINVAL, "spw_pager_create: device and pager may not be NULL");
    if (!config)
        config = &defaults;
    int rc = check_config(config);
    if (rc < 0)
        return rc;
    spw_pager *pager = spw__calloc(1, sizeof *pager);
    if (!pager)
        return SPW_EHOSTMEM;
    pager->device = device;
    pager->config = *config;
    pager->config.store = NULL;
    pager->by_file = strncmp(config->store, "file:", 5) == 0;
    spw__lock_init(&pager->lock, SPW__RANK_PAGER);
    pthread_cond_init(&pager->changed, NULL);
    rc = resolve_paging(pager);
    if (rc == 0)
        rc = open_store(pager, config);
    if (rc < 0) {
        spw_pager_destroy(pager);
        return rc;
    }
    if (!pager->config.ring_frames)
        pager->config.ring_frames = pager->by_file ? 8 : 4;
    spw__registry_enter(pager);
    *result = pager;
    return 0;
}

static void free_tables(spw_pager *pager)
{
    free(pager->pages);
    free(pager->slabs);
    free(pager->queue);
    free(pager->residents);
    free(pager->views);
    pager->pages = NULL;
    pager->slabs = NULL;
    pager->queue = pager->residents = NULL;
    pager->views = NULL;
}

static void destroy_events(spw_pager *pager)
{
    for (uint32_t i = 0; pager->lanes && i < pager->config.ring_frames; i++) {
        spw__dev_event_destroy(pager->device, pager->lanes[i].loaded);
        spw__dev_event_destroy(pager->device, pager->lanes[i].updated);
        spw__dev_event_destroy(pager->device, pager->lanes[i].saved);
    }
    spw__dev_event_destroy(pager->device, pager->used);
    spw__dev_event_destroy(pager->device, pager->saved);
}

/* Nothing that was queued touches the pager's memory any more. */
static void settle(spw_pager *pager)
{
    for (int i = 0; i < SPW__DEV_STREAMS; i++)
        (void)spw__dev_stream_sync(pager->device, pager->device->streams[i]);
    (void)spw__dev_event_wait(pager->device, pager->used);
}

void spw_pager_destroy(spw_pager *pager)
{
    if (!pager)
        return;
    spw__registry_leave(pager);
    settle(pager);
    spw__frames_free_all(pager);
    spw__dev_free(pager->device, pager->ring);
    spw__pins_close(pager);
    spw__bounce_close(pager);
    spw__dev_free(pager->device, pager->managed);
    destroy_events(pager);
    spw__store_close(pager->store);
    spw__unmap(pager->bounce, pager->page_bytes);
    free(pager->lanes);
    free_tables(pager);
    pthread_cond_destroy(&pager->changed);
    spw__lock_deinit(&pager->lock);
    free(pager);
}

uint64_t spw_pager_page_bytes(const spw_pager_config *config, uint64_t state_bytes)
{
    if (config && config->page_bytes)
        return config->page_bytes;
    uint64_t page_bytes = min_page_bytes;
    while (page_bytes < max_page_bytes && page_bytes * 2 <= state_bytes / 64)
        page_bytes *= 2;
    return page_bytes;
}

/* About a sixteenth of the state, 2 to 64 MiB, whole pages. */
static uint32_t frames_a_slab(uint64_t page_bytes, uint64_t n_pages)
{
    uint64_t bytes = page_bytes * n_pages / 16;
    bytes = bytes < min_slab_bytes ? min_slab_bytes : bytes;
    bytes = bytes > max_slab_bytes ? max_slab_bytes : bytes;
    uint64_t frames = bytes / page_bytes;
    return frames ? (uint32_t)frames : 1;
}

static int make_tables(spw_pager *pager, uint64_t n_pages)
{
    size_t n = (size_t)n_pages;
    pager->pages = spw__calloc(n, sizeof *pager->pages);
    pager->slabs = spw__calloc(n, sizeof *pager->slabs);
    pager->queue = spw__calloc(n, sizeof *pager->queue);
    pager->residents = spw__calloc(n, sizeof *pager->residents);
    pager->views = spw__calloc(n, sizeof(spw__page_view));
    if (!pager->pages || !pager->slabs || !pager->queue || !pager->residents || !pager->views) {
        free_tables(pager);
        return SPW_EHOSTMEM;
    }
    for (size_t i = 0; i < n; i++)
        pager->pages[i] = (spw__page){.slab = SPW__NO_SLAB, .state = SPW__PAGE_ZERO};
    return 0;
}

/* A store that is pinned is copied from and to while the host does something else. Where that is
 * refused (a limit on locked memory, WSL2) or capped, pages pass a small pinned ring. */
static int pin_store(spw_pager *pager, uint64_t bytes)
{
    uint64_t cap = pager->config.pinned_mem;
    if (!pager->device->async || !pager->store || pager->pins)
        return 0;
    bool mapped = pager->config.paging == SPW_PAGING_MAPPED;
    void *memory = pager->by_file ? NULL : spw__store_slot(pager->store, 0);
    bool may = memory && (!cap || bytes <= cap);
    int rc = may ? spw__pins_open(pager, memory, bytes, mapped) : SPW_EHOSTMEM;
    spw__lock_take(&pager->lock); /* another thread may be reading statistics */
    pager->bounced = rc < 0;
    spw__lock_drop(&pager->lock);
    if (rc < 0 && mapped)
        return spw__error(SPW_ENOTSUP,
                          "paging mapped needs %" PRIu64 " bytes of pinned host memory, more than "
                          "the system (ulimit -l) or pinned_mem allows: use copy",
                          bytes);
    return 0;
}

/* Its first touch is the host's: it rests there until a sweep prefetches it. */
static int take_managed(spw_pager *pager, uint64_t bytes)
{
    void *memory;
    int rc = spw__dev_alloc(pager->device, bytes, SPW__DEV_MANAGED, &memory);
    if (rc < 0)
        return rc;
    memset(memory, 0, (size_t)bytes);
    pager->managed = memory;
    return 0;
}

int spw__pager_set_pages(spw_pager *pager, uint64_t page_bytes, uint64_t n_pages)
{
    int rc = make_tables(pager, n_pages);
    if (rc < 0)
        return rc;
    if (pager->store)
        rc = spw__store_grow(pager->store, page_bytes, n_pages);
    if (rc == 0)
        rc = pin_store(pager, page_bytes * n_pages);
    if (rc == 0 && pager->config.paging == SPW_PAGING_UNIFIED)
        rc = take_managed(pager, page_bytes * n_pages);
    if (rc < 0) {
        free_tables(pager);
        return rc;
    }
    spw__lock_take(&pager->lock);
    pager->n_slabs = (uint32_t)n_pages;
    pager->slab_frames = frames_a_slab(page_bytes, n_pages);
    pager->page_bytes = page_bytes;
    pager->n_pages = n_pages;
    spw__lock_drop(&pager->lock);
    return 0;
}

static int create_event(spw_pager *pager, void **event)
{
    return *event ? 0 : spw__dev_event_create(pager->device, event);
}

/* Those that are not there yet: a call that failed is made again. */
static int create_events(spw_pager *pager)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && pager->lanes && i < pager->config.ring_frames; i++) {
        rc = create_event(pager, &pager->lanes[i].loaded);
        if (rc == 0)
            rc = create_event(pager, &pager->lanes[i].updated);
        if (rc == 0)
            rc = create_event(pager, &pager->lanes[i].saved);
    }
    if (rc == 0)
        rc = create_event(pager, &pager->used);
    return rc < 0 ? rc : create_event(pager, &pager->saved);
}

static int take_ring(spw_pager *pager)
{
    uint32_t n = pager->config.ring_frames;
    if (!pager->lanes && !(pager->lanes = spw__calloc(n, sizeof *pager->lanes)))
        return SPW_EHOSTMEM;
    void *ring;
    int rc = create_events(pager);
    if (rc == 0 && pager->bounced)
        rc = spw__bounce_open(pager);
    if (rc < 0)
        return rc;
    rc = spw__dev_alloc(pager->device, n * pager->page_bytes, SPW__DEV_FRAME, &ring);
    if (rc < 0)
        return spw__error(rc, "no room for the ring of %u pages of %" PRIu64 " bytes: %s", n,
                          pager->page_bytes, spw_last_error());
    for (uint32_t i = 0; i < n; i++) {
        pager->lanes[i].frame = (char *)ring + i * pager->page_bytes;
        pager->lanes[i].page = SPW__NO_PAGE;
    }
    spw__lock_take(&pager->lock);
    pager->ring = ring;
    spw__lock_drop(&pager->lock);
    return 0;
}

/* All frames or none. */
static int add_all_slabs(spw_pager *pager)
{
    while (pager->n_frames < pager->n_pages) {
        if (spw__frames_add_slab(pager, pager->n_pages - pager->n_frames))
            continue;
        int rc = spw__error(SPW_ENOMEM,
                            "no room for %" PRIu64 " bytes of optimizer state with paging off: %s",
                            pager->n_pages * pager->page_bytes, spw_last_error());
        spw__frames_free_all(pager);
        return rc;
    }
    return 0;
}

static int fill_all_frames(spw_pager *pager)
{
    void *stream = pager->device->streams[SPW__DEV_GIVE];
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < pager->n_pages; i++) {
        spw__page *page = &pager->pages[i];
        spw__lock_take(&pager->lock);
        page->memory = spw__frames_take(pager, i);
        page->state = SPW__PAGE_RESIDENT;
        page->dirty = true;
        spw__lock_drop(&pager->lock);
        rc = spw__dev_zero(pager->device, page->memory, pager->page_bytes, stream);
    }
    return rc < 0 ? rc : spw__dev_stream_sync(pager->device, stream);
}

/* Frames that are not known to be filled are of no use to the call that comes again. */
static void drop_all_frames(spw_pager *pager)
{
    (void)spw__dev_stream_sync(pager->device, pager->device->streams[SPW__DEV_GIVE]);
    spw__lock_take(&pager->lock);
    for (uint64_t i = 0; i < pager->n_pages; i++)
        pager->pages[i] = (spw__page){.slab = SPW__NO_SLAB, .state = SPW__PAGE_ZERO};
    spw__lock_drop(&pager->lock);
    spw__frames_free_all(pager);
}

/* With "off" every page gets its frame, and keeps it. */
static int take_all_frames(spw_pager *pager)
{
    int rc = create_events(pager);
    if (rc < 0 || pager->n_resident == pager->n_pages)
        return rc;
    rc = add_all_slabs(pager);
    if (rc == 0) {
        rc = fill_all_frames(pager);
        if (rc < 0)
            drop_all_frames(pager);
    }
    return rc;
}

int spw__pager_prepare(spw_pager *pager)
{
    if (pager->failed)
        return spw__error(SPW_EFAILED, "the pager failed earlier: %s", pager->failure);
    if (pager->config.paging == SPW_PAGING_OFF)
        return take_all_frames(pager);
    if (pager->config.paging == SPW_PAGING_MAPPED || pager->config.paging == SPW_PAGING_UNIFIED)
        return create_events(pager);
    return pager->ring || !pager->n_pages ? 0 : take_ring(pager);
}

int spw_pager_stats_get(spw_pager *pager, spw_pager_stats *stats)
{
    if (!pager || !stats)
        return spw__error(SPW_EINVAL, "spw_pager_stats_get: pager and stats may not be NULL");
    spw__lock_take(&pager->lock);
    *stats = pager->stats;
    stats->page_bytes = pager->page_bytes;
    stats->n_pages = pager->n_pages;
    stats->state_bytes = pager->n_pages * pager->page_bytes;
    stats->ring_bytes = pager->ring ? pager->config.ring_frames * pager->page_bytes : 0;
    stats->budget_bytes = pager->budget_pages * pager->page_bytes;
    stats->resident_bytes = pager->n_resident * pager->page_bytes;
    stats->paging = pager->config.paging;
    stats->pinned_bytes = pager->pins ? spw__pins_bytes(pager) : pager->ring_pinned;
    stats->direct_io = pager->store && pager->store->direct_io;
    stats->host_bytes = pager->store && !pager->by_file ? stats->state_bytes : 0;
    spw__lock_drop(&pager->lock);
    return 0;
}
