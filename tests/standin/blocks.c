/*
 * Memory: addresses of this process, so that a test can look at them.
 *
 * What was taken back cannot be read or written any more, and its addresses are not given again for
 * a while: a late touch is a crash or a message, not a wrong byte.
 */
#include "world.h"

#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, KEPT = 4096 /* ranges whose addresses are not given again yet */ };

static const uint64_t usual_capacity = UINT64_C(4) << 30;

struct standin_handle {
    uint64_t bytes;
    standin_block *mapped;
    bool is_released;
};

typedef struct range {
    uintptr_t begin, end;
} range;

static standin_block **blocks; /* by address; they do not overlap */
static size_t n_blocks, blocks_capacity;
static range *reserved;
static size_t n_reserved, reserved_capacity;
static range kept[KEPT]; /* a ring; end 0: empty */
static size_t next_kept;
static uint64_t capacity = UINT64_C(4) << 30, device_bytes, host_bytes, reserved_bytes,
                managed_bytes, registered_bytes, lockable = UINT64_MAX;

static uint64_t round_up(uint64_t bytes, uint64_t multiple)
{
    return (bytes + multiple - 1) / multiple * multiple;
}

/* -------------------------------------------------------------------------- table of blocks -- */

/* Index of the first block that ends after `address`. */
static size_t first_after(uintptr_t address)
{
    size_t low = 0, high = n_blocks;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle]->end <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void remove_at(size_t index)
{
    free(blocks[index]);
    memmove(&blocks[index], &blocks[index + 1], (n_blocks - index - 1) * sizeof *blocks);
    n_blocks--;
}

/* Blocks that are gone and that [begin, end) touches. Dies at one that is not. */
static void forget_gone(uintptr_t begin, uintptr_t end)
{
    size_t i = first_after(begin);
    while (i < n_blocks && blocks[i]->begin < end) {
        if (!blocks[i]->gone)
            standin__die("%p is already given (call %u)", (void *)begin, blocks[i]->given);
        remove_at(i);
    }
}

static standin_block *add(uintptr_t begin, uint64_t bytes, standin_kind kind)
{
    forget_gone(begin, begin + bytes);
    blocks = standin__grown(blocks, &blocks_capacity, n_blocks + 1, sizeof(standin_block *));
    size_t at = first_after(begin);
    memmove(&blocks[at + 1], &blocks[at], (n_blocks - at) * sizeof(standin_block *));
    n_blocks++;
    blocks[at] = standin__new(sizeof(standin_block));
    *blocks[at] = (standin_block){
        .begin = begin, .end = begin + bytes, .kind = kind, .given = standin__call_number()};
    return blocks[at];
}

standin_block *standin__block_of(uintptr_t begin, uint64_t bytes)
{
    size_t i = first_after(begin);
    if (i == n_blocks || blocks[i]->begin >= begin + bytes)
        return NULL;
    standin_block *b = blocks[i];
    if (begin < b->begin || begin + bytes > b->end)
        standin__die("%llu bytes at %p are only in part in the block of %llu bytes at %p (call %u)",
                     (unsigned long long)bytes, (void *)begin,
                     (unsigned long long)(b->end - b->begin), (void *)b->begin, b->given);
    return b;
}

void standin__require_bytes(const standin_stamp *stamp, uintptr_t begin, uint64_t bytes)
{
    const standin_block *b = standin__block_of(begin, bytes);
    if (!b)
        standin__die("%s (call %u) touches %p, which is neither device memory nor pinned",
                     stamp->what, stamp->call, (void *)begin);
    if (b->gone)
        standin__die("%s (call %u) touches %p, which call %u gave back", stamp->what, stamp->call,
                     (void *)begin, b->taken);
    if (b->given > stamp->call)
        standin__die("%s (call %u) touches %p, which was given back and given anew by call %u",
                     stamp->what, stamp->call, (void *)begin, b->given);
    if (b->kind == BLOCK_MAPPED && !b->has_access)
        standin__die("%s (call %u) touches %p, which is mapped without access", stamp->what,
                     stamp->call, (void *)begin);
}

