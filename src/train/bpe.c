#include "train/bpe.h"

#include "base/error.h"
#include "base/mem.h"
#include "train/bytechars.h"

#include <stdlib.h>
#include <string.h>

int spw__ids_append(spw__ids *ids, int32_t id)
{
    int rc = spw__grow(&ids->ids, &ids->capacity, ids->n + 1, sizeof *ids->ids);
    if (rc == 0)
        ids->ids[ids->n++] = id;
    return rc;
}

int32_t spw__bpe_find(const spw__bpe *bpe, const char *text, size_t bytes)
{
    const json_t *id = json_object_getn(bpe->vocab, text, bytes);
    return id ? (int32_t)json_integer_value(id) : -1;
}

/* ----------------------------------------------------------------------------------- loading -- */

static uint64_t hash_pair(uint64_t pair)
{
    pair ^= pair >> 32;
    pair *= UINT64_C(0x9E3779B97F4A7C15);
    return pair ^ pair >> 29;
}

/* The entry of a pair, or the empty one where it would be. */
static spw__merge *slot_of(const spw__bpe *bpe, uint64_t pair)
{
    size_t at = (size_t)hash_pair(pair) & (bpe->table_size - 1);
    while (bpe->table[at].pair != pair && bpe->table[at].pair != UINT64_MAX)
        at = (at + 1) & (bpe->table_size - 1);
    return &bpe->table[at];
}

