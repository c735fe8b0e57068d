/*
 * pager.h - pages of state between a store and the frames of a device.
 *
 * What it is: a page table, a ring of frames through which pages stream in a sweep, a resident set
 * that keeps frames between sweeps, a budget for it, and reclaim. What it is not: it does not know
 * what is in a page (opt does) and computes nothing. Called by opt (set_pages, sweep, read, write),
 * and by anybody's threads through spw_malloc, spw_pager_reclaim and spw_pager_reserve.
 *
 * Files: pager.c (life, statistics), sweep.c (one pass), frames.c (slabs), budget.c (who may stay),
 * pin.c (a ram store that a GPU reaches), bounce.c (through pinned memory to one that it does not),
 * reclaim.c (give back; spw_malloc), registry.c (all pagers of a GPU), access.c (read and write a
 * page or a piece), check.c (the validator).
 *
 * States of a page, and who moves it:
 *
 *             sweep: begin_load            sweep: end_load
 *   STORED ------------------> LOADING -------------------> RESIDENT (busy)
 *     ^                           ^                             |
 *     |                           | begin_load (zero fill,      | sweep: after the update, it stays
 *     |                         ZERO     nothing to read)       +------------> RESIDENT (dirty)
 *     |                                                         |                |       ^
 *     |   sweep: end_save                      begin_save       |                |       | hold /
 *     +--------------------- SAVING <---------------------------+                |       | release
 *     ^                        ^                                                 |       v
 *     |                        |  reclaim: claim, dirty                          |   RESIDENT
 * (busy) |                        +-------------------------------------------------+
 *     +------ reclaim: claim, clean (no transfer) -------------------------------+
 *   SAVING -> RESIDENT (dirty): a reclaim's save failed; the page stays, reclaim returns less.
 *   write() makes ZERO -> STORED. With paging "mapped" pages are ZERO or STORED and updated in the
 *   store; with "off" they are RESIDENT from the first sweep to the end.
 *
 * Invariants (check.c cites the numbers):
 *   1. A page has a frame if and only if it is LOADING, RESIDENT or SAVING.
 *   2. A frame of a slab holds at most one page, and that page says so.
 *   3. A page owns store slot number (its own number); the store has a slot for every page before
 *      any page may be dirty (not with "off", which has no store).
 *   4. Only RESIDENT pages are dirty or busy; busy pages are the sweep's (or access.c's) alone.
 *   5. n_resident counts the pages that have a frame of a slab; n_frames the slabs' frames.
 *   6. A slab that is leaving gets no new page.
 *   7. FAILED is entered only from a sweep and never left. (6 and 7 are about moments, which the
 *      validator does not see.)
 *
 * Async devices (CUDA). A sweep only queues its work: loads on the device's IN stream, updates on
 * the caller's, saves on OUT, with events between, and returns. A page's state then says what is
 * queued, not what is done: STORED may still be on its way out. Who needs it done waits: loads of
 * the next sweep and access.c for `saved`, reclaims and access.c for `used`. Pages that a sweep
 * works on stay busy until it has recorded `used`; a reclaim that finds nothing else waits for that
 * moment.
 *
 * Locks: `lock` guards the page table, slabs and counters. It is never held over a device or store
 * call or a wait for one (lock.h aborts debug builds that do). Whoever changes a page's state under
 * the lock to LOADING, SAVING or busy owns page and frame until it changes it back; `changed` is
 * broadcast then.
 */
#ifndef SPW_PAGER_PAGER_H
#define SPW_PAGER_PAGER_H

#include "base/lock.h"
#include "dev/dev.h"
#include "store/store.h"

#include <spillway/spillway.h>

#include <stdbool.h>

typedef enum spw__page_state {
    SPW__PAGE_ZERO,     /* never written: all zero bytes; nothing to load */
    SPW__PAGE_STORED,   /* in the store only */
    SPW__PAGE_LOADING,  /* on its way into a frame */
    SPW__PAGE_RESIDENT, /* in a frame */
    SPW__PAGE_SAVING,   /* on its way out of a frame */
} spw__page_state;

#define SPW__NO_SLAB UINT32_MAX

typedef struct spw__page {
    void *memory;  /* its frame, NULL if it has none */
    uint32_t slab; /* of the frame; SPW__NO_SLAB: a ring frame, or none */
    uint8_t state; /* spw__page_state */
    bool dirty;    /* the store has not these bytes */
    bool busy;     /* a sweep or an access works on it: not to be reclaimed */
} spw__page;

/* Frames taken from and given back to the device together. */
typedef struct spw__slab {
    char *memory;    /* n_frames * page_bytes; NULL: this entry is free */
    uint64_t *pages; /* [n_frames]: which page is in each, SPW__NO_PAGE if none */
    uint32_t n_frames;
    uint32_t n_used; /* frames with a page */
    bool leaving;    /* a reclaim has claimed it */
    bool stuck;      /* a page of it could not be saved: not to be tried again by this reclaim */
} spw__slab;

