/*
 * Streams, events, and operations that wait until somebody must have them done.
 *
 * A stream's clock covers what its next operation comes after. It grows by operations, by waiting
 * for events, and by what the host has seen.
 */
#include "world.h"

#include <stdlib.h>

typedef enum op_kind {
    OP_COPY,
    OP_FILL,
    OP_LAUNCH,
    OP_PREFETCH,
} op_kind;

typedef struct op {
    struct op *next;
    op_kind kind;
    standin_stamp stamp;
    standin_clock clock;
    uintptr_t dst, src;
    uint64_t bytes;
    int value;               /* OP_FILL */
    bool host_dst, host_src; /* pageable memory, which nobody checks */
    void *staged; /* OP_COPY: the source as it was at the call; NULL: read it when it runs */
    standin_launch *launch;
} op;

typedef struct stream {
    bool is_open, is_blocking;
    standin_clock clock;
    uint64_t queued, done; /* operations; a slot's next stream counts on */
    op *head, *tail;
} stream;

typedef struct event {
    standin_clock clock; /* all zero: never recorded, which is complete */
} event;

static stream streams[STANDIN_SLOTS]; /* the first is the legacy default stream */
static unsigned last_slot;
static standin_clock host;
static uint64_t random_state; /* 0: no chance */

/* --------------------------------------------------------------------------------- streams -- */

static unsigned slot_of(const stream *s)
{
    return (unsigned)(s - streams);
}

static stream *stream_of(CUstream handle)
{
    if (!handle || handle == CU_STREAM_LEGACY)
        return &streams[0];
    for (int i = 1; i < STANDIN_SLOTS; i++)
        if ((void *)handle == (void *)&streams[i] && streams[i].is_open)
            return &streams[i];
    standin__die("%p is not a stream", (void *)handle);
}

CUresult standin__stream_create(CUstream *handle, bool is_blocking)
{
    for (int tries = 0; tries < STANDIN_SLOTS; tries++) {
        last_slot = last_slot % (STANDIN_SLOTS - 1) + 1;
        stream *s = &streams[last_slot];
        if (s->is_open || s->head)
            continue;
        if (s->is_blocking) /* the one before: the default stream comes after it */
            standin__join(&streams[0].clock, &s->clock);
        uint64_t done = s->done;
        *s = (stream){.is_open = true, .is_blocking = is_blocking, .queued = done, .done = done};
        *handle = (CUstream)(void *)s;
        return CUDA_SUCCESS;
    }
    standin__die("more than %d streams: raise STANDIN_SLOTS", STANDIN_SLOTS - 1);
}

bool standin__stream_is_blocking(CUstream handle)
{
    return stream_of(handle)->is_blocking;
}

/* What is queued runs all the same. */
void standin__stream_destroy(CUstream handle)
{
    stream *s = stream_of(handle);
    if (s == &streams[0])
        standin__die("the default stream is not destroyed");
    s->is_open = false;
}

uint64_t standin__streams_open(void)
{
    uint64_t n = 0;
    for (int i = 1; i < STANDIN_SLOTS; i++)
        n += streams[i].is_open;
    return n;
}

/* Before anything is queued, recorded or waited for on `s`. */
static void catch_up(stream *s)
{
    standin__join(&s->clock, &host);
    if (s->is_blocking)
        standin__join(&s->clock, &streams[0].clock);
    for (int i = 1; s == &streams[0] && i < STANDIN_SLOTS; i++)
        if (streams[i].is_blocking)
            standin__join(&s->clock, &streams[i].clock);
}

/* ------------------------------------------------------------------------------ running them -- */

static bool is_done(const standin_clock *clock)
{
    bool done = true;
    for (int i = 0; i < STANDIN_SLOTS; i++)
        done &= streams[i].done >= clock->at[i];
    return done;
}

/* All but the stream's own operation, which is its head. */
static bool is_ready(const stream *s)
{
    standin_clock before = s->head->clock;
    before.at[slot_of(s)]--;
    return is_done(&before);
}

static uint64_t next_random(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(0x2545F4914F6CDD1D) >> 32;
}

/* A stream whose head is ready: one that `goal` needs, or by chance any. */
static stream *pick(const standin_clock *goal)
{
    bool any = random_state && next_random() % 4 == 0;
    stream *chosen = NULL;
    uint64_t n = 0;
    for (int i = 0; i < STANDIN_SLOTS; i++) {
        stream *s = &streams[i];
        if (!s->head || !(any || s->done < goal->at[i]) || !is_ready(s))
            continue;
        n++;
        bool older = !chosen || s->head->stamp.call < chosen->head->stamp.call;
        if (random_state ? next_random() % n == 0 : older)
            chosen = s;
    }
    if (!chosen)
        standin__die("the stand-in has nothing to run and should have: a fault of its own");
    return chosen;
}

