/*
 * pretok.h - cutting text into pieces before BPE: the pre-tokenizers of a tokenizer.json, by PCRE2.
 *
 * Every supported kind is "cut by a regular expression, matches and what lies between them are
 * pieces of their own", or a step on pieces: Digits, Split (Isolated), ByteLevel, Sequence.
 * Read-only after load: any thread may cut.
 */
#ifndef SPW_TRAIN_PRETOK_H
#define SPW_TRAIN_PRETOK_H

#include "format/json.h"

#include <stdbool.h>
#include <stddef.h>

enum { SPW__PRETOK_STEPS = 8 };

typedef struct spw__pretok_step {
    void *pattern;     /* pcre2_code; NULL: none */
    bool prefix_space; /* a piece that begins with no space gets one first */
} spw__pretok_step;

typedef struct spw__pretok {
    spw__pretok_step steps[SPW__PRETOK_STEPS];
    int n_steps;
} spw__pretok;

/* `rules` is the "pre_tokenizer" object (null or absent: refused, for then it is no byte-level BPE
 * kind). */
int spw__pretok_load(spw__pretok *pretok, const json_t *rules, const char *where);
void spw__pretok_free(spw__pretok *pretok);

/* Calls piece(context, text, bytes) for each piece, in order; stops at the first error. `text` is
 * well-formed UTF-8. */
int spw__pretok_cut(const spw__pretok *pretok, const char *text, size_t bytes,
                    int (*piece)(void *context, const char *text, size_t bytes), void *context);

#endif
