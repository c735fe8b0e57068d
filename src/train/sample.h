/*
 * sample.h - what a model says: the greedy continuation of a text.
 *
 * Runs the whole text again for every token (no cache of keys and values): for a line or two to
 * look at, not for serving. One thread.
 */
#ifndef SPW_TRAIN_SAMPLE_H
#define SPW_TRAIN_SAMPLE_H

#include "train/model.h"
#include "train/tokenizer.h"

enum { SPW__SAMPLE_TOKENS = 48 };

/* The tokens that follow `text`, at most SPW__SAMPLE_TOKENS of them and none from `eos` on, as text
 * on one line (line breaks as "\n"); free() it. `vocab`: logits a token has. */
int spw__sample(spw__model *model, const spw__tokenizer *tokenizer, uint32_t vocab,
                const char *text, char **continuation);

#endif
