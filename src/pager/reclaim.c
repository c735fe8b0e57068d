/*
 * Giving frames back to the device, on demand and from any thread.
 *
 * A slab is claimed under the lock (its pages become STORED if clean, SAVING if dirty), then its
 * dirty pages are saved and its memory freed without the lock. Slabs without dirty pages go first,
 * then those at low addresses: the arena widens the one gap that ordinary memory grows into.
 */
#include "pager/pager.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdlib.h>

enum {
    SAVES_AT_ONCE = 8,   /* requests of one reclaim in a file store's queue */
    MOST_SLABS_EAGER = 8 /* of the doubling below */
};

/* Lock held. A slab can leave when nobody works on its pages. */
static bool can_leave(const spw_pager *pager, const spw__slab *slab)
{
    if (!slab->memory || slab->leaving || slab->stuck)
        return false;
    for (uint32_t i = 0; i < slab->n_frames; i++) {
        if (slab->pages[i] == SPW__NO_PAGE)
            continue;
        const spw__page *page = &pager->pages[slab->pages[i]];
        if (page->state != SPW__PAGE_RESIDENT || page->busy)
            return false;
    }
    return true;
}

/* Lock held. */
static bool has_dirty(const spw_pager *pager, const spw__slab *slab)
{
    for (uint32_t i = 0; i < slab->n_frames; i++)
        if (slab->pages[i] != SPW__NO_PAGE && pager->pages[slab->pages[i]].dirty)
            return true;
    return false;
}

/* Lock held. The slab to give back next, or NULL. */
static spw__slab *choose(spw_pager *pager)
{
    spw__slab *best = NULL;
    bool best_dirty = false;
    for (uint32_t i = 0; i < pager->n_slabs; i++) {
        spw__slab *slab = &pager->slabs[i];
        if (!can_leave(pager, slab))
            continue;
        bool dirty = has_dirty(pager, slab);
        bool better =
            !best || (best_dirty && !dirty) || (best_dirty == dirty && slab->memory < best->memory);
        if (better) {
            best = slab;
            best_dirty = dirty;
        }
    }
    return best;
}

/* Lock held. Clean pages go at once; dirty ones are ours to save. */
static void claim(spw_pager *pager, spw__slab *slab)
{
    slab->leaving = true;
    for (uint32_t i = 0; i < slab->n_frames; i++) {
        if (slab->pages[i] == SPW__NO_PAGE)
            continue;
        spw__page *page = &pager->pages[slab->pages[i]];
        page->state = page->dirty ? SPW__PAGE_SAVING : SPW__PAGE_STORED;
        if (page->dirty)
            page->dirty = false;
        else
            spw__frames_leave(pager, page);
    }
}

/* Lock not held; the page is SAVING and ours. On an async device the copy is only queued. */
static int save_in_ram(spw_pager *pager, uint64_t number)
{
    spw__pins_page(pager, number);
    return spw__dev_copy(pager->device, spw__store_slot(pager->store, number),
                         pager->pages[number].memory, pager->page_bytes,
                         pager->device->streams[SPW__DEV_GIVE]);
}

/* Lock not held. Ends a save: the page is stored, or stays resident and dirty. */
static void end_save(spw_pager *pager, uint64_t number, int rc)
{
    spw__page *page = &pager->pages[number];
    spw__lock_take(&pager->lock);
    if (rc < 0) {
        page->state = SPW__PAGE_RESIDENT;
        page->dirty = true;
    } else {
        page->state = SPW__PAGE_STORED;
        spw__frames_leave(pager, page);
        pager->stats.bytes_out += pager->page_bytes;
    }
    pthread_cond_broadcast(&pager->changed);
    spw__lock_drop(&pager->lock);
}

static void save_to_file(spw_pager *pager, const uint64_t *numbers, uint32_t n)
{
    spw__store_io ios[SAVES_AT_ONCE];
    for (uint32_t i = 0; i < n; i++)
        spw__store_start_write(pager->store, &ios[i], numbers[i], pager->pages[numbers[i]].memory);
    for (uint32_t i = 0; i < n; i++)
        end_save(pager, numbers[i], spw__store_wait(pager->store, &ios[i]));
}

/* Lock not held. All saves of a slab are queued behind the last sweep, then waited for at once; the
 * slab's frames are then free of all work, also when there was nothing to save. */
