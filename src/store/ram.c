/* The ram store: one run of address space, whose pages the system gives when first written. */
#include "store/store.h"

#include "base/error.h"
#include "base/mem.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct ram_store {
    spw__store store; /* first: a spw__store is a ram_store */
    char *memory;
    uint64_t bytes;    /* of the run */
    uint64_t host_mem; /* cap; 0: none */
} ram_store;

static void ram_close(spw__store *store)
{
    ram_store *ram = (ram_store *)store;
    spw__unmap(ram->memory, ram->bytes);
    free(ram);
}

static int check_room(const ram_store *ram, uint64_t bytes)
{
    if (ram->host_mem && bytes > ram->host_mem)
        return spw__error(SPW_EHOSTMEM,
                          "the optimizer state needs %" PRIu64
                          " bytes of host memory, over the cap of %" PRIu64
                          " (--host-mem): raise it or use --store file:PATH",
                          bytes, ram->host_mem);
    /* While grow copies, what was there is there twice. */
    uint64_t more = bytes - ram->bytes > ram->bytes ? bytes - ram->bytes : ram->bytes;
    uint64_t available = spw__memory_available();
    if (more > available)
        return spw__error(SPW_EHOSTMEM,
                          "the optimizer state needs %" PRIu64 " bytes of host memory and %" PRIu64
                          " are available: use --store file:PATH",
                          bytes, available);
    return 0;
}

static int ram_grow(spw__store *store, uint64_t n_slots)
{
    ram_store *ram = (ram_store *)store;
    uint64_t bytes = n_slots * store->slot_bytes;
    int rc = check_room(ram, bytes);
    if (rc < 0)
        return rc;
    char *memory = spw__map(bytes);
    if (!memory)
        return SPW_EHOSTMEM;
    if (ram->memory)
        memcpy(memory, ram->memory, (size_t)ram->bytes);
    spw__unmap(ram->memory, ram->bytes);
    ram->memory = memory;
    ram->bytes = bytes;
    return 0;
}

static void *ram_slot(spw__store *store, uint64_t slot)
{
    ram_store *ram = (ram_store *)store;
    return ram->memory + slot * store->slot_bytes;
}

static const spw__store_ops ram_ops = {
    .name = "ram",
    .close = ram_close,
    .grow = ram_grow,
    .slot = ram_slot,
};

int spw__store_ram_open(const spw__store_config *config, spw__store **store)
{
    ram_store *ram = spw__calloc(1, sizeof *ram);
    if (!ram)
        return SPW_EHOSTMEM;
    ram->store.ops = &ram_ops;
    ram->store.addressable = true;
    ram->host_mem = config->host_mem;
    *store = &ram->store;
    return 0;
}
