/*
 * data.h - a JSONL file to rows of token ids with the places where a loss counts.
 *
 * A line is one object, its shape told by its keys, one shape a file:
 *   {"text"}                              loss on all tokens but the first
 *   {"prompt", "completion"}              loss on the completion only
 *   {"instruction", "input"?, "output"}   alpaca: rendered by the chat template as one user and one
 *                                         assistant turn; loss on the answer
 *   {"messages": [{"role", "content"}]}   the chat template; loss on the assistants' turns
 * A completion, an answer and a text end with the tokenizer's end token, which counts. A prompt and
 * its completion are encoded each by itself, so that no token reaches from one into the other; what
 * the tokenizer's post-processor puts before a text (a BOS, say) comes before the prompt.
 * Errors name the file and the line number.
 */
#ifndef SPW_TRAIN_DATA_H
#define SPW_TRAIN_DATA_H

#include "train/tokenizer.h"

typedef enum spw__too_long { SPW__TRUNCATE, SPW__SKIP, SPW__ERROR } spw__too_long;

typedef struct spw__data_config {
    uint32_t max_tokens; /* a row's longest, --seq */
    spw__too_long too_long;
    const char *template; /* "chatml", "llama3", or NULL: by the tokenizer's special tokens */
} spw__data_config;

typedef struct spw__row {
    int32_t *tokens;  /* n; inputs */
    int32_t *targets; /* n; the next token where the loss counts, else -1 */
    uint32_t n;       /* tokens to run: one fewer than the row has */
    uint32_t n_targets;
    uint64_t line; /* in the file, from 1 */
} spw__row;

typedef struct spw__data {
    spw__row *rows;
    size_t n_rows;
    uint64_t n_tokens, n_targets;
    size_t n_truncated, n_skipped, n_empty; /* empty: no target left */
    uint32_t longest;                       /* tokens of the longest row */
} spw__data;

/* Reads and tokenizes all of it. "no usable row" is SPW_EFORMAT. */
int spw__data_load(const char *path, const spw__tokenizer *tokenizer,
                   const spw__data_config *config, spw__data *data);
void spw__data_free(spw__data *data);

#endif
