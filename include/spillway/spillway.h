/*
 * spillway.h - a paged optimizer: Adam's moments rest in host RAM or on disk and come to the
 * device only while a step needs them.
 *
 * The nouns, in the order a program meets them:
 *
 *   spw_device   where parameters, gradients and activations live: a GPU ("cuda:0"), or "cpu", an
 *                arena of RAM that can run out.
 *   spw_pager    keeps optimizer state in a store (RAM or a file) and some of it on the device;
 *                gives device memory back the moment somebody else needs it.
 *   spw_optim    AdamW over registered parameters; its state lives in a pager.
 *
 *   spw_device *dev;  spw_pager *pager;  spw_optim *opt;
 *   spw_device_open("cpu", &device_config, &dev);
 *   spw_pager_create(dev, &pager_config, &pager);
 *   spw_optim_create(pager, &optim_config, &opt);
 *   spw_optim_add(opt, &(spw_param){.name = "w", .data = w, .grad = g, .n = n,
 *                                   .type = SPW_FP32, .grad_type = SPW_FP32});
 *   for (;;) {
 *       spw_malloc(pager, bytes, &activations);      // state gives way when the device is full
 *       ... forward, backward ...
 *       spw_free(pager, activations);
 *       spw_optim_step(opt, &(spw_step){.lr = 1e-3, .max_norm = 1.0});
 *   }
 *   spw_optim_destroy(opt);  spw_pager_destroy(pager);  spw_device_close(dev);
 *
 * What is computed does not depend on what was paged: the same bits for any budget, store, way to
 * move, page size and thread count.
 *
 * Errors. Functions that can fail return 0, or one of the negative SPW_E... codes below; the
 * details (which file, tensor, byte) are in spw_last_error() of the calling thread. The library
 * never exits, prints, or installs a signal handler. Unless a function says otherwise, a failed
 * call changes nothing. Out of memory is an ordinary event: free something and call again.
 *
 * Threads. A device may be used from any thread. spw_malloc, spw_free, spw_pager_reclaim,
 * spw_pager_reserve and spw_pager_stats may be called from any thread at any time, also while a
 * step runs. All other calls on one pager or optimizer are for one thread at a time.
 *
 * CUDA graphs. A step or a norm on a stream that is being captured is refused (SPW_ENOTSUP): what
 * moves is decided anew in each step, so a step is taken between replays. Everything else may be
 * called while a stream is captured, by this thread or another and in any capture mode, and leaves
 * the capture valid: memory is given and state gives way at once, by the library's own streams, and
 * none of it becomes part of the graph. Two exceptions: open devices before, and do not wait
 * (spw_device_sync) for a stream that is captured.
 *
 * Structs that configure begin with `size`: let the ..._default() function fill them, then change
 * what you need. A zero `size` is refused.
 */
#ifndef SPW_SPILLWAY_H
#define SPW_SPILLWAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SPW_API __attribute__((visibility("default")))
#else
#define SPW_API
#endif

/* ---------------------------------------------------------------------------------- errors -- */

/* Code, number (frozen), text. */
#define SPW_ERRORS(X)                                                                              \
    X(SPW_OK, 0, "success")                                                                        \
    X(SPW_EINVAL, -1, "invalid argument")                                                          \
    X(SPW_ENOMEM, -2, "out of device memory")                                                      \
    X(SPW_EHOSTMEM, -3, "out of host memory")                                                      \
    X(SPW_EIO, -4, "input/output error")                                                           \
    X(SPW_ENOSPC, -5, "no space left on the disk")                                                 \
    X(SPW_EEXIST, -6, "already exists")                                                            \
    X(SPW_ENOENT, -7, "not found")                                                                 \
    X(SPW_EFORMAT, -8, "malformed file")                                                           \
    X(SPW_ENOTSUP, -9, "not supported here")                                                       \
    X(SPW_EFAILED, -10, "the pager failed earlier")                                                \
    X(SPW_EBUSY, -11, "in use")