static const spw__merge *find_merge(const spw__bpe *bpe, int32_t left, int32_t right)
{
    const spw__merge *merge = slot_of(bpe, (uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return merge->pair == UINT64_MAX ? NULL : merge;
}

static int bad_merge(const char *where, size_t index, const char *what)
{
    return spw__error(SPW_EFORMAT, "%s: model.merges[%zu]: %s", where, index, what);
}

/* The two halves: "left right", or ["left", "right"] in newer files. */
static int split_merge(const json_t *entry, const char *where, size_t index, const char *halves[2],
                       size_t lengths[2])
{
    if (json_is_array(entry) && json_array_size(entry) == 2) {
        for (size_t i = 0; i < 2; i++) {
            halves[i] = json_string_value(json_array_get(entry, i));
            lengths[i] = json_string_length(json_array_get(entry, i));
        }
        return halves[0] && halves[1] ? 0 : bad_merge(where, index, "not a pair of strings");
    }
    const char *text = json_string_value(entry);
    const char *space = text ? strchr(text, ' ') : NULL;
    if (!space)
        return bad_merge(where, index, "not a pair of tokens");
    halves[0] = text;
    lengths[0] = (size_t)(space - text);
    halves[1] = space + 1;
    lengths[1] = strlen(space + 1);
    return 0;
}

static int add_merge(spw__bpe *bpe, const json_t *entry, const char *where, size_t index)
{
    const char *halves[2];
    size_t lengths[2];
    int rc = split_merge(entry, where, index, halves, lengths);
    if (rc < 0)
        return rc;
    int32_t left = spw__bpe_find(bpe, halves[0], lengths[0]);
    int32_t right = spw__bpe_find(bpe, halves[1], lengths[1]);
    char *whole = spw__calloc(lengths[0] + lengths[1] + 1, 1);
    if (!whole)
        return SPW_EHOSTMEM;
    memcpy(whole, halves[0], lengths[0]);
    memcpy(whole + lengths[0], halves[1], lengths[1]);
    int32_t id = spw__bpe_find(bpe, whole, lengths[0] + lengths[1]);
    free(whole);
    if (left < 0 || right < 0 || id < 0)
        return bad_merge(where, index, "names a token that is not in model.vocab");
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    *slot_of(bpe, pair) = (spw__merge){pair, (uint32_t)index, id}; /* of two, the later counts */
    return 0;
}

static int load_merges(spw__bpe *bpe, const json_t *merges, const char *where)
{
    if (!json_is_array(merges))
        return spw__error(SPW_EFORMAT, "%s: lacks model.merges", where);
    bpe->table_size = 16;
    while (bpe->table_size < 2 * json_array_size(merges))
        bpe->table_size *= 2;
    bpe->table = spw__calloc(bpe->table_size, sizeof *bpe->table);
    if (!bpe->table)
        return SPW_EHOSTMEM;
    memset(bpe->table, 0xFF, bpe->table_size * sizeof *bpe->table);
    for (size_t i = 0; i < json_array_size(merges); i++) {
        int rc = add_merge(bpe, json_array_get(merges, i), where, i);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int load_vocab(spw__bpe *bpe, const char *where)
{
    const char *token;
    json_t *id;
    if (!json_is_object(bpe->vocab) || json_object_size(bpe->vocab) == 0)
        return spw__error(SPW_EFORMAT, "%s: lacks model.vocab", where);
    json_object_foreach((json_t *)(uintptr_t)bpe->vocab, token, id)
    {
        json_int_t number = json_is_integer(id) ? json_integer_value(id) : -1;
        if (number < 0 || number > 1 << 24)
            return spw__error(SPW_EFORMAT, "%s: model.vocab: the id of \"%s\" is not 0 to 2^24",
                              where, token);
        bpe->highest = (int32_t)number > bpe->highest ? (int32_t)number : bpe->highest;
    }
    int known = 0;
    for (int byte = 0; byte < 256; byte++) {
        char text[2];
        size_t bytes = spw__put_byte_char((uint8_t)byte, text);
        bpe->byte_ids[byte] = spw__bpe_find(bpe, text, bytes);
        known += bpe->byte_ids[byte] >= 0;
    }
    /* Some vocabularies lack bytes that UTF-8 never has; one that lacks more is of another kind. */
    if (known < 190)
        return spw__error(SPW_ENOTSUP,
                          "%s: model.vocab has %d of the 256 byte characters: not a byte-level BPE "
                          "tokenizer",
                          where, known);
    return 0;
}

static bool is_given(const json_t *model, const char *key)
{
    const json_t *value = json_object_get(model, key);
    return value && !json_is_null(value) && !json_is_false(value) &&
           !(json_is_string(value) && json_string_length(value) == 0);
}

static int check_kind(const json_t *model, const char *where)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model))
        return spw__error(SPW_EFORMAT, "%s: lacks \"model\"", where);
    if (type && strcmp(type, "BPE") != 0)
        return spw__error(SPW_ENOTSUP, "%s: model.type is %s: only byte-level BPE is supported",
                          where, type);
    static const char *const others[] = {"byte_fallback", "continuing_subword_prefix",
                                         "end_of_word_suffix", "dropout"};
    for (int i = 0; i < 4; i++)
        if (is_given(model, others[i]))
            return spw__error(SPW_ENOTSUP,
                              "%s: model.%s is set: only byte-level BPE is supported (GPT-2, "
                              "Llama 3, Qwen, SmolLM)",
                              where, others[i]);
    return 0;
}

int spw__bpe_load(spw__bpe *bpe, const json_t *model, const char *where)
{
    *bpe = (spw__bpe){.vocab = json_object_get(model, "vocab"), .unknown = -1};
    bpe->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    bpe->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    int rc = check_kind(model, where);
    if (rc == 0)
        rc = load_vocab(bpe, where);
    if (rc == 0)
        rc = load_merges(bpe, json_object_get(model, "merges"), where);
    const json_t *unknown = json_object_get(model, "unk_token");
    if (rc == 0 && json_is_string(unknown))
        bpe->unknown = spw__bpe_find(bpe, json_string_value(unknown), json_string_length(unknown));
    if (rc < 0)
        spw__bpe_free(bpe);
    return rc;
}

void spw__bpe_free(spw__bpe *bpe)
{
    free(bpe->table);
    bpe->table = NULL;
}

/* ---------------------------------------------------------------------------------- encoding -- */

/* A token of the piece so far, in a list that merging shortens. */
typedef struct symbol {
    int32_t id;
    int32_t next, previous; /* -1: none */
    bool alive;
} symbol;

/* A pair that may be merged; stale once either side changed. */
typedef struct candidate {
    uint32_t rank;
    int32_t at;          /* left symbol */
    int32_t left, right; /* ids then */
    int32_t id;          /* merged */
} candidate;

typedef struct work {
    symbol *symbols;
    candidate *heap; /* smallest (rank, at) first */
    size_t n_heap, heap_capacity;
} work;

static bool before(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static int push(work *w, candidate entry)
{
    int rc = spw__grow(&w->heap, &w->heap_capacity, w->n_heap + 1, sizeof *w->heap);
    if (rc < 0)
        return rc;
    size_t at = w->n_heap++;
    for (; at && before(&entry, &w->heap[(at - 1) / 2]); at = (at - 1) / 2)
        w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = entry;
    return 0;
}

static candidate pop(work *w)
{
    candidate top = w->heap[0], last = w->heap[--w->n_heap];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= w->n_heap)
            break;
        if (child + 1 < w->n_heap && before(&w->heap[child + 1], &w->heap[child]))
            child++;
        if (!before(&w->heap[child], &last))
            break;
        w->heap[at] = w->heap[child];
        at = child;
    }
    w->heap[at] = last;
    return top;
}

