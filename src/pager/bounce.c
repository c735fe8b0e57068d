/*
 * The way of a page between a frame and a store that the device cannot reach: pageable RAM where
 * pinning is refused or capped, or a file under a GPU.
 *
 * Each lane of the ring has a page of pinned memory. In: the host copies (or the store reads) into
 * it, then the device copies. Out: the device copies into it behind the update, and one page later,
 * when that is done and the device has other work, the host carries it on. So the host waits in a
 * sweep, and the sweep is over when it returns.
 */
#include "pager/pager.h"

#include "base/error.h"
#include "base/mem.h"

#include <string.h>

enum { CHUNK = 256 << 10, MOST_THREADS = 8 };

typedef struct carrying {
    char *dst;
    const char *src;
    uint64_t bytes;
} carrying;

static void carry_chunk(void *context, size_t index)
{
    const carrying *c = context;
    uint64_t at = (uint64_t)index * CHUNK, left = c->bytes - at;
    memcpy(c->dst + at, c->src + at, (size_t)(left < CHUNK ? left : CHUNK));
}

static void carry(spw_pager *pager, char *dst, const char *src)
{
    carrying c = {dst, src, pager->page_bytes};
    spw__pool_run(pager->carriers, (size_t)((c.bytes + CHUNK - 1) / CHUNK), carry_chunk, &c);
}

int spw__bounce_open(spw_pager *pager)
{
    int rc = pager->carriers ? 0 : spw__pool_create(0, &pager->carriers);
    if (rc == 0 && pager->by_file && !pager->give_host &&
        !(pager->give_host = spw__map(pager->page_bytes)))
        rc = SPW_EHOSTMEM;
    for (uint32_t i = 0; rc == 0 && i < pager->config.ring_frames; i++) {
        spw__lane *lane = &pager->lanes[i];
        if (lane->host)
            continue;
        if (!(lane->host = spw__map(pager->page_bytes)))
            return SPW_EHOSTMEM;
        /* Refused even here: copies are slower then, and right all the same. */
        lane->pinned = spw__dev_pin(pager->device, lane->host, pager->page_bytes) == 0;
        spw__lock_take(&pager->lock);
        pager->ring_pinned += lane->pinned ? pager->page_bytes : 0;
        spw__lock_drop(&pager->lock);
    }
    return rc;
}

void spw__bounce_close(spw_pager *pager)
{
    for (uint32_t i = 0; pager->lanes && i < pager->config.ring_frames; i++) {
        if (pager->lanes[i].pinned)
            spw__dev_unpin(pager->device, pager->lanes[i].host);
        spw__unmap(pager->lanes[i].host, pager->page_bytes);
    }
    spw__unmap(pager->give_host, pager->page_bytes);
    spw__pool_destroy(pager->carriers);
}

static int queue_in(spw_pager *pager, spw__lane *lane)
{
    void *in = pager->device->streams[SPW__DEV_IN];
    int rc = spw__dev_copy(pager->device, pager->pages[lane->page].memory, lane->host,
                           pager->page_bytes, in);
    return rc < 0 ? rc : spw__dev_event_record(pager->device, lane->loaded, in);
}

int spw__bounce_begin_load(spw_pager *pager, spw__lane *lane)
{
    int rc = spw__dev_event_wait(pager->device, lane->loaded); /* its page is free again */
    if (rc < 0)
        return rc;
    if (pager->by_file) {
        spw__store_start_read(pager->store, &lane->io, lane->page, lane->host);
        lane->reading = true;
        return 0;
    }
    carry(pager, lane->host, spw__store_slot(pager->store, lane->page));
    return queue_in(pager, lane);
}

int spw__bounce_end_load(spw_pager *pager, spw__lane *lane)
{
    if (!lane->reading)
        return 0;
    lane->reading = false;
    int rc = spw__store_wait(pager->store, &lane->io);
    return rc < 0 ? rc : queue_in(pager, lane);
}

int spw__bounce_begin_save(spw_pager *pager, spw__lane *lane, void *stream)
{
    spw_device *device = pager->device;
    void *out = device->streams[SPW__DEV_OUT];
    int rc = spw__dev_event_record(device, lane->updated, stream);
    if (rc == 0)
        rc = spw__dev_stream_wait(device, out, lane->updated);
    if (rc == 0)
        rc = spw__dev_copy(device, lane->host, pager->pages[lane->page].memory, pager->page_bytes,
                           out);
    lane->carrying = true;
    return rc < 0 ? rc : spw__dev_event_record(device, lane->saved, out);
}

int spw__bounce_carry_on(spw_pager *pager, spw__lane *lane)
{
    if (!lane->carrying)
        return 0;
    lane->carrying = false;
    int rc = spw__dev_event_wait(pager->device, lane->saved);
    if (rc < 0)
        return rc;
    if (pager->by_file) {
        spw__store_start_write(pager->store, &lane->io, lane->page, lane->host);
        lane->writing = true;
    } else {
        carry(pager, spw__store_slot(pager->store, lane->page), lane->host);
    }
    return 0;
}

int spw__bounce_end_save(spw_pager *pager, spw__lane *lane)
{
    int rc = spw__bounce_carry_on(pager, lane);
    if (!lane->writing)
        return rc;
    lane->writing = false;
    int written = spw__store_wait(pager->store, &lane->io);
    return rc < 0 ? rc : written;
}

/* One page of host memory for all reclaims: they take turns. */
int spw__bounce_give(spw_pager *pager, uint64_t number)
{
    spw__store_io io;
    spw__lock_take(&pager->lock);
    while (pager->giving)
        spw__lock_wait(&pager->lock, &pager->changed);
    pager->giving = true;
    spw__lock_drop(&pager->lock);
    int rc = spw__dev_copy(pager->device, pager->give_host, pager->pages[number].memory,
                           pager->page_bytes, pager->device->streams[SPW__DEV_GIVE]);
    if (rc == 0)
        rc = spw__dev_stream_sync(pager->device, pager->device->streams[SPW__DEV_GIVE]);
    if (rc == 0) {
        spw__store_start_write(pager->store, &io, number, pager->give_host);
        rc = spw__store_wait(pager->store, &io);
    }
    spw__lock_take(&pager->lock);
    pager->giving = false;
    pthread_cond_broadcast(&pager->changed);
    spw__lock_drop(&pager->lock);
    return rc;
}