static void save_slab_queued(spw_pager *pager, spw__slab *slab)
{
    spw_device *device = pager->device;
    void *give = device->streams[SPW__DEV_GIVE];
    int rc = spw__dev_stream_wait(device, give, pager->used);
    if (rc == 0)
        rc = spw__dev_stream_wait(device, give, pager->saved); /* pages that were saved ahead */
    for (uint32_t i = 0; rc == 0 && i < slab->n_frames; i++)
        if (slab->pages[i] != SPW__NO_PAGE)
            rc = pager->by_file ? spw__bounce_give(pager, slab->pages[i])
                                : save_in_ram(pager, slab->pages[i]);
    int synced = spw__dev_stream_sync(device, give);
    rc = rc < 0 ? rc : synced;
    if (rc <
        0) { /* the slab may go all the same, if it has no dirty page: not under running work */
        (void)spw__dev_event_wait(device, pager->used);
        (void)spw__dev_event_wait(device, pager->saved);
    }
    for (uint32_t i = 0; i < slab->n_frames; i++)
        if (slab->pages[i] != SPW__NO_PAGE)
            end_save(pager, slab->pages[i], rc);
}

/* Lock not held. Saves what is dirty in a claimed slab. Its table of pages changes only by us. */
static void save_slab(spw_pager *pager, spw__slab *slab)
{
    if (pager->device->async) {
        save_slab_queued(pager, slab);
        return;
    }
    uint64_t batch[SAVES_AT_ONCE];
    uint32_t n = 0;
    for (uint32_t i = 0; i < slab->n_frames; i++) {
        uint64_t number = slab->pages[i];
        if (number == SPW__NO_PAGE)
            continue;
        if (!pager->by_file) {
            end_save(pager, number, save_in_ram(pager, number));
            continue;
        }
        batch[n++] = number;
        if (n == SAVES_AT_ONCE) {
            save_to_file(pager, batch, n);
            n = 0;
        }
    }
    save_to_file(pager, batch, n);
}

/* Lock held on entry and exit, dropped between. Returns the bytes given back; 0: a page could not
 * be saved, and the slab stays. */
static uint64_t give_back(spw_pager *pager, spw__slab *slab)
{
    claim(pager, slab);
    spw__lock_drop(&pager->lock);
    save_slab(pager, slab);
    spw__lock_take(&pager->lock);
    slab->leaving = false;
    slab->stuck = slab->n_used > 0;
    pthread_cond_broadcast(&pager->changed);
    if (slab->stuck)
        return 0;
    spw__slab gone = *slab;
    *slab = (spw__slab){.memory = NULL};
    pager->n_frames -= gone.n_frames;
    pager->n_leaving++;
    spw__lock_drop(&pager->lock);
    free(gone.pages);
    spw__dev_free(pager->device, gone.memory);
    spw__lock_take(&pager->lock);
    pager->n_leaving--;
    pager->bytes_given += gone.n_frames * pager->page_bytes;
    (void)__atomic_add_fetch(&pager->device->given, gone.n_frames * pager->page_bytes,
                             __ATOMIC_ACQ_REL);
    pthread_cond_broadcast(&pager->changed);
    return gone.n_frames * pager->page_bytes;
}

/* Lock held. A sweep holds pages while it works on them, and a slab before it is in the table; they
 * can be had when it passes on. Its own thread cannot wait for that. */
static bool sweep_by_another(const spw_pager *pager)
{
    return pager->sweeping && (pager->n_resident || pager->adding) &&
           !pthread_equal(pager->sweeper, pthread_self());
}

/* Lock held. Somebody else is giving a slab back right now. */
static bool others_give(const spw_pager *pager)
{
    bool leaving = pager->n_leaving > 0;
    for (uint32_t i = 0; i < pager->n_slabs && !leaving; i++)
        leaving = pager->slabs[i].memory && pager->slabs[i].leaving;
    return leaving;
}

/* Lock held. */
static void unstick(spw_pager *pager)
{
    for (uint32_t i = 0; i < pager->n_slabs; i++)
        pager->slabs[i].stuck = false;
}

