/* How much memory there is to take: the system's word, and the control groups' (cgroup v2). */
#include "base/mem.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MOST_PATH = 4096 };

/* The number after `key` on a line of its own; "" finds a file's only number. */
static bool read_number(const char *path, const char *key, uint64_t *number)
{
    char line[256];
    bool found = false;
    size_t length = strlen(key);
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = strncmp(line, key, length) == 0 && sscanf(line + length, "%" SCNu64, number) == 1;
    if (file)
        (void)fclose(file);
    return found;
}

/* "0::/user.slice/..." of /proc/self/cgroup: the group's folder under /sys/fs/cgroup. */
static bool own_group(char *path, size_t room)
{
    char line[MOST_PATH];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        found = strncmp(line, "0::/", 4) == 0 &&
                (size_t)snprintf(path, room, "/sys/fs/cgroup%s", line + 3) < room;
    }
    if (file)
        (void)fclose(file);
    return found;
}

/* What one group leaves; page cache that it holds can be dropped. */
static uint64_t left_in(const char *group)
{
    char path[MOST_PATH + 32];
    uint64_t most, now, cache = 0;
    (void)snprintf(path, sizeof path, "%s/memory.max", group);
    if (!read_number(path, "", &most)) /* "max", or no limit here */
        return UINT64_MAX;
    (void)snprintf(path, sizeof path, "%s/memory.current", group);
    if (!read_number(path, "", &now))
        return UINT64_MAX;
    (void)snprintf(path, sizeof path, "%s/memory.stat", group);
    (void)read_number(path, "inactive_file ", &cache);
    now = now > cache ? now - cache : 0;
    return most > now ? most - now : 0;
}

static uint64_t left_in_groups(void)
{
    char group[MOST_PATH];
    uint64_t least = UINT64_MAX;
    size_t root = strlen("/sys/fs/cgroup");
    if (!own_group(group, sizeof group))
        return least;
    for (;;) {
        uint64_t left = left_in(group);
        least = left < least ? left : least;
        char *slash = strrchr(group, '/');
        if (!slash || (size_t)(slash - group) < root)
            return least;
        *slash = '\0';
    }
}

uint64_t spw__memory_available(void)
{
    uint64_t kib, in_groups = left_in_groups();
    if (!read_number("/proc/meminfo", "MemAvailable:", &kib))
        return in_groups;
    return kib * 1024 < in_groups ? kib * 1024 : in_groups;
}
