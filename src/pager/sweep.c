/*
 * One pass over the pages of a step.
 *
 * Resident pages are updated where they are; the others stream through the ring's lanes: load,
 * update, save. While a lane reads from a file, residents are updated, so disk and arithmetic work
 * at once. A page that finds a free frame within the budget is loaded there and stays.
 *
 * The resident set is not fixed while a sweep runs: another thread may reclaim a page before we get
 * to it. hold() finds that out; the page then joins the queue of those that stream.
 */
#include "pager/pager.h"

#include "base/error.h"

#include <stdio.h>

typedef struct sweep_run {
    spw_pager *pager;
    const spw__sweep *sweep;
    uint64_t n_queue;     /* pages in pager->queue */
    uint64_t n_begun;     /* of them, loads begun */
    uint64_t n_updated;   /* of them, updated */
    uint64_t n_residents; /* pages in pager->residents */
    uint64_t n_held;      /* of them, passed */
    uint64_t batch;       /* residents updated between two streamed pages */
    uint32_t lookahead;   /* loads begun ahead of the update */
} sweep_run;

static spw__lane *lane_of(const sweep_run *run, uint64_t index)
{
    return &run->pager->lanes[index % run->pager->config.ring_frames];
}

/* ------------------------------------------------------------------------------ residents -- */

/* Waits while a reclaim saves the page, then takes it if it is still resident. */
static bool hold(spw_pager *pager, uint64_t number)
{
    spw__page *page = &pager->pages[number];
    spw__lock_take(&pager->lock);
    while (page->state == SPW__PAGE_SAVING || page->busy)
        spw__lock_wait(&pager->lock, &pager->changed);
    bool resident = page->state == SPW__PAGE_RESIDENT;
    page->busy = resident;
    spw__lock_drop(&pager->lock);
    return resident;
}

/* What an async device has only queued stays busy until finish() has recorded its end. */
static void release(spw_pager *pager, uint64_t number)
{
    spw__page *page = &pager->pages[number];
    if (pager->device->async)
        return;
    spw__lock_take(&pager->lock);
    page->busy = false;
    page->dirty = true;
    pthread_cond_broadcast(&pager->changed);
    spw__lock_drop(&pager->lock);
}

static int update_residents(sweep_run *run, uint64_t n)
{
    spw_pager *pager = run->pager;
    spw__page_view *views = pager->views;
    uint64_t n_views = 0;
    for (; n && run->n_held < run->n_residents; n--) {
        uint64_t number = pager->residents[run->n_held++];
        if (hold(pager, number))
            views[n_views++] = (spw__page_view){number, pager->pages[number].memory};
        else
            pager->queue[run->n_queue++] = number;
    }
    if (!n_views)
        return 0;
    int rc = run->sweep->update(run->sweep->context, views, n_views, run->sweep->stream);
    for (uint64_t i = 0; i < n_views; i++)
        release(pager, views[i].page);
    return rc;
}

/* ------------------------------------------------------------------------------ streaming -- */

/* Lock held. */
static bool sit(spw_pager *pager, uint64_t number, void *memory)
{
    if (!memory)
        return false;
    pager->pages[number].memory = memory;
    pager->pages[number].state = SPW__PAGE_LOADING;
    return true;
}

/* A frame for the page: one of a slab if the budget allows it to stay, else the lane's. */
static void place(spw_pager *pager, uint64_t number, char *lane_frame)
{
    spw__lock_take(&pager->lock);
    bool may_stay = pager->n_resident < pager->budget_pages;
    uint64_t wanted = may_stay ? pager->budget_pages - pager->n_resident : 0;
    bool placed = may_stay && sit(pager, number, spw__frames_take(pager, number));
    spw__lock_drop(&pager->lock);
    if (placed)
        return;
    bool grown = may_stay && spw__frames_add_slab(pager, wanted);
    spw__lock_take(&pager->lock);
    if (!grown || !sit(pager, number, spw__frames_take(pager, number)))
        (void)sit(pager, number, lane_frame);
    spw__lock_drop(&pager->lock);
}