enum spw_error {
#define SPW_ERROR_ENUM(name, number, text) name = number,
    SPW_ERRORS(SPW_ERROR_ENUM)
#undef SPW_ERROR_ENUM
};

/* The fixed text of a code; "unknown error" for a number that is none. Never NULL. */
SPW_API const char *spw_strerror(int code);

/* What the last failed call of this thread had to say, one line without a newline; "" if no call
 * failed yet. Valid until the thread's next call. (A call that succeeds after it got over an error
 * of its own, as spw_malloc may, can leave that error's text.) */
SPW_API const char *spw_last_error(void);

/* "MAJOR.MINOR.PATCH". */
SPW_API const char *spw_version(void);

/* ---------------------------------------------------------------------------------- device -- */

typedef struct spw_device spw_device;

typedef struct spw_device_config {
    uint32_t size;    /* sizeof(spw_device_config) */
    uint32_t threads; /* that compute steps; 0: one per core this process may run on */
    uint64_t mem;     /* bytes the device has; 0: the machine's physical memory or its control
                         group's limit, if that is less; or all of the GPU's */
} spw_device_config;

SPW_API void spw_device_config_default(spw_device_config *config);

/* Opens a device. `name` is "cpu", "cuda" (the first GPU) or "cuda:N". `config` may be NULL for the
 * defaults. The cpu device reserves address space for `mem` bytes and touches none of it until it
 * is used. A cuda device lives in the GPU's primary context, like other CUDA libraries of the
 * process; nothing of CUDA is touched before one is opened.
 * SPW_EINVAL an unknown name or number; SPW_EHOSTMEM the address space or the threads cannot be
 * had; SPW_ENOTSUP no NVIDIA driver, a GPU without virtual memory management, or a library that
 * was built without CUDA. */
SPW_API int spw_device_open(const char *name, const spw_device_config *config, spw_device **device);

/* Closes a device and gives its memory back. NULL is allowed. Pagers on it must be gone. */
SPW_API void spw_device_close(spw_device *device);

typedef struct spw_device_stats {
    uint64_t capacity_bytes; /* what the device has */
    uint64_t in_use_bytes;   /* allocated now, page frames included */
    uint64_t peak_bytes;     /* the most that was ever in use */
    uint64_t frame_bytes;    /* of in_use_bytes: page frames, ring included */
} spw_device_stats;

SPW_API int spw_device_stats_get(spw_device *device, spw_device_stats *stats);

/* Copies between host and device memory, either way, or within one. Done on return; what was queued
 * on the caller's streams before is not waited for. */
SPW_API int spw_device_copy(spw_device *device, void *dst, const void *src, uint64_t bytes);

/* Waits until the steps and copies that were queued on `stream` (NULL: the default stream) are
 * done, and what they asked of the device's own streams. */
SPW_API int spw_device_sync(spw_device *device, void *stream);

typedef struct spw_link_rates {
    double in_gbs;     /* host to device alone, 1e9 bytes a second */
    double out_gbs;    /* device to host alone */
    double both_gbs;   /* both at once, the sum of the two */
    double device_gbs; /* within the device, 256 MiB a copy, bytes read and written */
} spw_link_rates;

/* Measures copies of `copy_bytes` (4 KiB to 256 MiB): the limits that paging is held to. Takes 512
 * MiB of device memory and as much pinned host memory for a few seconds at most.
 * SPW_ENOMEM, SPW_EHOSTMEM: there is not as much. */
SPW_API int spw_device_link(spw_device *device, uint64_t copy_bytes, spw_link_rates *rates);

/* ----------------------------------------------------------------------------------- pager -- */

typedef struct spw_pager spw_pager;

/* How state moves between store and device. */
typedef enum spw_paging {
    SPW_PAGING_AUTO = 0,    /* cuda: copy; cpu: copy when spw_device_config.mem or a cap on the
                               resident set was given, or the store is a file; else mapped */
    SPW_PAGING_COPY = 1,    /* through a ring of page frames; some pages stay on the device */
    SPW_PAGING_MAPPED = 2,  /* steps read and write the store in place (ram store only) */
    SPW_PAGING_UNIFIED = 3, /* CUDA managed memory, prefetched page by page: the original mechanism.
                               What is resident is the driver's to say: our figures for it are 0.
                               SPW_ENOTSUP where host and device may not touch it at once */
    SPW_PAGING_OFF = 4,     /* all state stays on the device and never gives way */
} spw_paging;