/* Bytes without a block are pageable memory, which the call itself dealt with. A prefetch changes
 * no byte, whoever else is at them. */
static void touch_op(const op *o, standin_touches *touches)
{
    if (o->kind == OP_PREFETCH)
        standin__require_bytes(&o->stamp, o->dst, o->bytes);
    if (o->kind == OP_LAUNCH)
        standin__launch_touch(o->launch, touches);
    if (o->kind == OP_COPY && !o->host_src)
        standin__touch(touches, (void *)o->src, o->bytes, false);
    if ((o->kind == OP_COPY || o->kind == OP_FILL) && !o->host_dst)
        standin__touch(touches, (void *)o->dst, o->bytes, true);
}

static void play_op(const op *o)
{
    if (o->kind == OP_LAUNCH)
        standin__launch_play(o->launch);
    else if (o->kind == OP_FILL)
        memset((void *)o->dst, o->value, o->bytes);
    else if (o->kind == OP_COPY)
        memcpy((void *)o->dst, o->staged ? o->staged : (void *)o->src, o->bytes);
}

static void free_op(op *o)
{
    free(o->staged);
    free(o->launch);
    free(o);
}

static void run_head(stream *s)
{
    op *o = s->head;
    standin_touches touches = {.stamp = &o->stamp, .clock = &o->clock};
    touch_op(o, &touches);
    standin__order_run(&touches);
    play_op(o);
    free(touches.at);
    s->head = o->next;
    s->done = o->stamp.at;
    free_op(o);
}

static void forget_the_past(void)
{
    standin_clock floor = host;
    for (int i = 0; i < STANDIN_SLOTS; i++)
        for (int k = 0; streams[i].head && k < STANDIN_SLOTS; k++) {
            uint64_t at = streams[i].head->clock.at[k];
            floor.at[k] = at < floor.at[k] ? at : floor.at[k];
        }
    standin__order_prune(&floor);
}

/* The host waits for what `goal` covers. */
static void host_waits(const standin_clock *goal)
{
    while (!is_done(goal))
        run_head(pick(goal));
    standin__join(&host, goal);
    forget_the_past();
}

void standin__stream_sync(CUstream handle)
{
    stream *s = stream_of(handle);
    catch_up(s);
    host_waits(&s->clock);
}

void standin__queue_drain(void)
{
    standin_clock all = {0};
    for (int i = 0; i < STANDIN_SLOTS; i++)
        all.at[i] = streams[i].queued;
    host_waits(&all);
}

const standin_clock *standin__host_clock(void)
{
    return &host;
}

void standin__queue_seed(uint64_t seed)
{
    random_state = seed;
}

/* -------------------------------------------------------------------------------- queueing -- */

static op *op_new(op_kind kind, const char *what)
{
    op *o = standin__new(sizeof *o);
    o->kind = kind;
    o->stamp = (standin_stamp){.what = what, .call = standin__call_number()};
    return o;
}

/* Returns the clock that covers it. */
static const standin_clock *queue(op *o, CUstream handle)
{
    stream *s = stream_of(handle);
    catch_up(s);
    o->stamp.slot = slot_of(s);
    o->stamp.at = s->clock.at[slot_of(s)] = ++s->queued;
    o->clock = s->clock;
    if (s->head)
        s->tail->next = o;
    else
        s->head = o;
    s->tail = o;
    return &s->clock;
}

/* False: pageable memory. Dies if it was given back. */
static bool is_known(const op *o, uintptr_t begin)
{
    if (!standin__block_of(begin, o->bytes))
        return false;
    standin__require_bytes(&o->stamp, begin, o->bytes);
    return true;
}

static bool is_host(uintptr_t begin, uint64_t bytes)
{
    const standin_block *b = standin__block_of(begin, bytes);
    return !b || b->kind == BLOCK_HOST || b->kind == BLOCK_PINNED;
}

/* As CUDA: from pageable memory the source is read by the call; into it the call is done when it
 * returns. */
void standin__queue_copy(const standin_copy *copy, CUstream handle)
{
    op *o = op_new(OP_COPY, "cuMemcpyAsync");
    o->dst = copy->dst;
    o->src = copy->src;
    o->bytes = copy->bytes;
    o->host_src = !is_known(o, o->src);
    o->host_dst = !is_known(o, o->dst);
    bool in_host = is_host(o->src, o->bytes) && is_host(o->dst, o->bytes);
    if (o->host_src) {
        o->staged = standin__new(o->bytes);
        memcpy(o->staged, (void *)o->src, o->bytes);
    }
    bool waits = o->host_dst || (in_host && o->host_src);
    const standin_clock *clock = queue(o, handle);
    if (waits)
        host_waits(clock);
}