static void count(spw_pager *pager, uint64_t in, uint64_t out)
{
    spw__lock_take(&pager->lock);
    pager->stats.bytes_in += in;
    pager->stats.bytes_out += out;
    spw__lock_drop(&pager->lock);
}

static void set_state(spw_pager *pager, uint64_t number, spw__page_state state, bool dirty)
{
    spw__page *page = &pager->pages[number];
    spw__lock_take(&pager->lock);
    page->state = (uint8_t)state;
    page->dirty = dirty;
    page->busy = false;
    if (state == SPW__PAGE_STORED)
        page->memory = NULL;
    pthread_cond_broadcast(&pager->changed);
    spw__lock_drop(&pager->lock);
}

/* The lane's frame is free for its next page, or will be when the IN stream comes to it. */
static int end_save(spw_pager *pager, spw__lane *lane)
{
    if (!lane->saving)
        return 0;
    lane->saving = false;
    if (pager->device->async && !pager->bounced)
        return spw__dev_stream_wait(pager->device, pager->device->streams[SPW__DEV_IN],
                                    lane->saved);
    int rc = 0;
    if (pager->bounced)
        rc = spw__bounce_end_save(pager, lane);
    else if (pager->by_file)
        rc = spw__store_wait(pager->store, &lane->io);
    if (rc == 0)
        set_state(pager, lane->page, SPW__PAGE_STORED, false);
    return rc;
}

static int fill(spw_pager *pager, spw__lane *lane, bool was_zero)
{
    void *memory = pager->pages[lane->page].memory;
    void *in = pager->device->streams[SPW__DEV_IN];
    if (was_zero)
        return spw__dev_zero(pager->device, memory, pager->page_bytes, in);
    count(pager, pager->page_bytes, 0);
    if (pager->bounced)
        return spw__bounce_begin_load(pager, lane);
    if (pager->by_file) {
        spw__store_start_read(pager->store, &lane->io, lane->page, memory);
        lane->reading = true;
        return 0;
    }
    spw__pins_page(pager, lane->page);
    return spw__dev_copy(pager->device, memory, spw__store_slot(pager->store, lane->page),
                         pager->page_bytes, in);
}

static int begin_load(sweep_run *run)
{
    spw_pager *pager = run->pager;
    spw__lane *lane = lane_of(run, run->n_begun);
    int rc = end_save(pager, lane);
    if (rc < 0)
        return rc;
    uint64_t number = pager->queue[run->n_begun++];
    lane->page = number;
    bool was_zero = pager->pages[number].state == SPW__PAGE_ZERO;
    place(pager, number, lane->frame);
    rc = fill(pager, lane, was_zero);
    if (rc < 0 || lane->reading)
        return rc;
    return spw__dev_event_record(pager->device, lane->loaded, pager->device->streams[SPW__DEV_IN]);
}

static int end_load(const sweep_run *run, spw__lane *lane)
{
    spw_pager *pager = run->pager;
    int rc = pager->bounced ? spw__bounce_end_load(pager, lane) : 0;
    if (rc == 0)
        rc = spw__dev_stream_wait(pager->device, run->sweep->stream, lane->loaded);
    if (rc == 0 && lane->reading) {
        lane->reading = false;
        rc = spw__store_wait(pager->store, &lane->io);
    }
    if (rc < 0)
        return rc;
    spw__page *page = &pager->pages[lane->page];
    spw__lock_take(&pager->lock);
    page->state = SPW__PAGE_RESIDENT;
    page->busy = true;
    spw__lock_drop(&pager->lock);
    return 0;
}

/* On an async device: behind the update, on the OUT stream. The page is STORED from then on, for
 * all who wait for `saved` before they look. */
static int queue_save(const sweep_run *run, spw__lane *lane)
{
    spw_pager *pager = run->pager;
    spw_device *device = pager->device;
    void *out = device->streams[SPW__DEV_OUT];
    spw__pins_page(pager, lane->page);
    int rc = spw__dev_event_record(device, lane->updated, run->sweep->stream);
    if (rc == 0)
        rc = spw__dev_stream_wait(device, out, lane->updated);
    if (rc == 0)
        rc = spw__dev_copy(device, spw__store_slot(pager->store, lane->page),
                           pager->pages[lane->page].memory, pager->page_bytes, out);
    if (rc == 0)
        rc = spw__dev_event_record(device, lane->saved, out);
    if (rc == 0)
        set_state(pager, lane->page, SPW__PAGE_STORED, false);
    return rc;
}

