/* Frames of the resident set: slabs taken from the device, and who sits in them. */
#include "pager/pager.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdlib.h>

static void *take_from_slab(spw_pager *pager, uint32_t index, uint64_t page)
{
    spw__slab *slab = &pager->slabs[index];
    for (uint32_t i = 0; i < slab->n_frames; i++) {
        if (slab->pages[i] != SPW__NO_PAGE)
            continue;
        slab->pages[i] = page;
        slab->n_used++;
        pager->pages[page].slab = index;
        pager->n_resident++;
        return slab->memory + i * pager->page_bytes;
    }
    return NULL;
}

void *spw__frames_take(spw_pager *pager, uint64_t page)
{
    if (pager->n_resident == pager->n_frames)
        return NULL;
    for (uint32_t i = 0; i < pager->n_slabs; i++) {
        spw__slab *slab = &pager->slabs[i];
        if (slab->memory && !slab->leaving && slab->n_used < slab->n_frames)
            return take_from_slab(pager, i, page);
    }
    return NULL;
}

void spw__frames_leave(spw_pager *pager, spw__page *page)
{
    spw__slab *slab = &pager->slabs[page->slab];
    uint64_t frame = (uint64_t)((char *)page->memory - slab->memory) / pager->page_bytes;
    slab->pages[frame] = SPW__NO_PAGE;
    slab->n_used--;
    pager->n_resident--;
    page->slab = SPW__NO_SLAB;
    page->memory = NULL;
}

/* Lock held. There are as many entries as pages and a slab has at least one frame, so one that is
 * free is found while frames are fewer than pages. */
static uint32_t free_entry(const spw_pager *pager)
{
    uint32_t i = 0;
    while (i < pager->n_slabs && pager->slabs[i].memory)
        i++;
    return i;
}

/* Lock not held. `slab` gets its memory and its table; false: there is no room. */
static bool take_from_device(spw_pager *pager, uint64_t wanted, spw__slab *slab)
{
    uint32_t n = wanted < pager->slab_frames ? (uint32_t)wanted : pager->slab_frames;
    void *memory = NULL;
    *slab = (spw__slab){.pages = spw__calloc(n, sizeof *slab->pages), .n_frames = n};
    if (!slab->pages ||
        spw__dev_alloc(pager->device, n * pager->page_bytes, SPW__DEV_FRAME, &memory) < 0) {
        free(slab->pages);
        return false;
    }
    slab->memory = memory;
    for (uint32_t i = 0; i < n; i++)
        slab->pages[i] = SPW__NO_PAGE;
    return true;
}

bool spw__frames_add_slab(spw_pager *pager, uint64_t wanted)
{
    spw__slab slab;
    spw__lock_take(&pager->lock);
    pager->adding = true;
    spw__lock_drop(&pager->lock);
    bool added = take_from_device(pager, wanted, &slab);
    spw__lock_take(&pager->lock);
    pager->adding = false;
    uint32_t entry = free_entry(pager);
    if (added && entry < pager->n_slabs) {
        pager->slabs[entry] = slab;
        pager->n_frames += slab.n_frames;
    }
    pthread_cond_broadcast(&pager->changed);
    spw__lock_drop(&pager->lock);
    if (added && entry == pager->n_slabs) {
        spw__dev_free(pager->device, slab.memory);
        free(slab.pages);
        return false;
    }
    return added;
}

void spw__frames_free_all(spw_pager *pager)
{
    for (uint32_t i = 0; pager->slabs && i < pager->n_slabs; i++) {
        spw__dev_free(pager->device, pager->slabs[i].memory);
        free(pager->slabs[i].pages);
        pager->slabs[i] = (spw__slab){.memory = NULL};
    }
    pager->n_frames = 0;
    pager->n_resident = 0;
}
