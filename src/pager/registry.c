/*
 * All pagers of the process, for callers that know a GPU and no pager: an allocation hook.
 *
 * The list's lock is not held while a pager works; a count keeps the pager alive meanwhile.
 */
#include "pager/pager.h"

#include "base/error.h"

static spw__lock lock = SPW__LOCK_INIT(SPW__RANK_REGISTRY);
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static spw_pager *first;

void spw__registry_enter(spw_pager *pager)
{
    spw__lock_take(&lock);
    pager->next_pager = first;
    first = pager;
    spw__lock_drop(&lock);
}

void spw__registry_leave(spw_pager *pager)
{
    spw__lock_take(&lock);
    while (pager->n_reclaimers)
        spw__lock_wait(&lock, &left);
    spw_pager **link = &first;
    while (*link && *link != pager)
        link = &(*link)->next_pager;
    if (*link)
        *link = pager->next_pager;
    spw__lock_drop(&lock);
}

/* Lock held. The first from `pager` on that lives on the GPU. */
static spw_pager *on_gpu(spw_pager *pager, int32_t ordinal)
{
    while (pager && pager->device->ordinal != ordinal)
        pager = pager->next_pager;
    return pager;
}

int spw_reclaim(int32_t ordinal, uint64_t bytes, uint64_t *freed)
{
    static _Thread_local bool within; /* our own driver calls are not hooked, but who knows */
    uint64_t given = 0;
    if (ordinal < 0)
        return spw__error(SPW_EINVAL, "spw_reclaim: there is no GPU %d", (int)ordinal);
    if (!within) {
        within = true;
        spw__lock_take(&lock);
        for (spw_pager *p = on_gpu(first, ordinal); p && given < bytes;) {
            p->n_reclaimers++;
            spw__lock_drop(&lock);
            given += spw__reclaim_on_demand(p, bytes - given);
            spw__lock_take(&lock);
            p->n_reclaimers--;
            pthread_cond_broadcast(&left);
            p = on_gpu(p->next_pager, ordinal);
        }
        spw__lock_drop(&lock);
        within = false;
    }
    if (freed)
        *freed = given;
    return 0;
}