static int begin_save(const sweep_run *run, spw__lane *lane)
{
    spw_pager *pager = run->pager;
    spw__page *page = &pager->pages[lane->page];
    if (page->slab != SPW__NO_SLAB) {
        if (!pager->device->async)
            set_state(pager, lane->page, SPW__PAGE_RESIDENT, true);
        return 0;
    }
    set_state(pager, lane->page, SPW__PAGE_SAVING, false);
    lane->saving = true;
    count(pager, 0, pager->page_bytes);
    if (pager->bounced)
        return spw__bounce_begin_save(pager, lane, run->sweep->stream);
    if (pager->device->async)
        return queue_save(run, lane);
    if (!pager->by_file)
        return spw__dev_copy(pager->device, spw__store_slot(pager->store, lane->page), page->memory,
                             pager->page_bytes, NULL);
    spw__store_start_write(pager->store, &lane->io, lane->page, page->memory);
    return 0;
}

static int update_streamed(sweep_run *run)
{
    spw_pager *pager = run->pager;
    spw__lane *lane = lane_of(run, run->n_updated++);
    int rc = end_load(run, lane);
    if (rc < 0)
        return rc;
    spw__page_view view = {lane->page, pager->pages[lane->page].memory};
    rc = run->sweep->update(run->sweep->context, &view, 1, run->sweep->stream);
    if (rc == 0)
        rc = begin_save(run, lane);
    if (rc == 0 && pager->bounced && run->n_updated > 1)
        rc = spw__bounce_carry_on(pager, lane_of(run, run->n_updated - 2));
    return rc;
}

/* -------------------------------------------------------------------------------- one pass -- */

/* Who is resident now; the rest queue up. */
static void sort_pages(sweep_run *run)
{
    spw_pager *pager = run->pager;
    spw__lock_take(&pager->lock);
    spw__pager_check(pager);
    for (uint64_t i = 0; i < run->sweep->n_pages; i++) {
        uint64_t number = run->sweep->pages[i];
        uint8_t state = pager->pages[number].state;
        if (state == SPW__PAGE_ZERO || state == SPW__PAGE_STORED)
            pager->queue[run->n_queue++] = number;
        else
            pager->residents[run->n_residents++] = number;
    }
    spw__lock_drop(&pager->lock);
    run->batch =
        run->n_queue ? (run->n_residents + run->n_queue - 1) / run->n_queue : run->n_residents;
}

static int stream(sweep_run *run)
{
    for (;;) {
        int rc = 0;
        while (rc == 0 && run->n_begun < run->n_queue &&
               run->n_begun - run->n_updated < run->lookahead)
            rc = begin_load(run);
        if (rc == 0)
            rc = update_residents(run, run->batch);
        if (rc == 0 && run->n_updated < run->n_begun)
            rc = update_streamed(run);
        if (rc < 0)
            return rc;
        if (run->n_held == run->n_residents && run->n_updated == run->n_queue)
            return 0;
    }
}

/* Every transfer must be over before the sweep returns, also after an error. */
static int drain(spw_pager *pager)
{
    int first = 0;
    for (uint32_t i = 0; i < pager->config.ring_frames; i++) {
        spw__lane *lane = &pager->lanes[i];
        if (lane->reading)
            (void)spw__store_wait(pager->store, &lane->io);
        lane->reading = false;
        int rc = end_save(pager, lane);
        first = first < 0 ? first : rc;
        lane->page = SPW__NO_PAGE;
    }
    return first;
}

/* Whatever it was (a full disk, no memory for a launch): in the middle of a sweep it is not an
 * error after which nothing has changed, so it gets the code of those that are not. */
static int fail(spw_pager *pager)
{
    int rc = SPW_EIO;
    (void)snprintf(pager->failure, sizeof pager->failure, "%s", spw_last_error());
    spw__lock_take(&pager->lock);
    pager->failed = rc;
    spw__lock_drop(&pager->lock);
    return spw__error(rc, "%s", pager->failure);
}

