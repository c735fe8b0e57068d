/*
 * Reading and writing a piece of a page from the host, between sweeps: for checkpoints and tests.
 * Nothing becomes resident by it. A page in a file passes through one page of host memory.
 */
#include "pager/pager.h"

#include "base/error.h"
#include "base/mem.h"

#include <string.h>

/* Makes a resident page ours, waiting while a reclaim saves it; NULL if it is not resident. */
static void *hold_frame(spw_pager *pager, spw__page *page)
{
    spw__lock_take(&pager->lock);
    while (page->state == SPW__PAGE_SAVING)
        spw__lock_wait(&pager->lock, &pager->changed);
    page->busy = page->state == SPW__PAGE_RESIDENT;
    void *memory = page->busy ? page->memory : NULL;
    spw__lock_drop(&pager->lock);
    return memory;
}

static void release_frame(spw_pager *pager, spw__page *page, bool wrote)
{
    spw__lock_take(&pager->lock);
    page->busy = false;
    page->dirty = page->dirty || wrote;
    pthread_cond_broadcast(&pager->changed);
    spw__lock_drop(&pager->lock);
}

static int bounce_in(spw_pager *pager, uint64_t number)
{
    if (!pager->bounce && !(pager->bounce = spw__map(pager->page_bytes)))
        return SPW_EHOSTMEM;
    if (pager->pages[number].state == SPW__PAGE_ZERO) {
        memset(pager->bounce, 0, (size_t)pager->page_bytes);
        return 0;
    }
    spw__store_io io;
    spw__store_start_read(pager->store, &io, number, pager->bounce);
    return spw__store_wait(pager->store, &io);
}

/* Host memory with the page's bytes, for a page that is not resident. */
static int host_view(spw_pager *pager, uint64_t number, char **view)
{
    if (pager->by_file) {
        int rc = bounce_in(pager, number);
        *view = pager->bounce;
        return rc;
    }
    *view = spw__pager_slot(pager, number);
    return 0;
}

/* What the last sweep queued on an async device is done. */
static int settle(spw_pager *pager)
{
    int rc = spw__dev_event_wait(pager->device, pager->used);
    return rc < 0 ? rc : spw__dev_event_wait(pager->device, pager->saved);
}

int spw__pager_read(spw_pager *pager, uint64_t number, uint64_t offset, void *host, uint64_t bytes)
{
    spw__page *page = &pager->pages[number];
    int rc = settle(pager);
    if (rc < 0)
        return rc;
    char *frame = hold_frame(pager, page);
    if (frame) {
        rc = spw__dev_copy_now(pager->device, host, frame + offset, bytes);
        release_frame(pager, page, false);
        return rc;
    }
    char *view;
    rc = host_view(pager, number, &view);
    if (rc == 0)
        memcpy(host, view + offset, (size_t)bytes);
    return rc;
}

int spw__pager_write(spw_pager *pager, uint64_t number, uint64_t offset, const void *host,
                     uint64_t bytes)
{
    spw__page *page = &pager->pages[number];
    int rc = settle(pager);
    if (rc < 0)
        return rc;
    char *frame = hold_frame(pager, page);
    if (frame) {
        rc = spw__dev_copy_now(pager->device, frame + offset, host, bytes);
        release_frame(pager, page, rc == 0);
        return rc;
    }
    char *view;
    rc = host_view(pager, number, &view);
    if (rc < 0)
        return rc;
    memcpy(view + offset, host, (size_t)bytes);
    if (pager->by_file) {
        spw__store_io io;
        spw__store_start_write(pager->store, &io, number, view);
        rc = spw__store_wait(pager->store, &io);
    }
    if (rc == 0) {
        spw__lock_take(&pager->lock);
        page->state = SPW__PAGE_STORED;
        spw__lock_drop(&pager->lock);
    }
    return rc;
}
