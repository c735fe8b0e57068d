/*
 * Random walks over the optimizer on the cuda device, by walk/optim.h: whatever moves, whoever
 * takes memory meanwhile, on whichever stream, the bits are those of plain memory, and all is
 * ordered.
 */
#include "walk/optim.h"

#include "pager/pager.h"
#include "standin/standin.h"

/* The driver, the real one or the stand-in; the caller's own streams are made by it. */
typedef struct driver {
    void *library;
    CUresult (*retain)(CUcontext *context, CUdevice device);
    CUresult (*release)(CUdevice device);
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *context);
    CUresult (*stream_create)(CUstream *stream, unsigned flags);
    CUresult (*stream_destroy)(CUstream stream);
} driver;

static driver cuda;
static standin_control standin;
static bool has_standin;

static int find_driver(void **state)
{
    (void)state;
    has_standin = standin_find(&standin);
    cuda.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    assert_non_null(cuda.library);
    assert_true(standin_find_one(cuda.library, "cuDevicePrimaryCtxRetain", &cuda.retain));
    assert_true(standin_find_one(cuda.library, "cuDevicePrimaryCtxRelease_v2", &cuda.release));
    assert_true(standin_find_one(cuda.library, "cuCtxPushCurrent_v2", &cuda.push));
    assert_true(standin_find_one(cuda.library, "cuCtxPopCurrent_v2", &cuda.pop));
    assert_true(standin_find_one(cuda.library, "cuStreamCreate", &cuda.stream_create));
    assert_true(standin_find_one(cuda.library, "cuStreamDestroy_v2", &cuda.stream_destroy));
    CUresult (*init)(unsigned flags);
    assert_true(standin_find_one(cuda.library, "cuInit", &init));
    return init(0) == CUDA_SUCCESS ? 0 : -1;
}

/* A stream of the caller's own, in the context that the device shares, or the default one. */
static void draw_stream(walk *w, walk_place *place)
{
    CUcontext context;
    unsigned flags = draw(w, 2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
    assert_int_equal(cuda.retain(&context, 0), CUDA_SUCCESS);
    assert_int_equal(cuda.push(context), CUDA_SUCCESS);
    if (draw(w, 2))
        assert_int_equal(cuda.stream_create((CUstream *)&place->stream, flags), CUDA_SUCCESS);
}

static void destroy_stream(const walk_place *place)
{
    if (place->stream)
        assert_int_equal(cuda.stream_destroy(place->stream), CUDA_SUCCESS);
    assert_int_equal(cuda.pop(NULL), CUDA_SUCCESS);
    assert_int_equal(cuda.release(0), CUDA_SUCCESS);
}

static void draw_config(walk *w, spw_pager_config *config, char *path, size_t room)
{
    const spw_paging ways[] = {SPW_PAGING_AUTO, SPW_PAGING_UNIFIED, SPW_PAGING_MAPPED,
                               SPW_PAGING_OFF};
    spw_pager_config_default(config);
    config->paging = draw(w, 3) ? SPW_PAGING_COPY : ways[draw(w, 4)];
    bool copy = config->paging == SPW_PAGING_COPY;
    bool by_file = copy && draw(w, 3) == 0;
    if (by_file)
        (void)snprintf(path, room, "file:/tmp/spw-walk-%ld-%llu", (long)getpid(),
                       (unsigned long long)w->seed);
    config->store = by_file ? path : "ram";
    config->pinned_mem = copy && draw(w, 3) == 0 ? 1 : 0; /* past it a pinned ring carries */
    config->page_bytes = draw(w, 2) ? 64 << 10 : 0;
    config->ring_frames = (uint32_t)(3 + draw(w, 5));
    config->state_percent = draw(w, 3) == 0 ? (double)draw(w, 5) * 25 : -1;
    config->occupancy = 0.7 + (double)draw(w, 4) * 0.1;
    spw__pins_set_chunk(draw(w, 2) ? 64 << 10 : 64 * MIB);
}

static void draw_capacity(walk *w)
{
    uint64_t capacity = (18 + draw(w, 16)) * MIB, order = w->seed % 4 ? w->seed : 0;
    if (!has_standin)
        return;
    standin.reset();
    standin.seed(order);
    standin.set_capacity(capacity);
}

static void draw_place(walk *w, walk_place *place, char *path, size_t room)
{
    *place = (walk_place){.device = "cuda:0", .largest = 600000};
    spw_device_config_default(&place->device_config);
    draw_config(w, &place->config, path, room);
    /* Without a cap the margin is more than the stand-in has, and nothing may stay. */
    bool capped = draw(w, 8) && place->config.paging != SPW_PAGING_OFF;
    place->device_config.mem = capped ? (12 + draw(w, 12)) * MIB : 0;
    place->crowded = draw(w, 3) == 0;
    draw_capacity(w);
    draw_stream(w, place);
}

static void paged_state_is_as_in_plain_memory(void **unused)
{
    uint64_t ops = walk_ops(USUAL_OPS);
    walk w = {.seed = 0};
    (void)unused;
    for (uint64_t i = 0; i * EPISODE < ops; i++) {
        walk_place place;
        char path[64];
        walk_begin(&w, i);
        draw_place(&w, &place, path, sizeof path);
        walk_episode(&w, &place);
        destroy_stream(&place);
        assert_int_equal(has_standin ? standin.live_bytes() : 0, 0);
        assert_int_equal(has_standin ? standin.live_objects() : 0, 0);
    }
    walk_has_paged(&w, ops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(paged_state_is_as_in_plain_memory)};
    return cmocka_run_group_tests(tests, find_driver, NULL);
}
