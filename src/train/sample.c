#include "train/sample.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static int32_t best_of(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

static int append(spw__ids *ids, int32_t id)
{
    int rc = spw__grow(&ids->ids, &ids->capacity, ids->n + 1, sizeof *ids->ids);
    if (rc == 0)
        ids->ids[ids->n++] = id;
    return rc;
}

static int continue_ids(spw__model *model, uint32_t vocab, int32_t end, spw__ids *ids)
{
    float *logits = spw__calloc(vocab, sizeof *logits);
    int rc = logits ? 0 : SPW_EHOSTMEM;
    for (int i = 0; rc == 0 && i < SPW__SAMPLE_TOKENS; i++) {
        rc = spw__model_logits(model, ids->ids, (uint32_t)ids->n, logits);
        int32_t next = rc == 0 ? best_of(logits, vocab) : -1;
        if (rc < 0 || next == end)
            break;
        rc = append(ids, next);
    }
    free(logits);
    return rc;
}

/* Appends one character, or what stands for it; returns how many bytes were read. A text cut
 * between tokens may end, or begin, inside a character: U+FFFD stands there. */
static size_t put_character(const char *text, size_t bytes, char **out)
{
    int32_t code;
    ptrdiff_t n = utf8proc_iterate((const uint8_t *)text, (ptrdiff_t)bytes, &code);
    const char *shown = n < 1                                          ? "\xEF\xBF\xBD"
                        : code == '\n'                                 ? "\\n"
                        : code == '\r'                                 ? "\\r"
                        : code < 0x20 || (code >= 0x7F && code < 0xA0) ? " " /* steers a terminal */
                                                                       : NULL;
    size_t length = shown ? strlen(shown) : (size_t)n;
    memcpy(*out, shown ? shown : text, length);
    *out += length;
    return n < 1 ? 1 : (size_t)n;
}

/* In new memory. */
static char *on_one_line(const char *text, size_t bytes)
{
    char *line = spw__calloc(bytes + 1, 3), *out = line;
    for (size_t i = 0; line && i < bytes;)
        i += put_character(text + i, bytes - i, &out);
    return line;
}

static int decode(const spw__tokenizer *tokenizer, const int32_t *ids, size_t n, char **line)
{
    char *text;
    size_t bytes;
    int rc = spw__tokenizer_decode(tokenizer, ids, n, true, &text, &bytes);
    if (rc < 0)
        return rc;
    *line = on_one_line(text, bytes);
    free(text);
    return *line ? 0 : SPW_EHOSTMEM;
}

/* What the embedding has no row for may not reach it. */
static int check_ids(const spw__ids *ids, uint32_t vocab)
{
    if (ids->n == 0)
        return spw__error(SPW_EINVAL, "--sample: the text has no token; give at least a word");
    for (size_t i = 0; i < ids->n; i++)
        if (ids->ids[i] < 0 || (uint32_t)ids->ids[i] >= vocab)
            return spw__error(
                SPW_EFORMAT,
                "--sample: token %d is past the model's vocab_size %u: tokenizer.json "
                "is of another model",
                (int)ids->ids[i], vocab);
    return 0;
}

int spw__sample(spw__model *model, const spw__tokenizer *tokenizer, uint32_t vocab,
                const char *text, char **continuation)
{
    spw__ids ids = {NULL, 0, 0};
    int rc = spw__tokenizer_encode(tokenizer, text, strlen(text), true, &ids);
    size_t asked = ids.n;
    if (rc == 0)
        rc = check_ids(&ids, vocab);
    if (rc == 0)
        rc = continue_ids(model, vocab, spw__tokenizer_eos(tokenizer), &ids);
    if (rc == 0)
        rc = decode(tokenizer, ids.ids + asked, ids.n - asked, continuation);
    free(ids.ids);
    return rc;
}