#define SPW_ALL_STATE UINT64_MAX

typedef struct spw_pager_config {
    uint32_t size;        /* sizeof(spw_pager_config) */
    spw_paging paging;    /* AUTO */
    const char *store;    /* "ram" (default) or "file:PATH"; PATH must not exist, it is unlinked
                             at once and its space is gone when the pager is */
    uint64_t state_mem;   /* cap on the resident set in bytes; SPW_ALL_STATE: no cap (default) */
    double state_percent; /* cap on it in percent of the state, 0..100; < 0: unused (default) */
    double occupancy;     /* share of the device that may be in use at the peak, by anybody, for
                             the resident set to grow: 0 < f <= 1, default 0.90 */
    uint64_t page_bytes;  /* a power of two from 64 KiB to 16 MiB; 0 (default): the largest that
                             is at most state / 64, within those limits */
    uint64_t host_mem;    /* cap on the ram store in bytes; 0 (default): none */
    uint32_t ring_frames; /* page frames that are always there: 3..64; 0 (default): 4 for ram,
                             8 for a file */
    uint32_t io_depth;    /* file store: requests in flight, at most 256; 0 (default): 4 */
    uint64_t pinned_mem;  /* cuda: cap on pinned host memory in bytes; a larger ram store, and one
                             whose pinning the system refuses, is reached through a pinned ring of
                             ring_frames pages; 0 (default): no cap */
} spw_pager_config;

SPW_API void spw_pager_config_default(spw_pager_config *config);

/* The size of a page that a pager with this config (NULL: the defaults) takes for so much state. */
SPW_API uint64_t spw_pager_page_bytes(const spw_pager_config *config, uint64_t state_bytes);

/* Creates a pager on a device, which must outlive it. `config` may be NULL for the defaults. No
 * memory is taken before the first step needs it; a file store's file is made here.
 * SPW_EINVAL a field out of range (named); SPW_EEXIST, SPW_ENOENT, SPW_EIO the store's file;
 * SPW_ENOTSUP a way to move that this device or store does not have. */
SPW_API int spw_pager_create(spw_device *device, const spw_pager_config *config, spw_pager **pager);

/* Frees all frames, the store and the pager. NULL is allowed. Its optimizer must be gone; memory
 * from spw_malloc stays valid until it is freed by spw_free with another pager of the device or
 * the device is closed. */
SPW_API void spw_pager_destroy(spw_pager *pager);

/* Allocates device memory (64-byte aligned, contents undefined). When the device is full, state is
 * given back to it until the allocation fits. SPW_ENOMEM when there is no more to give; with
 * SPW_PAGING_OFF nothing is given. Zero bytes give a valid pointer. */
SPW_API int spw_malloc(spw_pager *pager, uint64_t bytes, void **pointer);

/* Frees what spw_malloc gave. NULL is allowed. */
SPW_API void spw_free(spw_pager *pager, void *pointer);

/* Gives at least `bytes` of resident state back to the device if there is that much: pages that
 * the store has already are dropped, others are saved first. `*freed` (may be NULL) is what was
 * given back, 0 if nothing could be. For allocators that are not spw_malloc. A page that cannot
 * be saved stays on the device; the call still succeeds and `*freed` is less. A stream capture
 * stays valid, whoever captures. */
SPW_API int spw_pager_reclaim(spw_pager *pager, uint64_t bytes, uint64_t *freed);

/* spw_pager_reclaim for an allocator that knows a GPU (N of cuda:N) and no pager: asks that GPU's
 * pagers of this process, one after the other, until `bytes` are given back. Any thread; may be
 * called with locks of an allocator held, and during a stream capture, which stays valid. Asked
 * from within itself it gives nothing. */
