/*
 * store.h - where state rests: numbered slots of one size, in RAM or in a file.
 *
 * What it is not: it knows no pages' states and no device; it moves bytes between a slot and host
 * memory. Called by the pager only, through the spw__store_... wrappers (asserts, faults). Slots
 * are read and written by the sweep's thread and by reclaiming threads at once, never the same
 * slot from two threads; so every function but grow and close is safe from any thread.
 *
 * ram   anonymous memory, huge pages where they can be had, touched when first written; slots are
 *       addressable (spw__store_slot), so a device copies from and to them directly.
 * file  one file, unlinked as soon as it is made, its space taken by spw__store_grow so that a full
 *       disk is an error before a step and never in one; direct I/O where the file system has it.
 *       Asynchronous: start, then wait. io_uring where the kernel allows it, else threads.
 */
#ifndef SPW_STORE_STORE_H
#define SPW_STORE_STORE_H

#include <spillway/spillway.h>

#include <stdbool.h>

typedef struct spw__store spw__store;
typedef struct spw__store_ops spw__store_ops;

typedef struct spw__store_config {
    const char *name;  /* "ram" or "file:PATH" */
    uint64_t host_mem; /* cap of the ram store, bytes; 0: none */
    uint32_t io_depth; /* file: requests in flight, >= 1 */
} spw__store_config;

/* One transfer in flight; the caller owns it (embedded in its own struct) and may start another
 * with it once waited for. The fields belong to the store. */
typedef struct spw__store_io {
    struct spw__store_io *next; /* in the store's queue */
    spw__store *store;
    void *memory;
    uint64_t slot;
    int result;   /* SPW_... once done */
    int os_error; /* errno of it */
    bool write;
    bool done; /* under the store's lock */
} spw__store_io;

struct spw__store {
    const spw__store_ops *ops;
    uint64_t slot_bytes; /* 0 until the first grow */
    uint64_t n_slots;    /* that grow has made */
    bool addressable;    /* spw__store_slot works; read and write are then not used */
    bool direct_io;
};

struct spw__store_ops {
    const char *name;
    void (*close)(spw__store *store);
    int (*grow)(spw__store *store, uint64_t n_slots);    /* slot_bytes is set already */
    void *(*slot)(spw__store *store, uint64_t slot);     /* NULL unless addressable */
    void (*start)(spw__store *store, spw__store_io *io); /* NULL if addressable */
    int (*wait)(spw__store *store, spw__store_io *io);   /* NULL if addressable */
};

int spw__store_open(const spw__store_config *config, spw__store **store);
void spw__store_close(spw__store *store); /* NULL is allowed */

/* Makes at least `n_slots` slots (never fewer than there are), with zero bytes in new ones. Slots
 * that exist may move in address. `slot_bytes` is a multiple of 4096 and the same in every call
 * (the page size is known only when all parameters are, after the store was opened). SPW_EHOSTMEM
 * over host_mem or out of RAM, SPW_ENOSPC; then nothing changed, slot_bytes neither. */
int spw__store_grow(spw__store *store, uint64_t slot_bytes, uint64_t n_slots);

/* Address of a slot of an addressable store; stable until the next grow. */
void *spw__store_slot(spw__store *store, uint64_t slot);

/* Starts moving a slot to (read) or from (write) `memory`, slot_bytes long and 4096-byte aligned,
 * which must stay until spw__store_wait(io) returned. Never fails here: wait tells. At most
 * io_depth requests are served at once; more queue up. */
void spw__store_start_read(spw__store *store, spw__store_io *io, uint64_t slot, void *memory);
void spw__store_start_write(spw__store *store, spw__store_io *io, uint64_t slot,
                            const void *memory);
int spw__store_wait(spw__store *store, spw__store_io *io);

/* RAM that the store holds now. */
uint64_t spw__store_host_bytes(const spw__store *store);

int spw__store_ram_open(const spw__store_config *config, spw__store **store);
int spw__store_file_open(const spw__store_config *config, const char *path, spw__store **store);

/* Tests: the n-th (from 1) read or write started from now on fails, once, with SPW_EIO; 0: off.
 * Returns what was left of the count before: 0 if that call came. */
uint64_t spw__store_fail_read(uint64_t nth);
uint64_t spw__store_fail_write(uint64_t nth);

#endif
