/*
 * Steps with random spikes of up to all the memory there is, on the cpu device, beside the same
 * steps of an optimizer that is not paged. One line of JSON; exit 1 if a spike or a step failed, if
 * the parameters differ, or if memory grew in the second half.
 *
 * Usage: bench_spikes STEPS ram|file:PATH 32bit|8bit SEED
 */
#include <spillway/spillway.h>

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1 << 18, TENSORS = 3, MIB = 1 << 20 };

static const uint64_t sizes[TENSORS] = {N - 70001, 70000, 1};

typedef struct side {
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    void *p[TENSORS], *g[TENSORS];
} side;

static uint64_t state;

static uint64_t chance(uint64_t below)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return below ? (state * UINT64_C(0x2545F4914F6CDD1D) >> 8) % below : 0;
}

static void must(int64_t rc, const char *what)
{
    if (rc >= 0)
        return;
    (void)fprintf(stderr, "%s: %s\n", what, spw_last_error());
    exit(1);
}

/* kB of the process: VmRSS, what it has now, or VmHWM, the most it ever had. */
static uint64_t memory_kb(const char *key)
{
    char line[128];
    uint64_t kb = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0)
            (void)sscanf(line + strlen(key), ": %" SCNu64, &kb);
    if (file)
        (void)fclose(file);
    return kb;
}

static void add_tensor(side *s, int t)
{
    uint64_t bytes = sizes[t] * sizeof(float);
    must(spw_malloc(s->pager, bytes, &s->p[t]), "parameter");
    must(spw_malloc(s->pager, bytes, &s->g[t]), "gradient");
    float *p = s->p[t], *g = s->g[t];
    for (uint64_t i = 0; i < sizes[t]; i++) {
        p[i] = (float)((i * 40503 + (uint64_t)t * 77) % 2001) / 1000 - 1;
        g[i] = (float)((i * 30011 + (uint64_t)t * 13) % 2001) / 100000 - 0.01f;
    }
    spw_param param = {.name = "t", .data = p, .grad = g, .n = sizes[t]};
    must(spw_optim_add(s->optim, &param), "add");
}

static void open_side(side *s, spw_paging paging, const char *store, const char *kind)
{
    spw_device_config device;
    spw_pager_config pager;
    spw_optim_config optim;
    spw_device_config_default(&device);
    spw_pager_config_default(&pager);
    spw_optim_config_default(&optim);
    device.mem = 6 * MIB;
    device.threads = 1;
    pager.paging = paging;
    pager.store = store;
    optim.state = strcmp(kind, "8bit") == 0 ? SPW_STATE_8BIT : SPW_STATE_32BIT;
    must(spw_device_open("cpu", &device, &s->device), "device");
    must(spw_pager_create(s->device, &pager, &s->pager), "pager");
    must(spw_optim_create(s->pager, &optim, &s->optim), "optimizer");
    for (int t = 0; t < TENSORS; t++)
        add_tensor(s, t);
}

static void close_side(side *s)
{
    spw_optim_destroy(s->optim);
    spw_pager_destroy(s->pager);
    spw_device_close(s->device);
}

/* All that is there but the tensors and the ring. */
static void spike(side *s)
{
    void *memory;
    spw_device_stats device;
    spw_pager_stats pager;
    must(spw_device_stats_get(s->device, &device), "statistics");
    must(spw_pager_stats_get(s->pager, &pager), "statistics");
    uint64_t others = device.in_use_bytes - pager.resident_bytes;
    uint64_t bytes = chance(device.capacity_bytes - others + 1) / 64 * 64;
    must(spw_malloc(s->pager, bytes, &memory), "spike");
    memset(memory, 0x5A, bytes);
    spw_free(s->pager, memory);
}

static bool same_parameters(const side *a, const side *b)
{
    bool same = true;
    for (int t = 0; t < TENSORS; t++)
        same = same && memcmp(a->p[t], b->p[t], sizes[t] * sizeof(float)) == 0;
    return same;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        (void)fprintf(stderr, "usage: bench_spikes STEPS ram|file:PATH 32bit|8bit SEED\n");
        return 2;
    }
    side plain, paged;
    uint64_t steps = strtoull(argv[1], NULL, 10), spikes = 0, half_kb = 0;
    state = strtoull(argv[4], NULL, 10) * 2 + 1;
    open_side(&plain, SPW_PAGING_OFF, "ram", argv[3]);
    open_side(&paged, SPW_PAGING_COPY, argv[2], argv[3]);
    for (uint64_t i = 0; i < steps; i++) {
        spw_step step = {.lr = 1e-4, .max_norm = i % 7 ? 0 : 1};
        must(spw_optim_step(plain.optim, &step), "unpaged step");
        must(spw_optim_step(paged.optim, &step), "step");
        for (uint64_t n = chance(4); n > 1; n--, spikes++)
            spike(&paged);
        if (i + 1 == steps / 2)
            half_kb = memory_kb("VmHWM");
    }
    spw_pager_stats stats;
    must(spw_pager_stats_get(paged.pager, &stats), "statistics");
    bool identical = same_parameters(&plain, &paged);
    uint64_t end_kb = memory_kb("VmHWM");
    (void)printf("{\"steps\": %" PRIu64 ", \"spikes\": %" PRIu64 ", \"failures\": 0, "
                 "\"reclaims\": %" PRIu64 ", \"bytes_reclaimed\": %" PRIu64
                 ", \"bytes_in\": %" PRIu64 ", \"bytes_out\": %" PRIu64
                 ", \"state_bytes\": %" PRIu64 ", \"peak_kb_half\": %" PRIu64
                 ", \"peak_kb\": %" PRIu64 ", \"identical\": %s}\n",
                 steps, spikes, stats.reclaims, stats.bytes_reclaimed, stats.bytes_in,
                 stats.bytes_out, stats.state_bytes, half_kb, end_kb, identical ? "true" : "false");
    close_side(&plain);
    close_side(&paged);
    return identical && end_kb <= half_kb + 1024 ? 0 : 1;
}