SPW_API int spw_reclaim(int32_t ordinal, uint64_t bytes, uint64_t *freed);

/* Says that `bytes` beyond what is in use now will be needed: they are made free now if state can
 * give way, and kept out of the budget until the next call. 0 takes the word back. */
SPW_API int spw_pager_reserve(spw_pager *pager, uint64_t bytes);

typedef struct spw_pager_stats {
    uint64_t state_bytes;    /* all pages, padding included */
    uint64_t page_bytes;     /* one page */
    uint64_t n_pages;        /* state_bytes / page_bytes */
    uint64_t ring_bytes;     /* the frames that are always there */
    uint64_t budget_bytes;   /* what may be resident, as of the last step */
    uint64_t resident_bytes; /* what is resident now */
    uint64_t bytes_in;       /* store to device, since creation */
    uint64_t bytes_out;      /* device to store, since creation */
    uint64_t bytes_cleaned;  /* of bytes written: ahead of need, between steps */
    uint64_t reclaims;       /* how often state was given back on demand */
    uint64_t bytes_reclaimed;
    uint64_t host_bytes;   /* RAM that the store holds */
    uint64_t pinned_bytes; /* host memory that is pinned for a GPU: all of the ram store, or where a
                              limit refuses that the pinned ring, or 0 where that is refused too */
    uint64_t steps;        /* sweeps done */
    spw_paging paging;     /* the way in use, AUTO resolved */
    int32_t direct_io;     /* file store: 1 if the page cache is bypassed */
} spw_pager_stats;

SPW_API int spw_pager_stats_get(spw_pager *pager, spw_pager_stats *stats);

/* ---------------------------------------------------------- the hook, a library of its own -- */

/* What spw_hook_install reached. */
enum spw_hook_reach {
    SPW_HOOK_RUNTIME = 1, /* cudaMalloc and cudaMallocAsync, as the process's libraries call them */
    SPW_HOOK_EXPANDABLE = 2, /* cuMemCreate, as PyTorch's expandable segments look it up, once, at
                                their first use: the hook came before CUDA was used here */
    SPW_HOOK_PRELOADED = 4,  /* libspillway_hook.so came by LD_PRELOAD, under all from the start */
};

/* Of libspillway_hook.so. Puts state under the allocations of the whole process: when cudaMalloc,
 * cudaMallocAsync or cuMemCreate answer out of memory, spw_reclaim gives back what they asked for
 * and they are called again. Changes the import tables of libraries that are loaded; may be called
 * again when there are more, and need not be where the hook was preloaded. Returns the sum of what
 * was reached; 0: no library here allocates through the CUDA runtime. */
int spw_hook_install(void);

/* Of libspillway_hook.so: calls that succeeded when they were repeated, the bytes given back for
 * them, and the milliseconds that giving back took, since the process began. */
void spw_hook_counts(uint64_t *n_repeated, uint64_t *bytes, double *ms);

/* ------------------------------------------------------------------------------- optimizer -- */

typedef struct spw_optim spw_optim;

typedef enum spw_type {
    SPW_FP32 = 0,
    SPW_BF16 = 1,
    SPW_FP16 = 2, /* IEEE binary16: what comes to 65520 or more is stored as an infinity */
} spw_type;

typedef enum spw_state {
    SPW_STATE_32BIT = 0, /* m and v in fp32: 8 bytes a parameter */
    SPW_STATE_8BIT = 1,  /* codes in blocks of 256 with an fp32 absmax each, 2.03 bytes; block-wise
                            dynamic quantisation, Dettmers et al., arXiv 2110.02861 */
} spw_state;

/* Hyper-parameters of a group of parameters. AdamW: Loshchilov and Hutter, arXiv 1711.05101, with
 * the order of torch.optim.AdamW: decay first, then the update. */
typedef struct spw_group {
    uint32_t size;       /* sizeof(spw_group) */
    uint32_t pad;        /* 0 */
    double lr_scale;     /* the step's lr is multiplied by this; default 1 */
    double beta1;        /* default 0.9 */
    double beta2;        /* default 0.999 */
    double eps;          /* default 1e-8 */
    double weight_decay; /* default 0; decoupled: p *= 1 - lr * weight_decay */
} spw_group;

