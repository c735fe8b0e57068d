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

/* Whose pagers are asked. */
typedef struct wanted {
    int32_t ordinal;          /* of a GPU, or */
    const spw_device *device; /* this device */
    const spw_pager *but;     /* not this one; NULL: all */
} wanted;

/* Lock held. The first from `pager` on that is wanted. */
static spw_pager *next_wanted(spw_pager *pager, const wanted *w)
{
    for (; pager; pager = pager->next_pager) {
        bool here = w->device ? pager->device == w->device : pager->device->ordinal == w->ordinal;
        if (here && pager != w->but)
            return pager;
    }
    return NULL;
}

static uint64_t ask(const wanted *w, uint64_t bytes)
{
    uint64_t given = 0;
    spw__lock_take(&lock);
    for (spw_pager *p = next_wanted(first, w); p && given < bytes;) {
        p->n_reclaimers++;
        spw__lock_drop(&lock);
        given += spw__reclaim_on_demand(p, bytes - given);
        spw__lock_take(&lock);
        p->n_reclaimers--;
        pthread_cond_broadcast(&left);
        p = next_wanted(p->next_pager, w);
    }
    spw__lock_drop(&lock);
    return given;
}

uint64_t spw__registry_reclaim(spw_pager *pager, uint64_t bytes)
{
    wanted w = {.device = pager->device, .but = pager};
    return ask(&w, bytes);
}

int spw_reclaim(int32_t ordinal, uint64_t bytes, uint64_t *freed)
{
    static _Thread_local bool within; /* our own driver calls are not hooked, but who knows */
    wanted w = {.ordinal = ordinal};
    uint64_t given = 0;
    if (ordinal < 0)
        return spw__error(SPW_EINVAL, "spw_reclaim: there is no GPU %d", (int)ordinal);
    if (!within) {
        within = true;
        given = ask(&w, bytes);
        within = false;
    }
    if (freed)
        *freed = given;
    return 0;
}
