/*
 * The budget: how many pages may stay on the device between sweeps.
 *
 * The tightest of the fixed cap (state_mem, state_percent) and what the device has left when its
 * other users are at their peak:
 *
 *     occupancy * capacity - (decayed peak of other use) - ring
 *
 * The peak is taken since the last sweep, so it covers the forward and backward pass that ended in
 * this step; a failed allocation counts as if it had succeeded. The estimate follows a higher peak
 * at once and a lower one by half the difference a step: after a spike is over, half of what it
 * took is offered to the state in the next step, three quarters in the one after, and so on.
 */
#include "pager/pager.h"

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t learn(spw_pager *pager, const spw__dev_usage *usage)
{
    spw__lock_take(&pager->lock);
    uint64_t reserved = pager->reserved;
    uint64_t frames = pager->n_frames + (pager->ring ? pager->config.ring_frames : 0);
    spw__lock_drop(&pager->lock);
    /* Another pager's frames are other use. */
    uint64_t own = min_u64(frames * pager->page_bytes, usage->frames);
    uint64_t now = usage->in_use - own;
    uint64_t peak = max_u64(usage->other_peak + (usage->frames - own), now);
    uint64_t estimate = pager->other_estimate;
    estimate = peak >= estimate ? peak : estimate - (estimate - peak + 1) / 2;
    pager->other_estimate = estimate;
    return max_u64(estimate, now + reserved);
}

static uint64_t fixed_cap(const spw_pager *pager)
{
    uint64_t state = pager->n_pages * pager->page_bytes;
    uint64_t cap = min_u64(state, pager->config.state_mem);
    if (pager->config.state_percent >= 0)
        cap = min_u64(cap, (uint64_t)((double)state * pager->config.state_percent / 100.0));
    return cap;
}

uint64_t spw__budget_pages(spw_pager *pager)
{
    spw__dev_usage usage;
    spw__dev_usage_get(pager->device, &usage);
    uint64_t other = learn(pager, &usage);
    uint64_t ring = pager->ring ? pager->config.ring_frames * pager->page_bytes : 0;
    uint64_t margin = min_u64(pager->device->margin, usage.capacity);
    uint64_t limit = min_u64((uint64_t)((double)usage.capacity * pager->config.occupancy),
                             usage.capacity - margin);
    uint64_t room = limit > other + ring ? limit - other - ring : 0;
    return min_u64(fixed_cap(pager), room) / pager->page_bytes;
}