SPW_API void spw_group_default(spw_group *group);

typedef struct spw_optim_config {
    uint32_t size;              /* sizeof(spw_optim_config) */
    spw_state state;            /* default SPW_STATE_8BIT */
    uint64_t min_8bit_elements; /* smaller tensors keep 32-bit state; default 4096 */
    spw_group group;            /* group 0 */
} spw_optim_config;

SPW_API void spw_optim_config_default(spw_optim_config *config);

/* Creates an optimizer whose state lives in `pager`, which must outlive it; one optimizer a pager
 * (SPW_EBUSY for a second). SPW_EINVAL a hyper-parameter out of range (named). */
SPW_API int spw_optim_create(spw_pager *pager, const spw_optim_config *config, spw_optim **optim);

/* Frees the optimizer; its state can no longer be reached, and its memory is freed with the pager,
 * which takes no second optimizer. NULL is allowed. */
SPW_API void spw_optim_destroy(spw_optim *optim);

/* Adds a group of hyper-parameters; its number is returned (group 0 came with the config), or a
 * negative error. */
SPW_API int spw_optim_add_group(spw_optim *optim, const spw_group *group);

/* Changes a group's hyper-parameters from the next step on. */
SPW_API int spw_optim_set_group(spw_optim *optim, uint32_t index, const spw_group *group);

/* A parameter tensor, flattened. `data` and `grad` are device memory that the caller owns and that
 * stays where it is until spw_optim_set_pointers says otherwise. */
typedef struct spw_param {
    const char *name; /* copied; "" is allowed */
    void *data;       /* n elements of `type`; updated in place */
    const void *grad; /* n elements of `grad_type`; NULL: no gradient yet */
    uint64_t n;       /* elements; 0 is allowed */
    spw_type type;
    spw_type grad_type; /* any, whatever `type` is */
    uint32_t group;     /* index of its group */
    uint32_t bits;      /* of its state: 8 or 32 whatever its size; 0: by the optimizer's config */
} spw_param;

/* Registers a parameter, before the first step, norm, part of a state or spw_optim_lay_out, which
 * fix the layout; returns its index (0, 1, ... in order), or a negative error. SPW_EINVAL a bad
 * field, or the layout is fixed. */
SPW_API int64_t spw_optim_add(spw_optim *optim, const spw_param *param);

/* Fixes the layout and takes the store's space now, which the first step would: a full disk or a
 * cap that is too small is found before there is work to lose. No state goes to the device yet.
 * SPW_EHOSTMEM, SPW_ENOSPC: the store cannot hold the state; SPW_ENOMEM: the device has no room for
 * the tables of a step; nothing was changed, the call may be repeated. */
SPW_API int spw_optim_lay_out(spw_optim *optim);

/* Tells where a parameter and its gradient are now. A NULL gradient: the coming steps leave this
 * parameter and its state alone and touch none of its pages. */
SPW_API int spw_optim_set_pointers(spw_optim *optim, uint64_t index, void *data, const void *grad);

/* The same for all parameters at once, with the type of each gradient, which may be another than
 * before. `places` has one for every registered parameter, in order. */
typedef struct spw_place {
    void *data;
    const void *grad;
    spw_type grad_type;
    uint32_t pad; /* 0 */
} spw_place;

SPW_API int spw_optim_set_places(spw_optim *optim, const spw_place *places, uint64_t n);

typedef struct spw_step {
    double lr;         /* learning rate of this step */
    double max_norm;   /* > 0: gradients are scaled by min(1, max_norm / (norm + 1e-6)), norm over
                          all gradients (as torch.nn.utils.clip_grad_norm_); 0: no clipping */
    double grad_scale; /* gradients are multiplied by this first; 0 means 1 */
    void *stream;      /* cuda: the CUstream (cudaStream_t) that the gradients are made on and the
                          parameters are used on next, NULL the default stream; cpu: NULL */
    const float *loss_scale; /* device memory, read when the step runs: gradients are divided by it;
                                NULL: 1 */
    const float *found_inf;  /* likewise: not 0 skips the whole step; NULL: 0. Both as PyTorch's
                                torch.amp.GradScaler hands them to a fused optimizer */
} spw_step;