static int consider(const spw__bpe *bpe, work *w, int32_t at)
{
    int32_t next = at < 0 ? -1 : w->symbols[at].next;
    if (next < 0)
        return 0;
    int32_t left = w->symbols[at].id, right = w->symbols[next].id;
    const spw__merge *merge = find_merge(bpe, left, right);
    return merge ? push(w, (candidate){merge->rank, at, left, right, merge->id}) : 0;
}

static bool is_stale(const work *w, const candidate *c)
{
    const symbol *left = &w->symbols[c->at];
    return !left->alive || left->id != c->left || left->next < 0 ||
           w->symbols[left->next].id != c->right;
}

static int merge_all(const spw__bpe *bpe, work *w, int32_t n)
{
    int rc = 0;
    for (int32_t i = 0; rc == 0 && i < n; i++)
        rc = consider(bpe, w, i);
    while (rc == 0 && w->n_heap) {
        candidate c = pop(w);
        if (is_stale(w, &c))
            continue;
        symbol *left = &w->symbols[c.at], *right = &w->symbols[left->next];
        left->id = c.id;
        right->alive = false;
        left->next = right->next;
        if (right->next >= 0)
            w->symbols[right->next].previous = c.at;
        rc = consider(bpe, w, left->previous);
        if (rc == 0)
            rc = consider(bpe, w, c.at);
    }
    return rc;
}

/* One symbol a byte; a byte that the vocabulary lacks becomes the unknown token or nothing. */
static int32_t make_symbols(const spw__bpe *bpe, const char *piece, size_t bytes, symbol *symbols)
{
    int32_t n = 0;
    bool lacked = false; /* the byte before was not in the vocabulary */
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = bpe->byte_ids[(uint8_t)piece[i]];
        bool fused = id < 0 && lacked && bpe->fuse_unknown;
        lacked = id < 0;
        if (fused || (id < 0 && bpe->unknown < 0))
            continue;
        symbols[n] = (symbol){id < 0 ? bpe->unknown : id, n + 1, n - 1, true};
        n++;
    }
    if (n)
        symbols[n - 1].next = -1;
    return n;
}

static int encode_by_merging(const spw__bpe *bpe, const char *piece, size_t bytes, spw__ids *ids)
{
    enum { FEW = 64 };
    symbol few[FEW];
    work w = {.symbols = bytes <= FEW ? few : spw__calloc(bytes, sizeof *w.symbols)};
    if (!w.symbols)
        return SPW_EHOSTMEM;
    int32_t n = make_symbols(bpe, piece, bytes, w.symbols);
    int rc = merge_all(bpe, &w, n);
    for (int32_t at = n ? 0 : -1; rc == 0 && at >= 0; at = w.symbols[at].next)
        rc = spw__ids_append(ids, w.symbols[at].id);
    free(w.heap);
    if (w.symbols != few)
        free(w.symbols);
    return rc;
}

/* The token that is the whole piece, or -1. */
static int32_t find_whole(const spw__bpe *bpe, const char *piece, size_t bytes)
{
    enum { LONGEST = 512 }; /* bytes of a token; longer pieces are merged */
    char text[2 * LONGEST];
    size_t n = 0;
    if (bytes > LONGEST)
        return -1;
    for (size_t i = 0; i < bytes; i++)
        n += spw__put_byte_char((uint8_t)piece[i], text + n);
    return spw__bpe_find(bpe, text, n);
}

int spw__bpe_encode(const spw__bpe *bpe, const char *piece, size_t bytes, spw__ids *ids)
{
    if (bytes > INT32_MAX / 2)
        return spw__error(SPW_EINVAL, "a word of %zu bytes is too long to tokenize", bytes);
    int32_t whole = bpe->ignore_merges ? find_whole(bpe, piece, bytes) : -1;
    return whole >= 0 ? spw__ids_append(ids, whole) : encode_by_merging(bpe, piece, bytes, ids);
}
