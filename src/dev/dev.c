/* Opening a device by name, and the wrappers through which all of them are used. */
#include "dev/dev.h"

#include "base/error.h"
#include "base/fault.h"
#include "base/lock.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static spw__fault alloc_countdown, copy_countdown;

uint64_t spw__dev_fail_alloc(uint64_t nth)
{
    return atomic_exchange(&alloc_countdown, nth);
}

uint64_t spw__dev_fail_copy(uint64_t nth)
{
    return atomic_exchange(&copy_countdown, nth);
}

int spw__dev_alloc(spw_device *device, uint64_t bytes, spw__dev_use use, void **pointer)
{
    spw__lock_assert_none();
    if (spw__fault_is_due(&alloc_countdown))
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
    if (spw__fault_is_due(&copy_countdown))
        return spw__error(SPW_EIO, "copy: a fault that a test asked for");
    return device->ops->copy(device, dst, src, bytes, stream);
}

int spw__dev_zero(spw_device *device, void *dst, uint64_t bytes, void *stream)
{
    spw__lock_assert_none();
    if (spw__fault_is_due(&copy_countdown))
        return spw__error(SPW_EIO, "fill: a fault that a test asked for");
    return device->ops->zero(device, dst, bytes, stream);
}

int spw__dev_copy_now(spw_device *device, void *dst, const void *src, uint64_t bytes)
{
    void *stream = device->streams[SPW__DEV_GIVE];
    int rc = spw__dev_copy(device, dst, src, bytes, stream);
    return rc < 0 ? rc : spw__dev_stream_sync(device, stream);
}

int spw__dev_event_create(spw_device *device, void **event)
{
    *event = NULL;
    return device->ops->event_create ? device->ops->event_create(device, event) : 0;
}

void spw__dev_event_destroy(spw_device *device, void *event)
{
    if (event)
        device->ops->event_destroy(device, event);
}

int spw__dev_event_record(spw_device *device, void *event, void *stream)
{
    return event ? device->ops->event_record(device, event, stream) : 0;
}

int spw__dev_stream_wait(spw_device *device, void *stream, void *event)
{
    return event ? device->ops->stream_wait(device, stream, event) : 0;
}

int spw__dev_event_wait(spw_device *device, void *event)
{
    spw__lock_assert_none();
    return event ? device->ops->event_wait(device, event) : 0;
}

int spw__dev_stream_sync(spw_device *device, void *stream)
{
    spw__lock_assert_none();
    return device->ops->stream_sync ? device->ops->stream_sync(device, stream) : 0;
}

int spw__dev_pin(spw_device *device, void *memory, uint64_t bytes)
{
    return device->ops->pin ? device->ops->pin(device, memory, bytes) : 0;
}

void spw__dev_unpin(spw_device *device, void *memory)
{
    if (device->ops->unpin && memory)
        device->ops->unpin(device, memory);
}

int spw__dev_prefetch(spw_device *device, void *memory, uint64_t bytes, void *stream)
{
    spw__lock_assert_none();
    return device->ops->prefetch(device, memory, bytes, stream);
}

void spw_device_config_default(spw_device_config *config)
{
    *config = (spw_device_config){.size = sizeof *config};
}

/* "cuda" or "cuda:N". */
static bool names_cuda(const char *name, uint32_t *ordinal)
{
    *ordinal = 0;
    if (strncmp(name, "cuda", 4) != 0)
        return false;
    if (name[4] == '\0')
        return true;
    char *end;
    unsigned long value = strtoul(name + 5, &end, 10);
    bool digits = name[4] == ':' && name[5] >= '0' && name[5] <= '9' && *end == '\0';
    *ordinal = value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
    return digits;
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
    uint32_t ordinal;
    if (names_cuda(name, &ordinal))
        return spw__dev_cuda_open(ordinal, config, device);
    if (strcmp(name, "cpu") != 0)
        return spw__error(SPW_EINVAL, "device %s is not known: use cpu, cuda or cuda:N", name);
    return spw__dev_cpu_open(config, device);
}

void spw_device_close(spw_device *device)
{
    if (!device)
        return;
    if (device->kern_close)
        device->kern_close(device);
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

int spw_device_copy(spw_device *device, void *dst, const void *src, uint64_t bytes)
{
    if (!device || (bytes && (!dst || !src)))
        return spw__error(SPW_EINVAL, "spw_device_copy: device, dst and src may not be NULL");
    return bytes ? spw__dev_copy_now(device, dst, src, bytes) : 0;
}

int spw_device_sync(spw_device *device, void *stream)
{
    if (!device)
        return spw__error(SPW_EINVAL, "spw_device_sync: device is NULL");
    int rc = spw__dev_stream_sync(device, stream);
    for (int i = 0; rc == 0 && i < SPW__DEV_STREAMS; i++)
        rc = spw__dev_stream_sync(device, device->streams[i]);
    return rc;
}