/* The live block which begins there and is of that kind, or managed for cuMemAlloc's. */
static standin_block *must_begin(uintptr_t begin, standin_kind kind, const char *what)
{
    size_t i = first_after(begin);
    bool found = i < n_blocks && blocks[i]->begin == begin;
    bool managed = found && kind == BLOCK_DEVICE && blocks[i]->kind == BLOCK_MANAGED;
    if (!found || !(managed || blocks[i]->kind == kind))
        standin__die("%p is not %s", (void *)begin, what);
    if (blocks[i]->gone)
        standin__die("%p was already given back by call %u", (void *)begin, blocks[i]->taken);
    return blocks[i];
}

/* ----------------------------------------------------------------------------------- pages -- */

static void *new_pages(uint64_t bytes, int protection)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void *memory = mmap(NULL, round_up(bytes, PAGE), protection, flags, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Bytes and access go, the addresses stay taken. */
static void close_pages(uintptr_t begin, uintptr_t end)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    if (mmap((void *)begin, round_up(end - begin, PAGE), PROT_NONE, flags, -1, 0) == MAP_FAILED)
        standin__die("the stand-in cannot close %p", (void *)begin);
}

/* Keeps the addresses of what is gone, and lets go of those that were kept longest. */
static void keep(uintptr_t begin, uintptr_t end)
{
    range *oldest = &kept[next_kept++ % KEPT];
    if (oldest->end) {
        forget_gone(oldest->begin, oldest->end);
        (void)munmap((void *)oldest->begin, round_up(oldest->end - oldest->begin, PAGE));
    }
    *oldest = (range){begin, end};
}

static void take_back(standin_block *block)
{
    standin__order_take(block->begin, block->end, standin__host_clock());
    standin__queue_check(&(standin_touch){block->begin, block->end, true}, NULL, NULL);
    block->gone = true;
    block->taken = standin__call_number();
}

/* ---------------------------------------------------------------------------- device memory -- */

static bool fits(uint64_t bytes)
{
    return device_bytes <= capacity && bytes <= capacity - device_bytes;
}

