/* The validator: exactly the invariants at the head of pager.h. */
#include "pager/pager.h"

#ifdef SPW_CHECKS
#include <stdlib.h>

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_page(const spw_pager *pager, uint64_t number)
{
    const spw__page *page = &pager->pages[number];
    bool framed = page->state == SPW__PAGE_LOADING || page->state == SPW__PAGE_RESIDENT ||
                  page->state == SPW__PAGE_SAVING;
    require(framed == (page->memory != NULL));                  /* 1 */
    require(page->state == SPW__PAGE_RESIDENT || !page->dirty); /* 4 */
    require(page->state == SPW__PAGE_RESIDENT || !page->busy);  /* 4 */
    if (page->slab == SPW__NO_SLAB)
        return;
    const spw__slab *slab = &pager->slabs[page->slab];
    uint64_t frame = (uint64_t)((char *)page->memory - slab->memory) / pager->page_bytes;
    require(slab->memory && frame < slab->n_frames && slab->pages[frame] == number); /* 2 */
}

/* Before spw__pager_set_pages has put its count under the lock there is nothing to hold, and the
 * store may be growing in another thread. */
void spw__pager_check(const spw_pager *pager)
{
    if (!pager->n_pages)
        return;
    uint64_t in_slabs = 0, used = 0, frames = 0;
    for (uint64_t i = 0; i < pager->n_pages; i++) {
        check_page(pager, i);
        in_slabs += pager->pages[i].slab != SPW__NO_SLAB;
    }
    for (uint32_t i = 0; i < pager->n_slabs; i++) {
        used += pager->slabs[i].n_used;
        frames += pager->slabs[i].n_frames;
    }
    require(in_slabs == pager->n_resident && used == pager->n_resident); /* 5 */
    require(frames == pager->n_frames);
    require(!pager->store || pager->store->n_slots >= pager->n_pages); /* 3 */
}
#else
void spw__pager_check(const spw_pager *pager)
{
    (void)pager;
}
#endif
