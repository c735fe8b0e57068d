/*
 * template.h - turns of a conversation to text, as the model's chat template does.
 *
 * Two are built in: ChatML (SmolLM2, Qwen 2.5) and Llama 3. They give what transformers'
 * apply_chat_template gives for those models. Which one, and ChatML's default system turn, is told
 * by the tokenizer's special tokens and by its chat template's text; a template that does more than
 * these two is refused unless the user names one. Read-only after choosing.
 */
#ifndef SPW_TRAIN_TEMPLATE_H
#define SPW_TRAIN_TEMPLATE_H

#include "train/tokenizer.h"

typedef enum spw__template_kind { SPW__TEMPLATE_CHATML, SPW__TEMPLATE_LLAMA3 } spw__template_kind;

typedef struct spw__template {
    spw__template_kind kind;
    const char *default_system; /* ChatML: given when no system turn comes first; NULL: none;
                                   belongs to the tokenizer */
    size_t default_system_bytes;
    const char *begin; /* text before the first turn */
    int32_t end;       /* id of the token that ends a turn */
} spw__template;

typedef struct spw__turn {
    const char *role; /* "system", "user", "assistant" */
    const char *content;
    size_t content_bytes;
} spw__turn;

/* `name`: "chatml", "llama3", or NULL to choose by the tokenizer. SPW_ENOTSUP names --template. */
int spw__template_choose(const spw__tokenizer *tokenizer, const char *name, spw__template *chosen);

/* Appends the ids of a conversation, and for each whether it is part of an assistant's answer (its
 * content and the end of its turn). `counted` grows beside `ids`. */
int spw__template_encode(const spw__template *chosen, const spw__tokenizer *tokenizer,
                         const spw__turn *turns, size_t n_turns, spw__ids *ids, spw__ids *counted);

#endif