uint64_t spw__reclaim(spw_pager *pager, uint64_t bytes)
{
    uint64_t freed = 0;
    if (pager->config.paging != SPW_PAGING_COPY)
        return 0;
    spw__lock_take(&pager->lock);
    uint64_t given_before = pager->bytes_given;
    while (freed < bytes) {
        spw__pager_check(pager);
        spw__slab *slab = choose(pager);
        if (slab)
            freed += give_back(pager, slab);
        else if (!freed && pager->bytes_given == given_before &&
                 (others_give(pager) || sweep_by_another(pager)))
            spw__lock_wait(&pager->lock, &pager->changed);
        else
            break;
    }
    unstick(pager);
    spw__lock_drop(&pager->lock);
    return freed;
}

/* What is asked for, and more when asked again and again in one step: one slab, two, four. */
static uint64_t eager(spw_pager *pager, uint64_t bytes)
{
    spw__lock_take(&pager->lock);
    uint32_t times = pager->reclaims_since_sweep++;
    uint64_t slabs = times < 3 ? UINT64_C(1) << times : MOST_SLABS_EAGER;
    uint64_t least = slabs * pager->slab_frames * pager->page_bytes;
    spw__lock_drop(&pager->lock);
    return bytes > least ? bytes : least;
}

/* What was taken on demand is not for this sweep to take again: the budget falls with it. */
uint64_t spw__reclaim_on_demand(spw_pager *pager, uint64_t bytes)
{
    uint64_t least = eager(pager, bytes);
    spw__lock_take(&pager->lock);
    uint64_t before = pager->bytes_given;
    spw__lock_drop(&pager->lock);
    uint64_t freed = spw__reclaim(pager, least);
    spw__lock_take(&pager->lock);
    if (freed) {
        pager->stats.reclaims++;
        pager->stats.bytes_reclaimed += freed;
        pager->reclaimed_since_sweep += freed;
        if (pager->n_resident < pager->budget_pages)
            pager->budget_pages = pager->n_resident;
    }
    uint64_t given = pager->bytes_given - before;
    spw__lock_drop(&pager->lock);
    return freed ? freed : given; /* what others gave meanwhile is worth a try, too */
}

uint64_t spw__reclaim_given(spw_pager *pager)
{
    return __atomic_load_n(&pager->device->given, __ATOMIC_ACQUIRE);
}

int spw_pager_reclaim(spw_pager *pager, uint64_t bytes, uint64_t *freed)
{
    if (!pager)
        return spw__error(SPW_EINVAL, "spw_pager_reclaim: pager is NULL");
    uint64_t given = bytes ? spw__reclaim_on_demand(pager, bytes) : 0;
    if (freed)
        *freed = given;
    return 0;
}

int spw_pager_reserve(spw_pager *pager, uint64_t bytes)
{
    if (!pager)
        return spw__error(SPW_EINVAL, "spw_pager_reserve: pager is NULL");
    spw__dev_usage usage;
    spw__dev_usage_get(pager->device, &usage);
    spw__lock_take(&pager->lock);
    pager->reserved = bytes;
    spw__lock_drop(&pager->lock);
    uint64_t unused = usage.capacity - usage.in_use;
    if (bytes > unused)
        (void)spw__reclaim_on_demand(pager, bytes - unused);
    return 0;
}

/* How much has to be given for an allocation that failed: what the widest gap lacks. 0: it can
 * never fit, and no state is asked for it. */
static uint64_t lacking(spw_pager *pager, uint64_t bytes)
{
    spw__dev_usage usage;
    spw__dev_usage_get(pager->device, &usage);
    if (bytes > usage.capacity)
        return 0;
    return bytes > usage.widest ? bytes - usage.widest : 1;
}

int spw_malloc(spw_pager *pager, uint64_t bytes, void **pointer)
{
    if (!pager || !pointer)
        return spw__error(SPW_EINVAL, "spw_malloc: pager and pointer may not be NULL");
    for (;;) {
        uint64_t before = spw__reclaim_given(pager);
        int rc = spw__dev_alloc(pager->device, bytes, SPW__DEV_MEMORY, pointer);
        uint64_t least = rc == SPW_ENOMEM ? lacking(pager, bytes) : 0;
        if (!least)
            return rc;
        if (spw__reclaim_on_demand(pager, least) || spw__registry_reclaim(pager, least))
            continue;
        /* What somebody gave between the failure and our asking is worth a try, too. */
        if (spw__reclaim_given(pager) == before)
            return rc;
    }
}

void spw_free(spw_pager *pager, void *pointer)
{
    if (pager)
        spw__dev_free(pager->device, pointer);
}
