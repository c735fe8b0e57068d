/*
 * Memory of the cuda device, and the account of it.
 *
 * Ordinary memory is cuMemAlloc's. Page frames are virtual-memory allocations (cuMemCreate, Map,
 * SetAccess): giving one back does not wait for running kernels, where cuMemFree drains the device.
 */
#include "dev/cuda.h"

#ifdef SPW_HAVE_CUDA

#include "base/error.h"
#include "base/mem.h"

#include <inttypes.h>

enum {
    GRANULE = 2 << 20 /* of cuMemCreate on every GPU so far; larger ones divide 2 MiB evenly */
};

static spw__cuda *cuda_of(spw_device *device)
{
    return (spw__cuda *)device;
}

static void *host_pointer(CUdeviceptr address)
{
    return (void *)(uintptr_t)address;
}

/* ---------------------------------------------------------------------------- the account -- */

/* What the card says; with a cap, what this device gave out. Lock not held. */
static void measure(spw__cuda *cuda, spw__dev_usage *usage)
{
    size_t unused = 0, total = 0;
    if (spw__cuda_enter(cuda) == 0) {
        (void)SPW__CUDA_TRY(cuda, cuMemGetInfo(&unused, &total));
        spw__cuda_leave(cuda);
    }
    spw__lock_take(&cuda->lock);
    uint64_t ours = cuda->memory_bytes + cuda->frame_bytes;
    bool capped = cuda->cap && cuda->cap < total;
    *usage = (spw__dev_usage){.capacity = capped ? cuda->cap : total,
                              .in_use = capped ? ours : total - unused,
                              .frames = cuda->frame_bytes,
                              .has_cap = true};
    uint64_t room = usage->capacity > usage->in_use ? usage->capacity - usage->in_use : 0;
    usage->widest = room < unused ? room : unused;
    spw__lock_drop(&cuda->lock);
}

/* Remembers the most that others had in use; `failed_bytes` could not be had. */
static void note_use(spw__cuda *cuda, uint64_t failed_bytes)
{
    spw__dev_usage now;
    measure(cuda, &now);
    uint64_t other = now.in_use > now.frames ? now.in_use - now.frames : 0;
    other = failed_bytes < now.capacity - other ? other + failed_bytes : now.capacity;
    spw__lock_take(&cuda->lock);
    cuda->other_peak = other > cuda->other_peak ? other : cuda->other_peak;
    cuda->peak = now.in_use > cuda->peak ? now.in_use : cuda->peak;
    spw__lock_drop(&cuda->lock);
}

void spw__cuda_usage(spw_device *device, spw__dev_usage *usage)
{
    spw__cuda *cuda = cuda_of(device);
    note_use(cuda, 0);
    measure(cuda, usage);
    spw__lock_take(&cuda->lock);
    usage->peak = cuda->peak;
    usage->other_peak = cuda->other_peak;
    spw__lock_drop(&cuda->lock);
}

void spw__cuda_reset_other_peak(spw_device *device)
{
    spw__cuda *cuda = cuda_of(device);
    spw__lock_take(&cuda->lock);
    cuda->other_peak = 0;
    spw__lock_drop(&cuda->lock);
    note_use(cuda, 0);
}

static uint64_t *account_of(spw__cuda *cuda, spw__dev_use use)
{
    if (use == SPW__DEV_FRAME)
        return &cuda->frame_bytes;
    return use == SPW__DEV_MANAGED ? &cuda->managed_bytes : &cuda->memory_bytes;
}

/* Takes room in the account before the driver is asked, so that two threads cannot share it. */
static int account(spw__cuda *cuda, uint64_t bytes, spw__dev_use use)
{
    spw__lock_take(&cuda->lock);
    uint64_t ours = cuda->memory_bytes + cuda->frame_bytes;
    bool fits =
        use == SPW__DEV_MANAGED || !cuda->cap || (ours <= cuda->cap && bytes <= cuda->cap - ours);
    int rc = fits ? spw__grow(&cuda->blocks, &cuda->block_capacity,
                              cuda->n_blocks + cuda->n_under_way + 1, sizeof *cuda->blocks)
                  : 0;
    if (fits && rc == 0) {
        cuda->n_under_way++;
        *account_of(cuda, use) += bytes;
    }
    spw__lock_drop(&cuda->lock);
    if (!fits)
        return spw__error(SPW_ENOMEM,
                          "out of device memory: asked for %" PRIu64 " bytes; %" PRIu64
                          " of %" PRIu64 " are in use",
                          bytes, ours, cuda->cap);
    return rc;
}

static void discount(spw__cuda *cuda, uint64_t bytes, spw__dev_use use)
{
    spw__lock_take(&cuda->lock);
    *account_of(cuda, use) -= bytes;
    spw__lock_drop(&cuda->lock);
}

