/* Opening a device by name, and the wrappers through which all of them are used. */
#include "dev/dev.h"

#include "base/error.h"
#include "base/lock.h"

#include <stdatomic.h>
#include <string.h>

static atomic_uint_fast64_t alloc_countdown, copy_countdown;

void spw__dev_fail_alloc(uint64_t nth)
{
    atomic_store(&alloc_countdown, nth);
}

void spw__dev_fail_copy(uint64_t nth)
{
    atomic_store(&copy_countdown, nth);
}

/* True for the call that brings a countdown to zero. */
static bool fault_is_due(atomic_uint_fast64_t *countdown)
{
    uint_fast64_t left = atomic_load_explicit(countdown, memory_order_relaxed);
    while (left)
        if (atomic_compare_exchange_weak(countdown, &left, left - 1))
            return left == 1;
    return false;
}

int spw__dev_alloc(spw_device *device, uint64_t bytes, spw__dev_use use, void **pointer)
{
    spw__lock_assert_none();
    if (fault_is_due(&alloc_countdown))
        return spw__error(SPW_ENOMEM, "out of device memory: a fault that a test asked for");
    return device->ops->alloc(device, bytes, use, pointer);
}

void spw__dev_free(spw_device *device, void *pointer)
{
    spw__lock_assert_none();
    if (pointer)
        device->ops->free(device, pointer);
}

void spw__dev_usage_get(spw_device *device, spw__dev_usage *usage)
{
    device->ops->usage(device, usage);
}

void spw__dev_reset_other_peak(spw_device *device)
{
    device->ops->reset_other_peak(device);
}

int spw__dev_copy(spw_device *device, void *dst, const void *src, uint64_t bytes, void *stream)
{
    spw__lock_assert_none();
    if (fault_is_due(&copy_countdown))
        return spw__error(SPW_EIO, "copy: a fault that a test asked for");
    return device->ops->copy(device, dst, src, bytes, stream);
}

int spw__dev_zero(spw_device *device, void *dst, uint64_t bytes, void *stream)
{
    spw__lock_assert_none();
    return device->ops->zero(device, dst, bytes, stream);
}

void spw_device_config_default(spw_device_config *config)
{
    *config = (spw_device_config){.size = sizeof *config};
}

static bool names_cuda(const char *name)
{
    return strcmp(name, "cuda") == 0 || strncmp(name, "cuda:", 5) == 0;
}

int spw_device_open(const char *name, const spw_device_config *config, spw_device **device)
{
    spw_device_config defaults;
    spw_device_config_default(&defaults);
    if (!name || !device)
        return spw__error(SPW_EINVAL, "spw_device_open: name and device may not be NULL");
    if (!config)
        config = &defaults;
    if (config->size != sizeof *config)
        return spw__error(SPW_EINVAL,
                          "spw_device_config.size is %u, not %zu: call spw_device_config_default",
                          config->size, sizeof *config);
    if (names_cuda(name))
        return spw__error(SPW_ENOTSUP,
                          "device %s: not in this version, it comes with the Python package "
                          "spillway; use cpu",
                          name);
    if (strcmp(name, "cpu") != 0)
        return spw__error(SPW_EINVAL, "device %s is not known: use cpu", name);
    return spw__dev_cpu_open(config, device);
}

void spw_device_close(spw_device *device)
{
    if (device)
        device->ops->close(device);
}

int spw_device_stats_get(spw_device *device, spw_device_stats *stats)
{
    if (!device || !stats)
        return spw__error(SPW_EINVAL, "spw_device_stats_get: device and stats may not be NULL");
    spw__dev_usage usage;
    spw__dev_usage_get(device, &usage);
    *stats = (spw_device_stats){.capacity_bytes = usage.capacity,
                                .in_use_bytes = usage.in_use,
                                .peak_bytes = usage.peak,
                                .frame_bytes = usage.frames};
    return 0;
}
