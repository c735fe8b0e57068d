/* What moves between host and device, and within the device: the limits that a step is held to. */
#include "dev/dev.h"

#include "base/error.h"
#include "base/mem.h"

#include <string.h>
#include <time.h>

enum { ROUNDS = 3, CHUNK = 256 << 10 };

static const uint64_t probe_bytes = UINT64_C(256) << 20; /* host and device memory, each way */
static const uint64_t pass_bytes = UINT64_C(1) << 30;    /* moved in a timed pass, each way */

typedef struct link_probe {
    spw_device *device;
    uint64_t copy_bytes, n_places;
    char *host[2]; /* in, out */
    bool pinned[2];
    void *memory[2]; /* likewise */
} link_probe;

static double seconds_now(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int open_probe(link_probe *p)
{
    for (int i = 0; i < 2; i++) {
        int rc = spw__dev_alloc(p->device, probe_bytes, SPW__DEV_MEMORY, &p->memory[i]);
        if (rc < 0)
            return rc;
        if (!(p->host[i] = spw__map(probe_bytes)))
            return SPW_EHOSTMEM;
        if ((rc = spw__dev_pin(p->device, p->host[i], probe_bytes)) < 0)
            return rc;
        p->pinned[i] = true;
    }
    return 0;
}

static void close_probe(link_probe *p)
{
    for (int i = 0; i < 2; i++) {
        if (p->pinned[i])
            spw__dev_unpin(p->device, p->host[i]);
        spw__unmap(p->host[i], probe_bytes);
        spw__dev_free(p->device, p->memory[i]);
    }
}

/* One copy each way that is asked for; `within`: a large one on the device instead. */
static int queue_copies(const link_probe *p, uint64_t at, bool in, bool out, bool within)
{
    spw_device *d = p->device;
    char *to[2] = {(char *)p->memory[0] + at, (char *)p->memory[1] + at};
    int rc = 0;
    if (within)
        return spw__dev_copy(d, p->memory[0], p->memory[1], probe_bytes, d->streams[SPW__DEV_IN]);
    if (in)
        rc = spw__dev_copy(d, to[0], p->host[0] + at, p->copy_bytes, d->streams[SPW__DEV_IN]);
    if (rc == 0 && out)
        rc = spw__dev_copy(d, p->host[1] + at, to[1], p->copy_bytes, d->streams[SPW__DEV_OUT]);
    return rc;
}

/* GB/s of the bytes of one way. */
static int measure(const link_probe *p, bool in, bool out, bool within, double *gbs)
{
    uint64_t each = within ? probe_bytes : p->copy_bytes;
    uint64_t n_copies = (within ? 16 : 1) * pass_bytes / each;
    double best = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = seconds_now();
        int rc = 0;
        for (uint64_t i = 0; rc == 0 && i < n_copies; i++)
            rc = queue_copies(p, i % p->n_places * p->copy_bytes, in, out, within);
        for (int s = 0; rc == 0 && s < SPW__DEV_STREAMS; s++)
            rc = spw__dev_stream_sync(p->device, p->device->streams[s]);
        if (rc < 0)
            return rc;
        double rate = (double)(n_copies * each) / 1e9 / (seconds_now() - begin);
        best = rate > best ? rate : best;
    }
    *gbs = best;
    return 0;
}

/* -------------------------------------------------------------------------- the host's side -- */

static void copy_chunk(void *context, size_t chunk)
{
    const link_probe *p = context;
    memcpy(p->host[1] + chunk * CHUNK, p->host[0] + chunk * CHUNK, CHUNK);
}

/* What all cores copy within host memory: bytes copied, not read and written. */
static int measure_host(link_probe *p, double *gbs)
{
    spw__pool *pool;
    int rc = spw__pool_create(0, &pool);
    if (rc < 0)
        return rc;
    double best = 0;
    for (int round = 0; round <= ROUNDS; round++) {
        double begin = seconds_now();
        spw__pool_run(pool, (size_t)(probe_bytes / CHUNK), copy_chunk, p);
        double rate = (double)probe_bytes / 1e9 / (seconds_now() - begin);
        best = round && rate > best ? rate : best; /* the first touches the memory */
    }
    spw__pool_destroy(pool);
    *gbs = best;
    return 0;
}

/* What a ram store does at its start: fresh pages, then the device is told of them. */
static int measure_pinning(spw_device *device, double *gbs)
{
    double begin = seconds_now();
    void *memory = spw__map(pass_bytes);
    if (!memory)
        return SPW_EHOSTMEM;
    int rc = spw__dev_pin(device, memory, pass_bytes);
    *gbs = (double)pass_bytes / 1e9 / (seconds_now() - begin);
    if (rc == 0)
        spw__dev_unpin(device, memory);
    spw__unmap(memory, pass_bytes);
    return rc;
}

int spw_device_link(spw_device *device, uint64_t copy_bytes, spw_link_rates *rates)
{
    if (!device || !rates)
        return spw__error(SPW_EINVAL, "spw_device_link: device and rates may not be NULL");
    if (copy_bytes < 4096 || copy_bytes > probe_bytes)
        return spw__error(SPW_EINVAL, "spw_device_link: copy_bytes is not 4 KiB to 256 MiB");
    link_probe p = {.device = device, .copy_bytes = copy_bytes};
    p.n_places = probe_bytes / copy_bytes;
    *rates = (spw_link_rates){.in_gbs = 0};
    int rc = open_probe(&p);
    if (rc == 0)
        rc = measure(&p, true, false, false, &rates->in_gbs);
    if (rc == 0)
        rc = measure(&p, false, true, false, &rates->out_gbs);
    if (rc == 0)
        rc = measure(&p, true, true, false, &rates->both_gbs);
    if (rc == 0)
        rc = measure(&p, false, false, true, &rates->device_gbs);
    if (rc == 0)
        rc = measure_host(&p, &rates->host_gbs);
    rates->both_gbs *= 2;
    rates->device_gbs *= 2;
    close_probe(&p);
    if (rc == 0 && device->async)
        rc = measure_pinning(device, &rates->pin_gbs);
    return rc;
}