void standin__queue_fill(uintptr_t dst, int value, uint64_t bytes, CUstream handle)
{
    op *o = op_new(OP_FILL, "cuMemsetD8Async");
    o->dst = dst;
    o->value = value;
    o->bytes = bytes;
    standin__require_bytes(&o->stamp, dst, bytes);
    queue(o, handle);
}

void standin__queue_prefetch(uintptr_t at, uint64_t bytes, CUstream handle)
{
    op *o = op_new(OP_PREFETCH, "cuMemPrefetchAsync");
    o->dst = at;
    o->bytes = bytes;
    standin__require_bytes(&o->stamp, at, bytes);
    if (standin__block_of(at, bytes)->kind != BLOCK_MANAGED)
        standin__die("%p is not managed memory", (void *)at);
    queue(o, handle);
}

void standin__queue_launch(standin_launch *launch, CUstream handle)
{
    op *o = op_new(OP_LAUNCH, standin__kernel_name(launch->kernel));
    o->launch = launch;
    queue(o, handle);
}

/* Whether operation `o`, which waits, and the one with that clock are ordered. */
static bool is_ordered(const op *o, const standin_stamp *stamp, const standin_clock *clock)
{
    return standin__covers_stamp(clock, &o->stamp) || standin__covers_stamp(&o->clock, stamp);
}

static bool overlaps(const standin_touch *touch, uintptr_t begin, uint64_t bytes)
{
    return touch->begin < begin + bytes && begin < touch->end;
}

static void check_op(const op *o, const standin_touch *touch, const standin_stamp *stamp,
                     const standin_clock *clock)
{
    bool writes = !o->host_dst && overlaps(touch, o->dst, o->bytes);
    bool reads = o->kind == OP_COPY && !o->host_src && overlaps(touch, o->src, o->bytes);
    bool is_known_now = o->kind == OP_COPY || o->kind == OP_FILL;
    if (!is_known_now || !(writes || (reads && touch->writes)))
        return;
    if (!stamp)
        standin__die("%s (call %u, stream %u) still waits to run and touches the memory at %p that "
                     "is given back",
                     o->stamp.what, o->stamp.call, o->stamp.slot, (void *)touch->begin);
    if (!is_ordered(o, stamp, clock))
        standin__die("%s (call %u, stream %u, %s) and %s (call %u, stream %u, %s) touch the same "
                     "bytes near %p, and nothing orders them",
                     o->stamp.what, o->stamp.call, o->stamp.slot, writes ? "writes" : "reads",
                     stamp->what, stamp->call, stamp->slot, touch->writes ? "writes" : "reads",
                     (void *)touch->begin);
}

void standin__queue_check(const standin_touch *touch, const standin_stamp *stamp,
                          const standin_clock *clock)
{
    for (int i = 0; i < STANDIN_SLOTS; i++)
        for (const op *o = streams[i].head; o; o = o->next)
            if (!stamp || &o->stamp != stamp)
                check_op(o, touch, stamp, clock);
}

bool standin__launches_done(const void *module)
{
    for (int i = 0; i < STANDIN_SLOTS; i++)
        for (const op *o = streams[i].head; o; o = o->next)
            if (o->launch && o->launch->module == module)
                return false;
    return true;
}

/* --------------------------------------------------------------------------------- events -- */

static event *event_of(CUevent handle)
{
    standin__object_check(OBJECT_EVENT, handle);
    return (event *)(void *)handle;
}

void standin__event_create(CUevent *handle)
{
    event *e = standin__new(sizeof *e);
    standin__object_add(OBJECT_EVENT, e);
    *handle = (CUevent)(void *)e;
}

void standin__event_destroy(CUevent handle)
{
    standin__object_free(OBJECT_EVENT, event_of(handle));
}

void standin__event_record(CUevent handle, CUstream stream_handle)
{
    stream *s = stream_of(stream_handle);
    catch_up(s);
    event_of(handle)->clock = s->clock;
}

void standin__event_wait(CUevent handle, CUstream stream_handle)
{
    stream *s = stream_of(stream_handle);
    catch_up(s);
    standin__join(&s->clock, &event_of(handle)->clock);
}

void standin__event_sync(CUevent handle)
{
    host_waits(&event_of(handle)->clock);
}

void standin__queue_reset(void)
{
    for (int i = 0; i < STANDIN_SLOTS; i++)
        while (streams[i].head) {
            op *o = streams[i].head;
            streams[i].head = o->next;
            free_op(o);
        }
    memset(streams, 0, sizeof streams);
    memset(&host, 0, sizeof host);
    last_slot = 0;
    random_state = 0;
}
