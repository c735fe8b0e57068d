/* Opening a store by name, and the wrappers through which both kinds are used. */
#include "store/store.h"

#include "base/error.h"
#include "base/fault.h"
#include "base/lock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

static spw__fault read_countdown, write_countdown;

uint64_t spw__store_fail_read(uint64_t nth)
{
    return atomic_exchange(&read_countdown, nth);
}

uint64_t spw__store_fail_write(uint64_t nth)
{
    return atomic_exchange(&write_countdown, nth);
}

int spw__store_open(const spw__store_config *config, spw__store **store)
{
    if (!config->name)
        return spw__error(SPW_EINVAL, "a store needs a name: use ram or file:PATH");
    if (strcmp(config->name, "ram") == 0)
        return spw__store_ram_open(config, store);
    if (strncmp(config->name, "file:", 5) == 0 && config->name[5])
        return spw__store_file_open(config, config->name + 5, store);
    return spw__error(SPW_EINVAL, "store %s is not known: use ram or file:PATH", config->name);
}

void spw__store_close(spw__store *store)
{
    if (store)
        store->ops->close(store);
}

int spw__store_grow(spw__store *store, uint64_t slot_bytes, uint64_t n_slots)
{
    spw__lock_assert_none();
    if (n_slots <= store->n_slots && slot_bytes == store->slot_bytes)
        return 0;
    if (n_slots > INT64_MAX / slot_bytes)
        return spw__error(SPW_EINVAL, "a store cannot have %" PRIu64 " slots of %" PRIu64 " bytes",
                          n_slots, slot_bytes);
    uint64_t before = store->slot_bytes;
    store->slot_bytes = slot_bytes;
    int rc = store->ops->grow(store, n_slots);
    if (rc < 0)
        store->slot_bytes = before;
    else
        store->n_slots = n_slots;
    return rc;
}

void *spw__store_slot(spw__store *store, uint64_t slot)
{
    return store->ops->slot(store, slot);
}

static void start(spw__store *store, spw__store_io *io, bool fault)
{
    spw__lock_assert_none();
    if (fault) {
        io->result = SPW_EIO;
        io->os_error = EIO;
        io->done = true;
        return;
    }
    store->ops->start(store, io);
}

void spw__store_start_read(spw__store *store, spw__store_io *io, uint64_t slot, void *memory)
{
    *io = (spw__store_io){.store = store, .memory = memory, .slot = slot};
    start(store, io, spw__fault_is_due(&read_countdown));
}

void spw__store_start_write(spw__store *store, spw__store_io *io, uint64_t slot, const void *memory)
{
    /* A write only reads `memory`; one field serves both directions. */
    *io = (spw__store_io){
        .store = store, .memory = (void *)(uintptr_t)memory, .slot = slot, .write = true};
    start(store, io, spw__fault_is_due(&write_countdown));
}

int spw__store_wait(spw__store *store, spw__store_io *io)
{
    spw__lock_assert_none();
    return store->ops->wait(store, io);
}

uint64_t spw__store_host_bytes(const spw__store *store)
{
    return store->addressable ? store->n_slots * store->slot_bytes : 0;
}