#define SPW__NO_PAGE UINT64_MAX

/* A place in the ring: its own frame, and the transfer that goes on in it or through it. */
typedef struct spw__lane {
    char *frame;   /* the ring's frame */
    uint64_t page; /* that it carries; SPW__NO_PAGE: idle */
    bool saving;   /* a save is under way */
    bool reading;  /* a store read is under way */
    spw__store_io io;
    void *loaded, *updated, *saved; /* events of an async device; else NULL */
    char *host;                     /* bounced: a page of host memory; else NULL */
    bool pinned;                    /* the device knows it */
    bool carrying;                  /* bounced: on its way out through `host` */
    bool writing;                   /* bounced: a store write is under way */
} spw__lane;

typedef struct spw__pins spw__pins;

struct spw_pager {
    spw_device *device;
    spw__store *store;       /* NULL with "off" and "unified" */
    char *managed;           /* with "unified": all pages; else NULL */
    spw_pager_config config; /* resolved; `store` is not kept */
    bool by_file;            /* the store is not addressable */

    spw__lock lock;
    pthread_cond_t changed; /* some page left LOADING, SAVING or busy */
    spw__page *pages;       /* [n_pages] */
    uint64_t n_pages;
    uint64_t page_bytes; /* 0 until set_pages */
    spw__slab *slabs;    /* [n_slabs], entries reused */
    uint32_t n_slabs;
    uint32_t slab_frames; /* frames in a full slab */
    uint64_t n_resident;  /* pages in slabs */
    uint64_t n_frames;    /* frames in slabs, used or not */

    spw__lane *lanes;    /* [ring_frames]; the sweep's thread only */
    char *ring;          /* one allocation for all ring frames */
    uint64_t *queue;     /* [n_pages]: pages to stream in this sweep; the sweep's thread only */
    uint64_t *residents; /* [n_pages]: pages updated in place, likewise */
    void *views;         /* [n_pages] spw__page_view, likewise */
    char *bounce;        /* one page of host memory for access.c; NULL until needed */

    void *used;           /* event: what the last sweep did to pages in frames is done */
    void *saved;          /* event: its saves are done */
    uint64_t bytes_given; /* to the device, ever; under the lock */
    uint32_t n_leaving;   /* slabs that are out of the table and not yet with the device */
    bool adding;          /* a slab is taken from the device and not yet in the table */
    bool sweeping;        /* a sweep is under way (async: being queued), under the lock */
    pthread_t sweeper;    /* by this thread */
    spw__pins *pins;      /* pin.c: the store's memory that the device knows; NULL: none */
    uint64_t ring_pinned; /* bounced: bytes of the lanes' host pages that it knows; by the lock */
    bool bounced;         /* the device does not reach the store: bounce.c carries */
    spw__pool *carriers;  /* bounced: threads that copy; the sweep's thread only */
    char *give_host;      /* bounced, by file: a page for reclaims */
    bool giving;          /* it is in use; under the lock */
    uint64_t reserved;    /* spw_pager_reserve's word, under the lock */
    uint64_t other_estimate; /* decayed peak of what others use, bytes */
    uint64_t budget_pages;   /* as of the last sweep */
    uint32_t reclaims_since_sweep;
    uint64_t reclaimed_since_sweep; /* bytes, on demand */
    uint64_t clean_target;          /* bytes to save ahead after a sweep; async devices */
    bool cleaned;                   /* the last sweep's end did; the sweep's thread only */
    int failed;                     /* the first error of a failed sweep, 0 if none */
    char failure[512];              /* its message */
    bool owned;                     /* an optimizer lives here */
    spw_pager_stats stats;          /* counters only; the rest is filled in on request */
    struct spw_pager *next_pager;   /* registry.c's list, under its lock */
    uint32_t n_reclaimers;          /* threads of spw_reclaim in here, likewise */
};

/* One page on the device, for the caller's arithmetic. */
typedef struct spw__page_view {
    uint64_t page;
    void *memory;
} spw__page_view;

typedef struct spw__sweep {
    const uint64_t *pages; /* to visit, ascending, each once */
    uint64_t n_pages;
    /* Updates some pages; queues its work on `stream`. Called many times, on the caller's thread;
     * every page of the sweep is in exactly one call. An error makes the pager FAILED. */
    int (*update)(void *context, const spw__page_view *views, uint64_t n, void *stream);
    void *context;
    void *stream;
} spw__sweep;

/* Says how many pages there are, once, before the first sweep. Grows the store.
 * SPW_EHOSTMEM, SPW_ENOSPC: nothing changed, may be called again. */
