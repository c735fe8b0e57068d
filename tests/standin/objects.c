/* Handles that are live: a short table, searched from its end. */
#include "world.h"

#include <stdlib.h>

typedef struct object {
    standin_type type;
    void *pointer;
} object;

static object *objects;
static size_t n_objects, capacity;

static const char *const names[] = {"event", "module", "memory handle"};

void standin__object_add(standin_type type, void *pointer)
{
    objects = standin__grown(objects, &capacity, n_objects + 1, sizeof *objects);
    objects[n_objects++] = (object){type, pointer};
}

static size_t find(standin_type type, const void *pointer)
{
    for (size_t i = n_objects; i-- > 0;)
        if (objects[i].pointer == pointer && objects[i].type == type)
            return i;
    standin__die("%p is not a live %s", pointer, names[type]);
}

void standin__object_check(standin_type type, const void *pointer)
{
    (void)find(type, pointer);
}

void standin__object_free(standin_type type, void *pointer)
{
    objects[find(type, pointer)] = objects[n_objects - 1];
    n_objects--;
    free(pointer);
}

uint64_t standin__objects_live(void)
{
    uint64_t n = 0;
    for (size_t i = 0; i < n_objects; i++)
        n += objects[i].type != OBJECT_HANDLE;
    return n;
}

void standin__objects_reset(void)
{
    while (n_objects)
        free(objects[--n_objects].pointer);
    free(objects);
    objects = NULL;
    capacity = 0;
}
