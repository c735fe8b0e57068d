#include "train/room.h"

#include "base/error.h"
#include "base/sizes.h"

#include <string.h>

enum { RING_RAM = 4, RING_FILE = 8 };

uint64_t spw__room_state_bytes(const spw_optim_config *optim, uint64_t n)
{
    uint64_t moments = optim->rule == SPW_LION ? 1 : optim->rule == SPW_ADEMAMIX ? 3 : 2;
    if (optim->state == SPW_STATE_8BIT && n >= optim->min_8bit_elements)
        return moments * (n + sizeof(float) * ((n + 255) / 256));
    return moments * sizeof(float) * n;
}

typedef struct shape {
    uint64_t in, out;
} shape;

static shape shape_of(const spw__model_config *c, enum spw__linear_name name)
{
    uint64_t q = (uint64_t)c->heads * c->head_dim, kv = (uint64_t)c->kv_heads * c->head_dim;
    const shape shapes[SPW__N_LINEAR] = {
        [SPW__Q] = {c->hidden, q},
        [SPW__K] = {c->hidden, kv},
        [SPW__V] = {c->hidden, kv},
        [SPW__O] = {q, c->hidden},
        [SPW__GATE] = {c->hidden, c->intermediate},
        [SPW__UP] = {c->hidden, c->intermediate},
        [SPW__DOWN] = {c->intermediate, c->hidden},
    };
    return shapes[name];
}

/* Elements and state of the trained matrices; vectors are too few to matter here. */
typedef struct trained {
    uint64_t elements, state_bytes;
} trained;

static void count(trained *t, const spw__run *run, uint64_t n, uint64_t times)
{
    t->elements += n * times;
    t->state_bytes += spw__room_state_bytes(&run->asked->optim, n) * times;
}

static trained count_trained(const spw__run *run)
{
    const spw__model_config *c = &run->config;
    const spw__adapter_config *lora = &run->asked->lora;
    trained t = {0, 0};
    for (int i = 0; i < SPW__N_LINEAR; i++) {
        shape s = shape_of(c, (enum spw__linear_name)i);
        if (run->asked->full) {
            count(&t, run, s.in * s.out, c->layers);
        } else if (!run->asked->adapter && lora->targets >> i & 1) {
            count(&t, run, s.in * lora->rank, c->layers);
            count(&t, run, s.out * lora->rank, c->layers);
        }
    }
    if (run->asked->full)
        count(&t, run, (uint64_t)c->vocab * c->hidden, c->tied ? 1 : 2);
    return t;
}

/* What must be on the device of the state during a step. */
static uint64_t state_on_device(const spw__run *run, const trained *t, spw_paging paging)
{
    const spw_pager_config *pager = &run->asked->pager;
    if (paging == SPW_PAGING_OFF)
        return t->state_bytes;
    if (paging == SPW_PAGING_MAPPED)
        return 0;
    uint64_t frames = strncmp(pager->store, "file:", 5) == 0 ? RING_FILE : RING_RAM;
    frames = pager->ring_frames ? pager->ring_frames : frames;
    return frames * spw_pager_page_bytes(pager, t->state_bytes);
}

static int refuse(const spw__run *run, uint64_t weights, uint64_t state, bool off)
{
    char has[24], fixed[24], moving[24], needed[24];
    spw_device_stats device;
    (void)spw_device_stats_get(run->device, &device);
    const char *remedy = run->asked->full ? "raise it or train an adapter (without --full)"
                                          : "raise it or take a smaller --base";
    return spw__error(SPW_ENOMEM,
                      "--device-mem %s: too small: weights and gradients take %s and %s %s, so it "
                      "must be more than %s; %s",
                      spw__format_size(device.capacity_bytes, has, sizeof has),
                      spw__format_size(weights, fixed, sizeof fixed),
                      off ? "unpaged optimizer state" : "the pager's ring",
                      spw__format_size(state, moving, sizeof moving),
                      spw__format_size(weights + state, needed, sizeof needed), remedy);
}

int spw__room_check(const spw__run *run)
{
    uint64_t weights;
    spw_device_stats device;
    spw_pager_stats pager;
    int rc = spw__weights_plan(run->asked->model, run->asked->base, run->asked->full, &weights);
    if (rc == 0)
        rc = spw_device_stats_get(run->device, &device);
    if (rc == 0)
        rc = spw_pager_stats_get(run->pager, &pager);
    if (rc < 0)
        return rc;
    trained t = count_trained(run);
    if (!run->asked->full)
        weights += t.elements * 2 * sizeof(float); /* the pairs and their gradients */
    uint64_t state = state_on_device(run, &t, pager.paging);
    /* Without paging the state may still fail later, at the sample that needs its place: that is
     * told there. Here only what cannot ever fit. */
    if (weights + state > device.capacity_bytes)
        return refuse(run, weights, state, pager.paging == SPW_PAGING_OFF);
    return 0;
}