/* Lock held. Picks busy pages of whole slabs, enough for what recent reclaims took, into the queue;
 * they count as clean from now on. Half of it is forgotten with every step. */
static uint64_t pick_to_clean(spw_pager *pager)
{
    uint64_t half = pager->clean_target / 2, taken = pager->reclaimed_since_sweep, n = 0;
    pager->clean_target = taken > half ? taken : half;
    pager->reclaimed_since_sweep = 0;
    if (pager->bounced)
        return 0;
    for (uint32_t i = 0; i < pager->n_slabs && n * pager->page_bytes < pager->clean_target; i++) {
        const spw__slab *slab = &pager->slabs[i];
        for (uint32_t j = 0; slab->memory && j < slab->n_frames; j++) {
            if (slab->pages[j] == SPW__NO_PAGE || !pager->pages[slab->pages[j]].busy)
                continue;
            pager->queue[n++] = slab->pages[j];
            pager->pages[slab->pages[j]].dirty = false;
        }
    }
    return n;
}

/* The link is idle between steps: the pages that the next reclaim takes first are saved ahead, and
 * need no transfer then. They are busy until finish() is done. */
static int clean_ahead(spw_pager *pager)
{
    spw_device *device = pager->device;
    void *out = device->streams[SPW__DEV_OUT];
    spw__lock_take(&pager->lock);
    uint64_t n = pick_to_clean(pager);
    pager->stats.bytes_cleaned += n * pager->page_bytes;
    spw__lock_drop(&pager->lock);
    pager->cleaned = n > 0;
    int rc = n ? spw__dev_stream_wait(device, out, pager->used) : 0;
    for (uint64_t i = 0; rc == 0 && i < n; i++) {
        spw__pins_page(pager, pager->queue[i]);
        rc = spw__dev_copy(device, spw__store_slot(pager->store, pager->queue[i]),
                           pager->pages[pager->queue[i]].memory, pager->page_bytes, out);
    }
    return rc; /* an error makes the pager FAILED: what is clean does not matter then */
}

static void end_sweeping(spw_pager *pager)
{
    spw__lock_take(&pager->lock);
    pager->sweeping = false;
    pthread_cond_broadcast(&pager->changed);
    spw__lock_drop(&pager->lock);
}

/* Async devices: from here on others may wait for what was queued, and reclaim what it works on. */
static int finish_queued(spw_pager *pager, const spw__sweep *sweep)
{
    spw_device *device = pager->device;
    int rc = spw__dev_event_record(device, pager->used, sweep->stream);
    spw__lock_take(&pager->lock);
    for (uint64_t i = 0; i < sweep->n_pages; i++)
        if (pager->pages[sweep->pages[i]].busy)
            pager->pages[sweep->pages[i]].dirty = true;
    spw__lock_drop(&pager->lock);
    int cleaned = clean_ahead(pager);
    int saved = spw__dev_event_record(device, pager->saved, device->streams[SPW__DEV_OUT]);
    spw__lock_take(&pager->lock);
    for (uint64_t i = 0; i < sweep->n_pages; i++)
        pager->pages[sweep->pages[i]].busy = false;
    spw__lock_drop(&pager->lock);
    return rc < 0 ? rc : cleaned < 0 ? cleaned : saved;
}

static int finish(spw_pager *pager, const spw__sweep *sweep)
{
    int rc = pager->device->async ? finish_queued(pager, sweep) : 0;
    end_sweeping(pager);
    return rc;
}

static int begin(spw_pager *pager, const spw__sweep *sweep)
{
    spw_device *device = pager->device;
    spw__lock_take(&pager->lock);
    pager->sweeping = true;
    pager->sweeper = pthread_self();
    spw__lock_drop(&pager->lock);
    /* The last sweep may have been on another stream of the caller's. */
    int rc = spw__dev_stream_wait(device, sweep->stream, pager->used);
    if (rc == 0 && pager->cleaned) /* its copies read frames that this sweep writes */
        rc = spw__dev_stream_wait(device, sweep->stream, pager->saved);
    if (rc < 0)
        return rc;
    return spw__dev_stream_wait(device, device->streams[SPW__DEV_IN], pager->saved);
}