CUresult standin__memory_alloc(CUdeviceptr *address, uint64_t bytes)
{
    uint64_t rounded = round_up(bytes, 512);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    void *memory = fits(rounded) ? new_pages(rounded, PROT_READ | PROT_WRITE) : NULL;
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(memory, STANDIN_POISON, bytes);
    (void)add((uintptr_t)memory, bytes, BLOCK_DEVICE);
    device_bytes += rounded;
    *address = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

/* Of no account: the driver moves it out when the device is full. */
CUresult standin__managed_alloc(CUdeviceptr *address, uint64_t bytes)
{
    void *memory = bytes ? new_pages(bytes, PROT_READ | PROT_WRITE) : NULL;
    if (!memory)
        return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    memset(memory, STANDIN_POISON, bytes);
    (void)add((uintptr_t)memory, bytes, BLOCK_MANAGED);
    managed_bytes += bytes;
    *address = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

void standin__memory_free(CUdeviceptr address)
{
    standin_block *block = must_begin((uintptr_t)address, BLOCK_DEVICE, "cuMemAlloc's");
    standin__queue_drain(); /* so the driver does */
    take_back(block);
    close_pages(block->begin, block->end);
    if (block->kind == BLOCK_MANAGED)
        managed_bytes -= block->end - block->begin;
    else
        device_bytes -= round_up(block->end - block->begin, 512);
    keep(block->begin, block->end);
}

void standin__memory_info(size_t *unused, size_t *total)
{
    *unused = device_bytes < capacity ? capacity - device_bytes : 0;
    *total = capacity;
}

void standin__memory_set_capacity(uint64_t bytes)
{
    capacity = bytes;
}

/* ------------------------------------------------------------------------------ host memory -- */

CUresult standin__host_alloc(void **memory, uint64_t bytes)
{
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *memory = new_pages(bytes, PROT_READ | PROT_WRITE);
    if (!*memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(*memory, STANDIN_POISON, bytes);
    (void)add((uintptr_t)*memory, bytes, BLOCK_HOST);
    host_bytes += bytes;
    return CUDA_SUCCESS;
}

void standin__host_free(const void *memory)
{
    standin_block *block = must_begin((uintptr_t)memory, BLOCK_HOST, "cuMemAllocHost's");
    take_back(block);
    close_pages(block->begin, block->end);
    host_bytes -= block->end - block->begin;
    keep(block->begin, block->end);
}

CUresult standin__host_register(const void *memory, uint64_t bytes)
{
    uintptr_t begin = (uintptr_t)memory;
    if (!memory || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = first_after(begin); i < n_blocks && blocks[i]->begin < begin + bytes; i++)
        if (!blocks[i]->gone)
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (bytes > lockable - registered_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (void)add(begin, bytes, BLOCK_PINNED);
    registered_bytes += bytes;
    return CUDA_SUCCESS;
}

void standin__host_unregister(const void *memory)
{
    standin_block *block = must_begin((uintptr_t)memory, BLOCK_PINNED, "registered");
    take_back(block);
    registered_bytes -= block->end - block->begin;
    remove_at(first_after(block->begin)); /* the caller's still */
}

/* --------------------------------------------------------------------------- virtual memory -- */

static void must_be_granules(CUdeviceptr address, uint64_t bytes)
{
    if (!bytes || bytes % STANDIN_GRANULE || address % STANDIN_GRANULE)
        standin__die("%llu bytes at %p are not whole granules of %d bytes",
                     (unsigned long long)bytes, (void *)(uintptr_t)address, STANDIN_GRANULE);
}

CUresult standin__address_reserve(CUdeviceptr *address, uint64_t bytes)
{
    must_be_granules(0, bytes);
    char *memory = new_pages(bytes + STANDIN_GRANULE, PROT_NONE);
    if (!memory)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t before = (uint64_t)-(uintptr_t)memory % STANDIN_GRANULE;
    char *begin = memory + before;
    if (before)
        (void)munmap(memory, before);
    (void)munmap(begin + bytes, STANDIN_GRANULE - before);
    reserved = standin__grown(reserved, &reserved_capacity, n_reserved + 1, sizeof *reserved);
    reserved[n_reserved++] = (range){(uintptr_t)begin, (uintptr_t)begin + bytes};
    reserved_bytes += bytes;
    *address = (CUdeviceptr)(uintptr_t)begin;
    return CUDA_SUCCESS;
}

void standin__address_free(CUdeviceptr address, uint64_t bytes)
{
    uintptr_t begin = (uintptr_t)address, end = begin + bytes;
    size_t r = 0;
    while (r < n_reserved && reserved[r].begin != begin)
        r++;
    if (r == n_reserved || reserved[r].end != end)
        standin__die("%llu bytes at %p were not reserved so", (unsigned long long)bytes,
                     (void *)begin);
    for (size_t i = first_after(begin); i < n_blocks && blocks[i]->begin < end; i++)
        if (!blocks[i]->gone)
            standin__die("%p is still mapped (call %u)", (void *)blocks[i]->begin,
                         blocks[i]->given);
    reserved[r] = reserved[--n_reserved];
    reserved_bytes -= bytes;
    keep(begin, end);
}

static standin_handle *handle_of(CUmemGenericAllocationHandle handle)
{
    standin_handle *h = (standin_handle *)(uintptr_t)handle;
    standin__object_check(OBJECT_HANDLE, h);
    if (h->is_released)
        standin__die("the handle was already released");
    return h;
}

static void free_if_unused(standin_handle *handle)
{
    if (!handle->is_released || handle->mapped)
        return;
    device_bytes -= handle->bytes;
    standin__object_free(OBJECT_HANDLE, handle);
}

CUresult standin__handle_create(CUmemGenericAllocationHandle *handle, uint64_t bytes)
{
    must_be_granules(0, bytes);
    if (!fits(bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    standin_handle *h = standin__new(sizeof *h);
    h->bytes = bytes;
    device_bytes += bytes;
    standin__object_add(OBJECT_HANDLE, h);
    *handle = (CUmemGenericAllocationHandle)(uintptr_t)h;
    return CUDA_SUCCESS;
}

void standin__handle_release(CUmemGenericAllocationHandle handle)
{
    standin_handle *h = handle_of(handle);
    h->is_released = true;
    free_if_unused(h);
}

CUresult standin__map(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle)
{
    uintptr_t begin = (uintptr_t)address, end = begin + bytes;
    standin_handle *h = handle_of(handle);
    must_be_granules(address, bytes);
    if (h->bytes != bytes || h->mapped)
        standin__die("the handle has %llu bytes and is %smapped; %llu were asked for",
                     (unsigned long long)h->bytes, h->mapped ? "" : "not ",
                     (unsigned long long)bytes);
    size_t r = 0;
    while (r < n_reserved && (begin < reserved[r].begin || end > reserved[r].end))
        r++;
    if (r == n_reserved)
        standin__die("%p is not reserved", (void *)begin);
    h->mapped = add(begin, bytes, BLOCK_MAPPED);
    h->mapped->handle = h;
    return CUDA_SUCCESS;
}

/* Calls `use` for every mapping in the range, which they must fill. */
static void each_mapping(CUdeviceptr address, uint64_t bytes, void (*use)(standin_block *block))
{
    uintptr_t at = (uintptr_t)address, end = at + bytes;
    while (at < end) {
        standin_block *block = must_begin(at, BLOCK_MAPPED, "mapped");
        if (block->end > end)
            standin__die("the range ends within the mapping at %p", (void *)at);
        at = block->end;
        use(block);
    }
}

static void give_access(standin_block *block)
{
    uint64_t bytes = block->end - block->begin;
    if (block->has_access)
        return;
    if (mprotect((void *)block->begin, bytes, PROT_READ | PROT_WRITE))
        standin__die("the stand-in cannot open %p", (void *)block->begin);
    memset((void *)block->begin, STANDIN_POISON, bytes);
    block->has_access = true;
}

static void unmap_one(standin_block *block)
{
    standin_handle *handle = block->handle;
    take_back(block);
    close_pages(block->begin, block->end);
    handle->mapped = NULL;
    free_if_unused(handle);
}

void standin__set_access(CUdeviceptr address, uint64_t bytes)
{
    each_mapping(address, bytes, give_access);
}

void standin__unmap(CUdeviceptr address, uint64_t bytes)
{
    each_mapping(address, bytes, unmap_one);
}

/* ------------------------------------------------------------------------------ all of it -- */

void standin__memory_set_lockable(uint64_t bytes)
{
    lockable = bytes > registered_bytes ? bytes : registered_bytes;
}

uint64_t standin__memory_live(void)
{
    return device_bytes + host_bytes + reserved_bytes + managed_bytes + registered_bytes;
}

static void unmap_range(range r)
{
    (void)munmap((void *)r.begin, round_up(r.end - r.begin, PAGE));
}

void standin__memory_reset(void)
{
    for (size_t i = 0; i < n_blocks; i++) {
        const standin_block *b = blocks[i];
        if (!b->gone && b->kind != BLOCK_MAPPED && b->kind != BLOCK_PINNED)
            unmap_range((range){b->begin, b->end});
        free(blocks[i]);
    }
    for (size_t i = 0; i < n_reserved; i++)
        unmap_range(reserved[i]);
    for (size_t i = 0; i < KEPT; i++)
        if (kept[i].end)
            unmap_range(kept[i]);
    memset(kept, 0, sizeof kept);
    free(blocks);
    free(reserved);
    blocks = NULL;
    reserved = NULL;
    n_blocks = blocks_capacity = n_reserved = reserved_capacity = 0;
    device_bytes = host_bytes = reserved_bytes = managed_bytes = registered_bytes = 0;
    lockable = UINT64_MAX;
    capacity = usual_capacity;
}
