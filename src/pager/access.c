/*
 * Reading and writing a page, or a piece of one, from the host, between sweeps: for checkpoints and
 * tests. Nothing becomes resident by it. Where the store has a page's bytes they are read there and
 * not from the device. A page in a file passes through one page of host memory.
 */
#include "pager/pager.h"

#include "base/error.h"
#include "base/mem.h"

#include <string.h>

/* Makes a resident page ours, waiting while a reclaim saves it; NULL if it is not resident or, to
 * be read only, the store has it too. *zero: it was never written. */
static void *hold_frame(spw_pager *pager, spw__page *page, bool to_write, bool *zero)
{
    spw__lock_take(&pager->lock);
    while (page->state == SPW__PAGE_SAVING)
        spw__lock_wait(&pager->lock, &pager->changed);
    page->busy = page->state == SPW__PAGE_RESIDENT && (page->dirty || to_write);
    void *memory = page->busy ? page->memory : NULL;
    *zero = page->state == SPW__PAGE_ZERO;
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

static int take_bounce(spw_pager *pager)
{
    if (!pager->bounce && !(pager->bounce = spw__map(pager->page_bytes)))
        return SPW_EHOSTMEM;
    return 0;
}

static int bounce_in(spw_pager *pager, uint64_t number, bool zero)
{
    int rc = take_bounce(pager);
    if (rc < 0)
        return rc;
    if (zero) {
        memset(pager->bounce, 0, (size_t)pager->page_bytes);
        return 0;
    }
    spw__store_io io;
    spw__store_start_read(pager->store, &io, number, pager->bounce);
    return spw__store_wait(pager->store, &io);
}

/* Host memory with the page's bytes, for a page that the store has. */
static int host_view(spw_pager *pager, uint64_t number, bool zero, char **view)
{
    if (pager->by_file) {
        int rc = bounce_in(pager, number, zero);
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

/* One page, held for an access. */
typedef struct access {
    spw__page *page;
    char *frame; /* to be released; NULL: the store has the page, */
    bool zero;   /* or nobody yet: all its bytes are zero */
} access;

static int begin(spw_pager *pager, uint64_t number, bool replaces, access *a)
{
    int rc = settle(pager);
    if (rc < 0)
        return rc;
    a->page = &pager->pages[number];
    a->frame = hold_frame(pager, a->page, replaces, &a->zero);
    return 0;
}

int spw__pager_read(spw_pager *pager, uint64_t number, uint64_t offset, void *host, uint64_t bytes)
{
    access a;
    int rc = begin(pager, number, false, &a);
    if (rc < 0)
        return rc;
    if (a.frame) {
        rc = spw__dev_copy_now(pager->device, host, a.frame + offset, bytes);
        release_frame(pager, a.page, false);
        return rc;
    }
    char *view;
    rc = host_view(pager, number, a.zero, &view);
    if (rc == 0)
        memcpy(host, view + offset, (size_t)bytes);
    return rc;
}

/* The page's new bytes are in its slot, or where a file has it, in the bounce page. */
static int store_view(spw_pager *pager, uint64_t number)
{
    if (pager->by_file) {
        spw__store_io io;
        spw__store_start_write(pager->store, &io, number, pager->bounce);
        int rc = spw__store_wait(pager->store, &io);
        if (rc < 0)
            return rc;
    }
    spw__lock_take(&pager->lock);
    pager->pages[number].state = SPW__PAGE_STORED;
    spw__lock_drop(&pager->lock);
    return 0;
}

int spw__pager_write(spw_pager *pager, uint64_t number, uint64_t offset, const void *host,
                     uint64_t bytes)
{
    access a;
    int rc = begin(pager, number, true, &a);
    if (rc < 0)
        return rc;
    if (a.frame) {
        rc = spw__dev_copy_now(pager->device, a.frame + offset, host, bytes);
        release_frame(pager, a.page, rc == 0);
        return rc;
    }
    char *view;
    rc = host_view(pager, number, a.zero, &view);
    if (rc < 0)
        return rc;
    memcpy(view + offset, host, (size_t)bytes);
    return store_view(pager, number);
}

int spw__pager_view(spw_pager *pager, uint64_t number, const char **bytes)
{
    char *view = NULL;
    access a;
    int rc = begin(pager, number, false, &a);
    if (rc < 0)
        return rc;
    if (a.frame) {
        rc = take_bounce(pager);
        if (rc == 0)
            rc = spw__dev_copy_now(pager->device, pager->bounce, a.frame, pager->page_bytes);
        release_frame(pager, a.page, false);
        view = pager->bounce;
    } else {
        rc = host_view(pager, number, a.zero, &view);
    }
    *bytes = view;
    return rc;
}

int spw__pager_open_page(spw_pager *pager, char **bytes)
{
    int rc = take_bounce(pager);
    *bytes = pager->bounce;
    return rc;
}

int spw__pager_put_page(spw_pager *pager, uint64_t number)
{
    access a;
    int rc = begin(pager, number, true, &a);
    if (rc < 0)
        return rc;
    if (a.frame) {
        rc = spw__dev_copy_now(pager->device, a.frame, pager->bounce, pager->page_bytes);
        release_frame(pager, a.page, rc == 0);
        return rc;
    }
    if (!pager->by_file)
        memcpy(spw__pager_slot(pager, number), pager->bounce, (size_t)pager->page_bytes);
    return store_view(pager, number);
}
