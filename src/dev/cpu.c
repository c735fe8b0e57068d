/* The cpu device: an arena of RAM, and copies by its threads. */
#include "dev/dev.h"

#include "base/error.h"
#include "base/lock.h"
#include "base/mem.h"
#include "dev/arena.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MEMORY_ALIGN = 64,
    FRAME_ALIGN = 4096,     /* direct I/O reads into frames */
    COPY_CHUNK = 256 << 10, /* of a copy, to one thread */
};

typedef struct cpu_device {
    spw_device device; /* first: a spw_device is a cpu_device */
    spw__lock lock;    /* guards all below */
    spw__arena arena;
    uint64_t peak;
    uint64_t other_peak;
    bool has_cap;
} cpu_device;

static cpu_device *cpu_of(spw_device *device)
{
    return (cpu_device *)device;
}

static void cpu_close(spw_device *device)
{
    cpu_device *cpu = cpu_of(device);
    spw__pool_destroy(device->pool);
    spw__arena_deinit(&cpu->arena);
    spw__lock_deinit(&cpu->lock);
    free(cpu);
}

/* Lock held. Never counts more than the device has. */
static void note_use(cpu_device *cpu, uint64_t failed_bytes)
{
    uint64_t capacity = cpu->arena.capacity;
    uint64_t other = cpu->arena.in_use - cpu->arena.in_use_high;
    other = failed_bytes < capacity - other ? other + failed_bytes : capacity;
    cpu->other_peak = other > cpu->other_peak ? other : cpu->other_peak;
    cpu->peak = cpu->arena.in_use > cpu->peak ? cpu->arena.in_use : cpu->peak;
}

static int out_of_memory(uint64_t bytes, const spw__arena *arena)
{
    return spw__error(SPW_ENOMEM,
                      "out of device memory: asked for %" PRIu64 " bytes; %" PRIu64 " of %" PRIu64
                      " are in use, the widest gap is %" PRIu64,
                      bytes, arena->in_use, arena->capacity, spw__arena_widest_gap(arena));
}

static int cpu_alloc(spw_device *device, uint64_t bytes, spw__dev_use use, void **pointer)
{
    cpu_device *cpu = cpu_of(device);
    bool frame = use == SPW__DEV_FRAME;
    uint64_t align = frame ? FRAME_ALIGN : MEMORY_ALIGN;
    spw__lock_take(&cpu->lock);
    int rc = spw__arena_alloc(&cpu->arena, bytes, align, frame, pointer);
    note_use(cpu, rc < 0 && !frame && bytes <= cpu->arena.capacity ? bytes : 0);
    if (rc == SPW_ENOMEM)
        rc = out_of_memory(bytes, &cpu->arena);
    spw__arena_check(&cpu->arena);
    spw__lock_drop(&cpu->lock);
    return rc;
}

static void cpu_free(spw_device *device, void *pointer)
{
    cpu_device *cpu = cpu_of(device);
    spw__lock_take(&cpu->lock);
    bool ours = spw__arena_free(&cpu->arena, pointer);
    spw__lock_drop(&cpu->lock);
#ifdef SPW_CHECKS
    if (!ours)
        abort(); /* freed twice, or never given */
#else
    (void)ours;
#endif
}

static void cpu_usage(spw_device *device, spw__dev_usage *usage)
{
    cpu_device *cpu = cpu_of(device);
    spw__lock_take(&cpu->lock);
    *usage = (spw__dev_usage){.capacity = cpu->arena.capacity,
                              .in_use = cpu->arena.in_use,
                              .widest = spw__arena_widest_gap(&cpu->arena),
                              .frames = cpu->arena.in_use_high,
                              .peak = cpu->peak,
                              .other_peak = cpu->other_peak,
                              .has_cap = cpu->has_cap};
    spw__lock_drop(&cpu->lock);
}

static void cpu_reset_other_peak(spw_device *device)
{
    cpu_device *cpu = cpu_of(device);
    spw__lock_take(&cpu->lock);
    cpu->other_peak = cpu->arena.in_use - cpu->arena.in_use_high;
    spw__lock_drop(&cpu->lock);
}

typedef struct cpu_copy {
    char *dst;
    const char *src; /* NULL: zero bytes */
    uint64_t bytes;
} cpu_copy;

static void copy_chunk(void *context, size_t index)
{
    const cpu_copy *copy = context;
    uint64_t at = (uint64_t)index * COPY_CHUNK;
    uint64_t left = copy->bytes - at;
    size_t n = (size_t)(left < COPY_CHUNK ? left : COPY_CHUNK);
    if (copy->src)
        memcpy(copy->dst + at, copy->src + at, n);
    else
        memset(copy->dst + at, 0, n);
}

static int cpu_copy_bytes(spw_device *device, void *dst, const void *src, uint64_t bytes,
                          void *stream)
{
    (void)stream;
    cpu_copy copy = {dst, src, bytes};
    spw__pool_run(device->pool, (size_t)((bytes + COPY_CHUNK - 1) / COPY_CHUNK), copy_chunk, &copy);
    return 0;
}

static int cpu_zero(spw_device *device, void *dst, uint64_t bytes, void *stream)
{
    return cpu_copy_bytes(device, dst, NULL, bytes, stream);
}

static const spw__dev_ops cpu_ops = {
    .name = "cpu",
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .usage = cpu_usage,
    .reset_other_peak = cpu_reset_other_peak,
    .copy = cpu_copy_bytes,
    .zero = cpu_zero,
};

int spw__dev_cpu_open(const spw_device_config *config, spw_device **device)
{
    cpu_device *cpu = spw__calloc(1, sizeof *cpu);
    if (!cpu)
        return SPW_EHOSTMEM;
    cpu->device.ops = &cpu_ops;
    cpu->device.host_memory = true;
    cpu->device.ordinal = -1;
    cpu->has_cap = config->mem != 0;
    spw__lock_init(&cpu->lock, SPW__RANK_DEVICE);
    int rc = spw__arena_init(&cpu->arena, cpu->has_cap ? config->mem : spw__memory_physical());
    if (rc == 0)
        rc = spw__pool_create(config->threads, &cpu->device.pool);
    if (rc < 0) {
        cpu_close(&cpu->device);
        return rc;
    }
    *device = &cpu->device;
    return 0;
}
