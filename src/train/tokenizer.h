/*
 * tokenizer.h - text to token ids and back, by a Hugging Face tokenizer.json of the byte-level BPE
 * kind (GPT-2, Llama 3, Qwen, SmolLM); any other kind is refused by naming the part.
 *
 * The order of work is the tokenizers library's: added tokens are cut out of the raw text, then
 * the normalizer (none or NFC), the pre-tokenizers (Digits, Split with a regular expression,
 * ByteLevel, Sequence of them), the byte map, merges by rank, the post-processor (ByteLevel none;
 * TemplateProcessing may add tokens). Read-only after load: any number of threads may encode,
 * each with its own spw__ids.
 */
#ifndef SPW_TRAIN_TOKENIZER_H
#define SPW_TRAIN_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct spw__tokenizer spw__tokenizer;

/* A growing list of ids; zero it before use, free(ids) after. */
typedef struct spw__ids {
    int32_t *ids;
    size_t n;
    size_t capacity;
} spw__ids;

/* Reads DIR/tokenizer.json (and tokenizer_config.json for its special tokens' names). */
int spw__tokenizer_load(const char *directory, spw__tokenizer **tokenizer);
void spw__tokenizer_free(spw__tokenizer *tokenizer);

/* Appends the ids of UTF-8 text. Ill-formed UTF-8 is SPW_EINVAL. `special`: what the
 * post-processor adds (a BOS, say) is added, as encode(add_special_tokens=True) does. */
int spw__tokenizer_encode(const spw__tokenizer *tokenizer, const char *text, size_t bytes,
                          bool special, spw__ids *ids);

/* Appends what the post-processor puts before a text, alone. */
int spw__tokenizer_begin(const spw__tokenizer *tokenizer, spw__ids *ids);

/* The text of ids, in new memory with a zero behind it; ids that are none give nothing. Special
 * tokens are left out when `skip_special`. */
int spw__tokenizer_decode(const spw__tokenizer *tokenizer, const int32_t *ids, size_t n,
                          bool skip_special, char **text, size_t *bytes);

/* Id of a token by its exact text ("<|im_end|>"), or -1. */
int32_t spw__tokenizer_find(const spw__tokenizer *tokenizer, const char *token);

/* From tokenizer_config.json, or -1: the names there found in the vocabulary. */
int32_t spw__tokenizer_bos(const spw__tokenizer *tokenizer);
int32_t spw__tokenizer_eos(const spw__tokenizer *tokenizer);
uint32_t spw__tokenizer_vocab(const spw__tokenizer *tokenizer); /* highest id + 1 */

/* Bytes of text that an id stands for; 0 if it is none. */
size_t spw__tokenizer_token_bytes(const spw__tokenizer *tokenizer, int32_t id);

/* The Jinja text of chat_template.jinja or tokenizer_config.json; "" if there is none. */
const char *spw__tokenizer_chat_template(const spw__tokenizer *tokenizer);

#endif
