/*
 * Who touched which bytes last: segments of address space, each with its last writer and those who
 * read it since.
 *
 * A reader that another reader comes after is forgotten: whoever is ordered after the second is
 * ordered after the first. So the readers of a segment are of different streams.
 */
#include "world.h"

#include <stdlib.h>

enum { READERS = 6 };

typedef struct segment {
    uintptr_t begin, end;
    standin_stamp writer; /* what == NULL: none */
    standin_stamp readers[READERS];
} segment;

typedef struct segments {
    segment *at;
    size_t n, capacity;
} segments;

static segments all;  /* by address */
static segments room; /* where the next state of `all` is made */
static size_t prune_at = 256;

/* --------------------------------------------------------------------------------- touches -- */

void standin__touch(standin_touches *t, const void *begin, uint64_t bytes, bool writes)
{
    if (!bytes)
        return;
    uintptr_t first = (uintptr_t)begin;
    standin__require_bytes(t->stamp, first, bytes);
    standin_touch touch = {first, first + bytes, writes};
    standin__queue_check(&touch, t->stamp, t->clock);
    t->at = standin__grown(t->at, &t->capacity, t->n + 1, sizeof *t->at);
    t->at[t->n++] = touch;
}

static int by_address(const void *a, const void *b)
{
    const standin_touch *x = a, *y = b;
    return x->begin != y->begin ? (x->begin < y->begin ? -1 : 1) : 0;
}

/* Sorts them; reads that overlap or meet become one, so do writes that meet. */
static void merge(standin_touches *t)
{
    size_t n = 0;
    qsort(t->at, t->n, sizeof *t->at, by_address);
    for (size_t i = 0; i < t->n; i++) {
        standin_touch *last = n ? &t->at[n - 1] : NULL, next = t->at[i];
        if (last && next.begin < last->end && (next.writes || last->writes))
            standin__die("two parts of %s (call %u) touch the same bytes at %p, and one writes",
                         t->stamp->what, t->stamp->call, (void *)next.begin);
        if (last && next.begin <= last->end && next.writes == last->writes)
            last->end = next.end > last->end ? next.end : last->end;
        else
            t->at[n++] = next;
    }
    t->n = n;
}

/* -------------------------------------------------------------------------------- segments -- */

static bool same_stamp(const standin_stamp *a, const standin_stamp *b)
{
    return a->what == b->what && (!a->what || (a->slot == b->slot && a->at == b->at));
}

static bool same_people(const segment *a, const segment *b)
{
    bool same = same_stamp(&a->writer, &b->writer);
    for (int i = 0; i < READERS; i++)
        same = same && same_stamp(&a->readers[i], &b->readers[i]);
    return same;
}

static void push(segments *to, const segment *s)
{
    segment *last = to->n ? &to->at[to->n - 1] : NULL;
    if (last && last->end == s->begin && same_people(last, s)) {
        last->end = s->end;
        return;
    }
    to->at = standin__grown(to->at, &to->capacity, to->n + 1, sizeof *to->at);
    to->at[to->n++] = *s;
}

static void push_part(segments *to, segment part, uintptr_t begin, uintptr_t end)
{
    part.begin = begin > part.begin ? begin : part.begin;
    part.end = end < part.end ? end : part.end;
    if (part.begin < part.end)
        push(to, &part);
}

static void refuse(const standin_touches *t, const segment *s, const standin_stamp *other,
                   bool other_writes, bool writes)
{
    const standin_block *b = standin__block_of(s->begin, 1);
    uintptr_t begin = b ? b->begin : s->begin;
    standin__die("%s (call %u, stream %u, %s) and %s (call %u, stream %u, %s) touch the same bytes "
                 "at %p (%llu into the block of call %u), and nothing orders them",
                 other->what, other->call, other->slot, other_writes ? "writes" : "reads",
                 t->stamp->what, t->stamp->call, t->stamp->slot, writes ? "writes" : "reads",
                 (void *)s->begin, (unsigned long long)(s->begin - begin), b ? b->given : 0);
}

