/*
 * Telling a GPU of the ram store's memory, a chunk at a time, behind the program's back.
 *
 * Pinning takes some 50 ms a GiB, and state that fits on the device needs it late or never. So only
 * the first chunk is pinned at once, which shows whether it is allowed here; a thread goes through
 * the others, and a copy that comes to one before it pins that one itself. A chunk that is refused
 * stays as it is: its copies pass the driver's own staging, slower and just as right.
 */
#include "pager/pager.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdlib.h>

enum chunk_state { CHUNK_NEW, CHUNK_UNDER_WAY, CHUNK_PINNED, CHUNK_REFUSED };

struct spw__pins {
    char *memory;
    uint64_t bytes, chunk_bytes;
    uint64_t n_chunks;
    uint8_t *states;       /* [n_chunks], chunk_state; under the pager's lock, as all below */
    uint64_t pinned_bytes; /* of CHUNK_PINNED */
    bool stop;
    bool started; /* the thread runs; the sweep's thread only */
    pthread_t thread;
};

static uint64_t least_chunk = UINT64_C(64) << 20;

void spw__pins_set_chunk(uint64_t bytes)
{
    least_chunk = bytes;
}

static uint64_t chunk_size(const spw__pins *pins, uint64_t chunk)
{
    uint64_t left = pins->bytes - chunk * pins->chunk_bytes;
    return left < pins->chunk_bytes ? left : pins->chunk_bytes;
}

/* Lock held. True if the chunk is now the caller's to pin; waits while it is another's. */
static bool claim(spw_pager *pager, spw__pins *pins, uint64_t chunk)
{
    while (pins->states[chunk] == CHUNK_UNDER_WAY)
        spw__lock_wait(&pager->lock, &pager->changed);
    bool ours = pins->states[chunk] == CHUNK_NEW;
    if (ours)
        pins->states[chunk] = CHUNK_UNDER_WAY;
    return ours;
}

/* Returns 0 or why it was refused; a chunk that somebody else has seen to is no error. */
static int pin_chunk(spw_pager *pager, spw__pins *pins, uint64_t chunk)
{
    spw__lock_take(&pager->lock);
    bool ours = claim(pager, pins, chunk);
    spw__lock_drop(&pager->lock);
    if (!ours)
        return 0;
    uint64_t bytes = chunk_size(pins, chunk);
    int rc = spw__dev_pin(pager->device, pins->memory + chunk * pins->chunk_bytes, bytes);
    spw__lock_take(&pager->lock);
    pins->states[chunk] = rc == 0 ? CHUNK_PINNED : CHUNK_REFUSED;
    pins->pinned_bytes += rc == 0 ? bytes : 0;
    pthread_cond_broadcast(&pager->changed);
    spw__lock_drop(&pager->lock);
    return rc;
}

static bool told_to_stop(spw_pager *pager, const spw__pins *pins)
{
    spw__lock_take(&pager->lock);
    bool stop = pins->stop;
    spw__lock_drop(&pager->lock);
    return stop;
}

static void *pin_the_rest(void *argument)
{
    spw_pager *pager = argument;
    spw__pins *pins = pager->pins;
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < pins->n_chunks && !told_to_stop(pager, pins); i++)
        rc = pin_chunk(pager, pins, i);
    return NULL;
}

static void close_pins(spw_pager *pager, spw__pins *pins)
{
    for (uint64_t i = 0; i < pins->n_chunks && pins->states; i++)
        if (pins->states[i] == CHUNK_PINNED)
            spw__dev_unpin(pager->device, pins->memory + i * pins->chunk_bytes);
    free(pins->states);
    free(pins);
}

static int pin_now(spw_pager *pager, spw__pins *pins, bool all)
{
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < (all ? pins->n_chunks : 1); i++)
        rc = pin_chunk(pager, pins, i);
    return rc;
}

int spw__pins_open(spw_pager *pager, void *memory, uint64_t bytes, bool all)
{
    spw__pins *pins = spw__calloc(1, sizeof *pins);
    if (!pins)
        return SPW_EHOSTMEM;
    uint64_t page_bytes = pager->store->slot_bytes;
    pins->memory = memory;
    pins->bytes = bytes;
    pins->chunk_bytes = least_chunk < page_bytes ? page_bytes : least_chunk;
    pins->n_chunks = (bytes + pins->chunk_bytes - 1) / pins->chunk_bytes;
    pins->states = spw__calloc((size_t)pins->n_chunks, sizeof *pins->states);
    int rc = pins->states ? pin_now(pager, pins, all) : SPW_EHOSTMEM;
    if (rc < 0) {
        close_pins(pager, pins);
        return rc;
    }
    spw__lock_take(&pager->lock); /* another thread may be reading statistics */
    pager->pins = pins;
    spw__lock_drop(&pager->lock);
    if (!all && pins->n_chunks > 1) /* without the thread, copies pin what they need */
        pins->started = pthread_create(&pins->thread, NULL, pin_the_rest, pager) == 0;
    return 0;
}

void spw__pins_close(spw_pager *pager)
{
    spw__pins *pins = pager->pins;
    if (!pins)
        return;
    spw__lock_take(&pager->lock);
    pins->stop = true;
    spw__lock_drop(&pager->lock);
    if (pins->started)
        pthread_join(pins->thread, NULL);
    close_pins(pager, pins);
    pager->pins = NULL;
}

void spw__pins_page(spw_pager *pager, uint64_t page)
{
    if (pager->pins)
        (void)pin_chunk(pager, pager->pins, page * pager->page_bytes / pager->pins->chunk_bytes);
}

uint64_t spw__pins_bytes(const spw_pager *pager)
{
    return pager->pins->pinned_bytes;
}