/* One step over all parameters that have a gradient. On the cpu device it is complete on return; on
 * a cuda device it is queued on `stream` and the host does not wait for it. Gradients are read, not
 * changed.
 *
 * Non-finite gradients: with max_norm > 0 and a norm that is not finite, and where *found_inf says
 * so, the whole step is skipped (nothing changes, no step is counted, and spw_optim_info.skipped
 * says so); without clipping each
 * element whose gradient is not finite is skipped (its p, m and v stay; 8-bit m and v are carried
 * to their block's new absmax), the others are updated.
 *
 * SPW_ENOMEM: the first step could not place the ring (or, with SPW_PAGING_OFF, the state);
 * nothing was changed, the call may be repeated. SPW_EHOSTMEM, SPW_ENOSPC: the store cannot hold
 * the state; likewise. SPW_ENOTSUP: `stream` is being captured into a CUDA graph (or is the default
 * stream while one that it waits for is); likewise. SPW_EIO: a page could not be read or written in
 * the middle of the step;
 * some parameters are updated and some are not, and the pager answers SPW_EFAILED from then on. */
SPW_API int spw_optim_step(spw_optim *optim, const spw_step *step);

/* Computes the norm of all gradients, as clipping does, in double: a fixed tree over (parameter in
 * order of registration, block of 4096 elements). grad_scale is not applied. Cuda: runs on the
 * default stream; SPW_ENOTSUP while a stream that it waits for is being captured. */
SPW_API int spw_optim_grad_norm(spw_optim *optim, double *norm);

typedef struct spw_optim_info {
    uint64_t n_params;   /* registered tensors */
    uint64_t n_elements; /* their elements */
    uint64_t steps;      /* taken, skipped ones not counted */
    uint64_t skipped;    /* steps that were skipped */
    double grad_norm;    /* of the last step with max_norm > 0, after grad_scale, before clipping */
} spw_optim_info;

SPW_API int spw_optim_info_get(spw_optim *optim, spw_optim_info *info);

/* The parts of one parameter's state. */
typedef enum spw_part {
    SPW_PART_M = 0,        /* first moment: n floats, or n codes (uint8) when 8-bit */
    SPW_PART_V = 1,        /* second moment, likewise */
    SPW_PART_ABSMAX_M = 2, /* 8-bit only: ceil(n / 256) floats */
    SPW_PART_ABSMAX_V = 3,
} spw_part;

/* Bytes of a part; 0 if the parameter has no such part (its state is 32-bit). Negative on error. */
SPW_API int64_t spw_optim_part_bytes(spw_optim *optim, uint64_t index, spw_part part);

/* Copies a part out to host memory, or in from it, page by page, without more residency than
 * before. `bytes` must be what spw_optim_part_bytes says. Setting state is allowed before and
 * between steps. Before the first step they take what it would: errors as spw_optim_step. */
SPW_API int spw_optim_get_part(spw_optim *optim, uint64_t index, spw_part part, void *host,
                               uint64_t bytes);
SPW_API int spw_optim_set_part(spw_optim *optim, uint64_t index, spw_part part, const void *host,
                               uint64_t bytes);

/* How many steps a parameter has had; bias correction follows it. */
SPW_API int spw_optim_get_step(spw_optim *optim, uint64_t index, uint64_t *step);
SPW_API int spw_optim_set_step(spw_optim *optim, uint64_t index, uint64_t step);

/* The 256 values of an 8-bit code: of m (`is_signed` 1) or v (0), ascending; value = table[code] *
 * absmax. They are bitsandbytes' dynamic map. */
SPW_API const float *spw_code_table(int is_signed);

#ifdef __cplusplus
}
#endif

#endif