/* The table has room since account(). `got` is false if the driver gave nothing. */
static void settle(spw__cuda *cuda, const spw__cuda_block *block, bool got)
{
    spw__lock_take(&cuda->lock);
    cuda->n_under_way--;
    if (got)
        cuda->blocks[cuda->n_blocks++] = *block;
    spw__lock_drop(&cuda->lock);
}

static bool forget(spw__cuda *cuda, CUdeviceptr address, spw__cuda_block *block)
{
    bool found = false;
    spw__lock_take(&cuda->lock);
    for (size_t i = cuda->n_blocks; i-- > 0 && !found;) {
        if (cuda->blocks[i].address != address)
            continue;
        *block = cuda->blocks[i];
        cuda->blocks[i] = cuda->blocks[--cuda->n_blocks];
        found = true;
    }
    spw__lock_drop(&cuda->lock);
    return found;
}

/* ------------------------------------------------------------------------------ page frames -- */

static void unmap_frames(spw__cuda *cuda, const spw__cuda_block *block)
{
    (void)cuda->driver->cuMemUnmap(block->address, block->bytes);
    (void)cuda->driver->cuMemRelease(block->handle);
    (void)cuda->driver->cuMemAddressFree(block->address, block->bytes);
}

static int map_frames(spw__cuda *cuda, spw__cuda_block *block)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cuda->ordinal},
    };
    CUmemAccessDesc access = {.location = prop.location,
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    int rc = SPW__CUDA_TRY(cuda, cuMemCreate(&block->handle, block->bytes, &prop, 0));
    if (rc < 0)
        return rc;
    if ((rc = SPW__CUDA_TRY(cuda, cuMemAddressReserve(&block->address, block->bytes, 0, 0, 0))) < 0)
        goto out_release;
    if ((rc = SPW__CUDA_TRY(cuda, cuMemMap(block->address, block->bytes, 0, block->handle, 0))) < 0)
        goto out_address;
    if ((rc = SPW__CUDA_TRY(cuda, cuMemSetAccess(block->address, block->bytes, &access, 1))) == 0)
        return 0;
    (void)cuda->driver->cuMemUnmap(block->address, block->bytes);
out_address:
    (void)cuda->driver->cuMemAddressFree(block->address, block->bytes);
out_release:
    (void)cuda->driver->cuMemRelease(block->handle);
    return rc;
}

/* -------------------------------------------------------------------------------- the table -- */

static int take(spw__cuda *cuda, spw__cuda_block *block)
{
    int rc = spw__cuda_enter(cuda);
    if (rc < 0)
        return rc;
    if (block->use == SPW__DEV_FRAME)
        rc = map_frames(cuda, block);
    else if (block->use == SPW__DEV_MANAGED)
        rc = SPW__CUDA_TRY(cuda,
                           cuMemAllocManaged(&block->address, block->bytes, CU_MEM_ATTACH_GLOBAL));
    else
        rc = SPW__CUDA_TRY(cuda, cuMemAlloc(&block->address, block->bytes));
    spw__cuda_leave(cuda);
    return rc;
}

int spw__cuda_alloc(spw_device *device, uint64_t bytes, spw__dev_use use, void **pointer)
{
    spw__cuda *cuda = cuda_of(device);
    uint64_t granule = use == SPW__DEV_FRAME ? GRANULE : 512;
    if (bytes > UINT64_MAX / 2)
        return spw__error(SPW_ENOMEM, "out of device memory: asked for %" PRIu64 " bytes", bytes);
    spw__cuda_block block = {.bytes = spw__round_up(bytes ? bytes : 1, granule), .use = use};
    int rc = account(cuda, block.bytes, use);
    if (rc == 0) {
        rc = take(cuda, &block);
        settle(cuda, &block, rc == 0);
        if (rc < 0)
            discount(cuda, block.bytes, use);
        else
            *pointer = host_pointer(block.address);
    }
    note_use(cuda, rc == SPW_ENOMEM && use == SPW__DEV_MEMORY ? block.bytes : 0);
    return rc;
}

void spw__cuda_free(spw_device *device, void *pointer)
{
    spw__cuda *cuda = cuda_of(device);
    spw__cuda_block block;
    if (!forget(cuda, (CUdeviceptr)(uintptr_t)pointer, &block))
        return;
    if (spw__cuda_enter(cuda) == 0) {
        if (block.use == SPW__DEV_FRAME)
            unmap_frames(cuda, &block);
        else
            (void)cuda->driver->cuMemFree(block.address);
        spw__cuda_leave(cuda);
    }
    discount(cuda, block.bytes, block.use);
}

#endif
