/*
 * bpe.h - merging bytes into tokens by rank: the "model" of a tokenizer.json of kind BPE.
 *
 * Starts from one token a byte and merges the pair of lowest rank, leftmost first, until none is
 * left (Sennrich et al., arXiv 1508.07909; the order of huggingface/tokenizers). Read-only after
 * load; any thread. The JSON document must outlive it.
 */
#ifndef SPW_TRAIN_BPE_H
#define SPW_TRAIN_BPE_H

#include "format/json.h"
#include "train/tokenizer.h"

typedef struct spw__merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: empty */
    uint32_t rank;
    int32_t id; /* of the merged token */
} spw__merge;

typedef struct spw__bpe {
    const json_t *vocab; /* token text -> id; belongs to the document */
    spw__merge *table;   /* open addressing, a power of two */
    size_t table_size;
    int32_t byte_ids[256]; /* id of each byte's character, -1: not in the vocabulary */
    int32_t unknown;       /* takes the place of such a byte; -1: it is dropped */
    bool fuse_unknown;     /* such bytes in a row are one unknown token */
    bool ignore_merges;    /* a piece that is a token as a whole is not merged up to it */
    int32_t highest;       /* id */
} spw__bpe;

/* `model` is the "model" object. SPW_EFORMAT, SPW_ENOTSUP name `where` and the part. */
int spw__bpe_load(spw__bpe *bpe, const json_t *model, const char *where);
void spw__bpe_free(spw__bpe *bpe);

/* Id of a token by its text in the vocabulary, or -1. */
int32_t spw__bpe_find(const spw__bpe *bpe, const char *text, size_t bytes);

/* Appends the ids of one piece of raw bytes. */
int spw__bpe_encode(const spw__bpe *bpe, const char *piece, size_t bytes, spw__ids *ids);

int spw__ids_append(spw__ids *ids, int32_t id);

#endif
