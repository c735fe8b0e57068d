/* Random walks over the optimizer on the cpu device, by walk/optim.h. */
#include "walk/optim.h"

/* The tensors and their gradients take 2.1 MiB at most, their state 2.1 MiB. */
static void draw_place(walk *w, walk_place *place, char *path, size_t room)
{
    const spw_paging ways[] = {SPW_PAGING_MAPPED, SPW_PAGING_OFF, SPW_PAGING_AUTO};
    *place = (walk_place){.device = "cpu", .largest = 130000};
    spw_device_config_default(&place->device_config);
    spw_pager_config_default(&place->config);
    spw_pager_config *config = &place->config;
    config->paging = draw(w, 3) ? SPW_PAGING_COPY : ways[draw(w, 3)];
    bool by_file = config->paging == SPW_PAGING_COPY && draw(w, 2);
    if (by_file)
        (void)snprintf(path, room, "file:/tmp/spw-walk-%ld-%llu", (long)getpid(),
                       (unsigned long long)w->seed);
    config->store = by_file ? path : "ram";
    config->page_bytes = draw(w, 2) ? 64 << 10 : 0;
    config->ring_frames = (uint32_t)(3 + draw(w, 6));
    config->io_depth = (uint32_t)draw(w, 6);
    config->state_percent = draw(w, 3) == 0 ? (double)draw(w, 5) * 25 : -1;
    config->occupancy = 0.7 + (double)draw(w, 4) * 0.1;
    uint64_t most = config->paging == SPW_PAGING_OFF ? 8 * MIB : 3 * MIB + 512 * 1024;
    place->device_config.mem = most + draw(w, 4 * MIB);
    place->device_config.threads = 1 + (uint32_t)draw(w, 3);
    place->crowded = draw(w, 3) == 0;
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
    }
    walk_has_paged(&w, ops);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(paged_state_is_as_in_plain_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
