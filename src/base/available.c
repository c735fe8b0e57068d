/*
 * How much memory there is, and how much of it is left: the system's word, and the control groups'
 * (containers, batch systems), version 2 and version 1. A group's folders are read from its own up
 * to the root: each of them may have a limit, and a container may see only the last of them.
 */
#include "base/available.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_PATH = 4096 };

/* What the two versions call things. */
typedef struct version {
    const char *controller; /* in its line of /proc/self/cgroup, one of a list; "": an empty list */
    const char *folder;     /* under the root */
    const char *most, *now, *cache;
} version;

static const version versions[] = {
    {"", "", "memory.max", "memory.current", "inactive_file "},
    {"memory", "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
};

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

static bool read_in(const char *group, const char *name, const char *key, uint64_t *number)
{
    char path[MOST_PATH + 64];
    (void)snprintf(path, sizeof path, "%s/%s", group, name);
    return read_number(path, key, number);
}

/* "4:cpu,memory:/docker/..." of /proc/self/cgroup, or "0::/user.slice/...": the group, if the list
 * between the colons has the controller; else NULL. */
static const char *group_of_line(char *line, const char *controller)
{
    char *list = strchr(line, ':');
    char *group = list ? strchr(list + 1, ':') : NULL;
    if (!group)
        return NULL;
    *group++ = '\0';
    bool found = !*controller && !list[1];
    char *rest = list + 1, *word;
    while (*controller && (word = strsep(&rest, ",")))
        found = found || strcmp(word, controller) == 0;
    return found ? group : NULL;
}

/* The group's folder. */
static bool own_group(const spw__memory_places *places, const version *v, char *path, size_t room)
{
    char line[MOST_PATH];
    bool found = false;
    FILE *file = fopen(places->self_cgroup, "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        const char *group = group_of_line(line, v->controller);
        found = group && (size_t)snprintf(path, room, "%s%s%s", places->cgroup_root, v->folder,
                                          strcmp(group, "/") == 0 ? "" : group) < room;
    }
    if (file)
        (void)fclose(file);
    return found;
}

/* What one group may use, or what it leaves of that; page cache that it holds can be dropped. No
 * limit is the word "max" in version 2 and a number past all memory in version 1. */
static uint64_t room_in(const char *group, const version *v, bool left)
{
    uint64_t most, now, cache = 0;
    if (!read_in(group, v->most, "", &most))
        return UINT64_MAX;
    if (!left)
        return most;
    if (!read_in(group, v->now, "", &now))
        return UINT64_MAX;
    (void)read_in(group, "memory.stat", v->cache, &cache);
    now = now > cache ? now - cache : 0;
    return most > now ? most - now : 0;
}

static uint64_t room_in_groups(const spw__memory_places *places, const version *v, bool left)
{
    char group[MOST_PATH];
    uint64_t least = UINT64_MAX;
    size_t root = strlen(places->cgroup_root) + strlen(v->folder);
    if (!own_group(places, v, group, sizeof group))
        return least;
    for (;;) {
        uint64_t room = room_in(group, v, left);
        least = room < least ? room : least;
        char *slash = strrchr(group, '/');
        if (!slash || (size_t)(slash - group) < root)
            return least;
        *slash = '\0';
    }
}

uint64_t spw__memory_in_groups(const spw__memory_places *places, bool left)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        uint64_t room = room_in_groups(places, &versions[i], left);
        least = room < least ? room : least;
    }
    return least;
}

static const spw__memory_places real_places = {"/proc/self/cgroup", "/sys/fs/cgroup"};

uint64_t spw__memory_available(void)
{
    uint64_t kib, in_groups = spw__memory_in_groups(&real_places, true);
    if (!read_number("/proc/meminfo", "MemAvailable:", &kib))
        return in_groups;
    return kib * 1024 < in_groups ? kib * 1024 : in_groups;
}

uint64_t spw__memory_physical(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t all =
        pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : UINT64_C(1) << 40;
    uint64_t in_groups = spw__memory_in_groups(&real_places, false);
    return all < in_groups ? all : in_groups;
}