/* With managed memory: the driver moves page after page in, ahead of its update, and out again when
 * it must. */
static int update_prefetched(spw_pager *pager, const spw__sweep *sweep)
{
    spw_device *device = pager->device;
    void *in = device->streams[SPW__DEV_IN];
    const spw__page_view *views = pager->views;
    int rc = spw__dev_stream_wait(device, in, pager->used);
    for (uint64_t i = 0; rc == 0 && i < sweep->n_pages; i++) {
        rc = spw__dev_prefetch(device, views[i].memory, pager->page_bytes, in);
        if (rc == 0)
            rc = spw__dev_event_record(device, pager->saved, in);
        if (rc == 0)
            rc = spw__dev_stream_wait(device, sweep->stream, pager->saved);
        if (rc == 0)
            rc = sweep->update(sweep->context, &views[i], 1, sweep->stream);
    }
    return rc;
}

static int sweep_in_place(spw_pager *pager, const spw__sweep *sweep)
{
    spw__page_view *views = pager->views;
    for (uint64_t i = 0; i < sweep->n_pages; i++) {
        uint64_t number = sweep->pages[i];
        spw__page *page = &pager->pages[number];
        bool off = pager->config.paging == SPW_PAGING_OFF;
        spw__lock_take(&pager->lock);
        page->state = off ? page->state : (uint8_t)SPW__PAGE_STORED;
        spw__lock_drop(&pager->lock);
        views[i] = (spw__page_view){number, off ? page->memory : spw__pager_slot(pager, number)};
    }
    int rc = spw__dev_stream_wait(pager->device, sweep->stream, pager->used);
    if (rc < 0)
        return rc;
    rc = pager->managed ? update_prefetched(pager, sweep)
                        : sweep->update(sweep->context, views, sweep->n_pages, sweep->stream);
    return rc < 0 ? rc : spw__dev_event_record(pager->device, pager->used, sweep->stream);
}

static int sweep_by_copy(spw_pager *pager, const spw__sweep *sweep)
{
    sweep_run run = {.pager = pager, .sweep = sweep};
    run.lookahead = (pager->config.ring_frames + 1) / 2;
    uint64_t budget = spw__budget_pages(pager);
    spw__lock_take(&pager->lock);
    pager->budget_pages = budget;
    spw__lock_drop(&pager->lock);
    int rc = begin(pager, sweep);
    sort_pages(&run);
    if (rc == 0)
        rc = stream(&run);
    int drained = drain(pager);
    int finished = finish(pager, sweep);
    return rc < 0 ? rc : drained < 0 ? drained : finished;
}

/* The budget shrank: what is over it goes back now, not in the middle of the next forward pass. */
static void shrink_to_budget(spw_pager *pager)
{
    spw__lock_take(&pager->lock);
    uint64_t over =
        pager->n_resident > pager->budget_pages ? pager->n_resident - pager->budget_pages : 0;
    spw__lock_drop(&pager->lock);
    if (over)
        (void)spw__reclaim(pager, over * pager->page_bytes);
}

int spw__pager_sweep(spw_pager *pager, const spw__sweep *sweep)
{
    int rc = spw__pager_prepare(pager);
    if (rc < 0 || !sweep->n_pages)
        return rc;
    bool copy = pager->config.paging == SPW_PAGING_COPY;
    rc = copy ? sweep_by_copy(pager, sweep) : sweep_in_place(pager, sweep);
    if (rc < 0)
        return fail(pager);
    if (copy)
        shrink_to_budget(pager);
    spw__dev_reset_other_peak(pager->device);
    spw__lock_take(&pager->lock);
    spw__pager_check(pager);
    pager->stats.steps++;
    pager->reclaims_since_sweep = 0;
    if (!copy)
        pager->budget_pages = pager->config.paging == SPW_PAGING_OFF ? pager->n_pages : 0;
    spw__lock_drop(&pager->lock);
    return 0;
}