static void add_reader(segment *s, const standin_touches *t)
{
    int place = -1;
    for (int i = READERS; i-- > 0;)
        if (standin__covers_stamp(t->clock, &s->readers[i])) {
            s->readers[i] = (standin_stamp){0};
            place = i;
        }
    if (place < 0)
        standin__die("more than %d streams read the same bytes at once: raise READERS", READERS);
    s->readers[place] = *t->stamp;
}

/* `s` lies within the touch. */
static segment touched(const standin_touches *t, bool writes, segment s)
{
    if (!standin__covers_stamp(t->clock, &s.writer))
        refuse(t, &s, &s.writer, true, writes);
    for (int i = 0; writes && i < READERS; i++)
        if (!standin__covers_stamp(t->clock, &s.readers[i]))
            refuse(t, &s, &s.readers[i], false, true);
    if (writes)
        s = (segment){.begin = s.begin, .end = s.end, .writer = *t->stamp};
    else
        add_reader(&s, t);
    return s;
}

/* Appends what becomes of the touch's bytes; `i` is the first segment that ends after its
 * beginning. Returns the first one that ends after its end. */
static size_t touch_segments(const standin_touches *t, const standin_touch *touch, size_t i)
{
    uintptr_t at = touch->begin;
    while (at < touch->end) {
        bool found = i < all.n && all.at[i].begin < touch->end;
        segment s = {.begin = at, .end = found ? all.at[i].begin : touch->end};
        if (s.begin >= s.end) {
            s = all.at[i];
            s.begin = at;
            s.end = s.end < touch->end ? s.end : touch->end;
        }
        s = touched(t, touch->writes, s);
        push(&room, &s);
        at = s.end;
        while (i < all.n && all.at[i].end <= at)
            i++;
    }
    return i;
}

static void swap_in(void)
{
    segments old = all;
    all = room;
    room = old;
    room.n = 0;
}

void standin__order_run(standin_touches *t)
{
    size_t i = 0;
    uintptr_t done = 0; /* bytes below are dealt with */
    if (!t->n)
        return;
    merge(t);
    for (size_t k = 0; k < t->n; k++) {
        const standin_touch *touch = &t->at[k];
        for (; i < all.n && all.at[i].end <= touch->begin; i++)
            push_part(&room, all.at[i], done, UINTPTR_MAX);
        if (i < all.n)
            push_part(&room, all.at[i], done, touch->begin);
        i = touch_segments(t, touch, i);
        done = touch->end;
    }
    for (; i < all.n; i++)
        push_part(&room, all.at[i], done, UINTPTR_MAX);
    swap_in();
}

void standin__order_take(uintptr_t begin, uintptr_t end, const standin_clock *host)
{
    for (size_t i = 0; i < all.n; i++) {
        const segment *s = &all.at[i];
        bool overlaps = s->begin < end && begin < s->end;
        const standin_stamp *late = NULL;
        if (overlaps && !standin__covers_stamp(host, &s->writer))
            late = &s->writer;
        for (int r = 0; overlaps && r < READERS; r++)
            if (!standin__covers_stamp(host, &s->readers[r]))
                late = &s->readers[r];
        if (late)
            standin__die("%s (call %u, stream %u) touches the memory at %p that is given back, and "
                         "the host has not waited for it",
                         late->what, late->call, late->slot, (void *)s->begin);
        push_part(&room, *s, 0, begin);
        push_part(&room, *s, end, UINTPTR_MAX);
    }
    swap_in();
}

static bool is_past(const segment *s, const standin_clock *floor)
{
    bool past = standin__covers_stamp(floor, &s->writer);
    for (int i = 0; past && i < READERS; i++)
        past = standin__covers_stamp(floor, &s->readers[i]);
    return past;
}

void standin__order_prune(const standin_clock *floor)
{
    if (all.n < prune_at)
        return;
    size_t n = 0;
    for (size_t i = 0; i < all.n; i++)
        if (!is_past(&all.at[i], floor))
            all.at[n++] = all.at[i];
    all.n = n;
    prune_at = 2 * n < 256 ? 256 : 2 * n;
}

void standin__order_reset(void)
{
    free(all.at);
    free(room.at);
    all = room = (segments){0};
    prune_at = 256;
}