int spw__pager_set_pages(spw_pager *pager, uint64_t page_bytes, uint64_t n_pages);

/* Takes the ring (or, with "off", all frames). Called before a sweep has any effect, so that
 * running out of memory there changes nothing; SPW_ENOMEM may be called again. */
int spw__pager_prepare(spw_pager *pager);

/* One pass. After an error the pager is FAILED. */
int spw__pager_sweep(spw_pager *pager, const spw__sweep *sweep);

/* Copies a piece of a page to or from host memory. */
int spw__pager_read(spw_pager *pager, uint64_t page, uint64_t offset, void *host, uint64_t bytes);
int spw__pager_write(spw_pager *pager, uint64_t page, uint64_t offset, const void *host,
                     uint64_t bytes);

/* A whole page in host memory, to be read until the next call of this kind: the store's own memory
 * where it has the bytes, else one page that the pager keeps for this. */
int spw__pager_view(spw_pager *pager, uint64_t page, const char **bytes);

/* The other way: that one page, to be filled, then put in the place of a page. */
int spw__pager_open_page(spw_pager *pager, char **bytes);
int spw__pager_put_page(spw_pager *pager, uint64_t page);

/* --- between the pager's files --- */

/* Where a page rests: host memory, or managed. Not with a file store, nor with "off". */
static inline char *spw__pager_slot(const spw_pager *pager, uint64_t page)
{
    return pager->managed ? pager->managed + page * pager->page_bytes
                          : (char *)spw__store_slot(pager->store, page);
}

/* frames.c; lock held. A free frame of a slab, or NULL. */
void *spw__frames_take(spw_pager *pager, uint64_t page);
/* frames.c; lock not held. Adds a slab of up to `wanted` frames; false: the device has no room. */
bool spw__frames_add_slab(spw_pager *pager, uint64_t wanted);
/* frames.c; lock held. Takes the page out of its slab's frame. */
void spw__frames_leave(spw_pager *pager, spw__page *page);
/* frames.c; lock not held, nobody else uses the pager. */
void spw__frames_free_all(spw_pager *pager);

/* pin.c. Opens with the first chunk pinned, or all of them, or fails with none. Before a queued
 * copy from or to a page's slot: its chunk is pinned on return, if it may be; any thread, lock not
 * held. Bytes that are pinned by now: lock held. Close: nobody else uses the pager, and all copies
 * are done. */
int spw__pins_open(spw_pager *pager, void *memory, uint64_t bytes, bool all);
void spw__pins_close(spw_pager *pager);
void spw__pins_page(spw_pager *pager, uint64_t page);
uint64_t spw__pins_bytes(const spw_pager *pager);
void spw__pins_set_chunk(uint64_t bytes); /* tests: of pagers opened from now on */

/* bounce.c; the sweep's thread, but for give. Each of a lane's transfers in the order of these. */
int spw__bounce_open(spw_pager *pager); /* again after an error, too */
void spw__bounce_close(spw_pager *pager);
int spw__bounce_begin_load(spw_pager *pager, spw__lane *lane);
int spw__bounce_end_load(spw_pager *pager, spw__lane *lane);
int spw__bounce_begin_save(spw_pager *pager, spw__lane *lane, void *stream);
int spw__bounce_carry_on(spw_pager *pager, spw__lane *lane); /* once the device has other work */
int spw__bounce_end_save(spw_pager *pager, spw__lane *lane);
int spw__bounce_give(spw_pager *pager, uint64_t number); /* a reclaim's save to a file */

/* budget.c: learns from the device's use since the last sweep, then says how many pages may stay.
 */
uint64_t spw__budget_pages(spw_pager *pager);

/* reclaim.c: gives back slabs of at least `bytes` if it can; returns what was given. */
uint64_t spw__reclaim(spw_pager *pager, uint64_t bytes);

/* reclaim.c: the same on demand: more than asked for when asked often, and counted. Waits for
 * others who give, and for a sweep that holds all there is; returns what they gave if it gave
 * nothing. */
uint64_t spw__reclaim_on_demand(spw_pager *pager, uint64_t bytes);
uint64_t spw__reclaim_given(spw_pager *pager); /* ever, by all pagers of its device */

/* registry.c: who can be found by spw_reclaim. leave() waits until nobody uses the pager. */
void spw__registry_enter(spw_pager *pager);
void spw__registry_leave(spw_pager *pager);
/* Asks the other pagers of the pager's device. */
uint64_t spw__registry_reclaim(spw_pager *pager, uint64_t bytes);

/* check.c: aborts in SPW_CHECKS builds when an invariant is broken; lock held. */
void spw__pager_check(const spw_pager *pager);

#endif
