/*
 * added.h - the added tokens of a tokenizer.json: texts that are one token wherever they stand.
 *
 * They are found before anything else is done to the text, leftmost and longest first; those marked
 * "normalized" only after the normalizer, in what the others left. Read-only after load.
 */
#ifndef SPW_TRAIN_ADDED_H
#define SPW_TRAIN_ADDED_H

#include "format/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct spw__added_token {
    const char *text; /* belongs to the document */
    size_t bytes;
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
} spw__added_token;

typedef struct spw__added {
    spw__added_token *tokens; /* by first byte, then longest first */
    size_t n;
    size_t first[257]; /* tokens of first byte b: first[b] .. first[b + 1] - 1 */
} spw__added;

int spw__added_load(spw__added *added, const json_t *list, const char *where);
void spw__added_free(spw__added *added);

/* Calls found(context, text, bytes, token) for the parts of the text in order: token NULL for what
 * lies between tokens. Looks for those with `normalized` as given. */
typedef int spw__added_fn(void *context, const char *text, size_t bytes,
                          const spw__added_token *token);
int spw__added_cut(const spw__added *added, bool normalized, const char *text, size_t bytes,
                   spw__added_fn *found, void *context);

/* The added token of an id, or NULL. */
const spw__added_token *spw__added_by_id(const spw__added *added, int32_t id);

#endif
