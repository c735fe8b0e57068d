#include "train/added.h"

#include "base/error.h"
#include "base/mem.h"
#include "train/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static int by_first_then_longest(const void *a, const void *b)
{
    const spw__added_token *x = a, *y = b;
    int first = (unsigned char)x->text[0] - (unsigned char)y->text[0];
    if (first)
        return first;
    return (x->bytes < y->bytes) - (x->bytes > y->bytes);
}

static int load_token(spw__added_token *token, const json_t *entry, const char *where, size_t i)
{
    const json_t *content = json_object_get(entry, "content");
    const json_t *id = json_object_get(entry, "id");
    if (!json_is_string(content) || json_string_length(content) == 0 || !json_is_integer(id) ||
        json_integer_value(id) < 0 || json_integer_value(id) > 1 << 24)
        return spw__error(SPW_EFORMAT, "%s: added_tokens[%zu] has no content or no id", where, i);
    *token = (spw__added_token){
        .text = json_string_value(content),
        .bytes = json_string_length(content),
        .id = (int32_t)json_integer_value(id),
        .special = json_is_true(json_object_get(entry, "special")),
        .normalized = json_is_true(json_object_get(entry, "normalized")),
        .lstrip = json_is_true(json_object_get(entry, "lstrip")),
        .rstrip = json_is_true(json_object_get(entry, "rstrip")),
        .single_word = json_is_true(json_object_get(entry, "single_word")),
    };
    return 0;
}

static void index_first_bytes(spw__added *added)
{
    size_t at = 0;
    for (size_t byte = 0; byte < 256; byte++) {
        added->first[byte] = at;
        while (at < added->n && (unsigned char)added->tokens[at].text[0] == byte)
            at++;
    }
    added->first[256] = added->n;
}

int spw__added_load(spw__added *added, const json_t *list, const char *where)
{
    *added = (spw__added){.n = 0};
    size_t n = json_array_size(list);
    added->tokens = spw__calloc(n, sizeof *added->tokens);
    if (!added->tokens)
        return SPW_EHOSTMEM;
    for (size_t i = 0; i < n; i++) {
        int rc = load_token(&added->tokens[i], json_array_get(list, i), where, i);
        if (rc < 0) {
            spw__added_free(added);
            return rc;
        }
        added->n++;
    }
    qsort(added->tokens, added->n, sizeof *added->tokens, by_first_then_longest);
    index_first_bytes(added);
    return 0;
}

void spw__added_free(spw__added *added)
{
    free(added->tokens);
    *added = (spw__added){.n = 0};
}

const spw__added_token *spw__added_by_id(const spw__added *added, int32_t id)
{
    for (size_t i = 0; i < added->n; i++)
        if (added->tokens[i].id == id)
            return &added->tokens[i];
    return NULL;
}

/* ------------------------------------------------------------------------- neighbours of one -- */

/* The character that begins at, or ends before, a place; its length, 0 at the text's end. */
static size_t char_at(const char *text, size_t bytes, size_t at, utf8proc_int32_t *code)
{
    if (at >= bytes)
        return 0;
    utf8proc_ssize_t n =
        utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), code);
    return n > 0 ? (size_t)n : 0;
}

static size_t char_before(const char *text, size_t at, utf8proc_int32_t *code)
{
    size_t begin = at;
    while (begin && ((unsigned char)text[--begin] & 0xC0) == 0x80)
        ;
    return at ? char_at(text, at, begin, code) : 0;
}

static bool stands_alone(const char *text, size_t bytes, size_t begin, size_t end)
{
    utf8proc_int32_t code;
    if (char_before(text, begin, &code) && spw__is_word(code))
        return false;
    return !(char_at(text, bytes, end, &code) && spw__is_word(code));
}

static size_t strip_left(const char *text, size_t least, size_t begin)
{
    utf8proc_int32_t code;
    size_t n;
    while (begin > least && (n = char_before(text, begin, &code)) && spw__is_space(code))
        begin -= n;
    return begin > least ? begin : least;
}

static size_t strip_right(const char *text, size_t bytes, size_t end)
{
    utf8proc_int32_t code;
    size_t n;
    while ((n = char_at(text, bytes, end, &code)) && spw__is_space(code))
        end += n;
    return end;
}

/* ------------------------------------------------------------------------------------ cutting --
 */

static const spw__added_token *token_at(const spw__added *added, bool normalized, const char *text,
                                        size_t bytes)
{
    unsigned char byte = (unsigned char)text[0];
    for (size_t i = added->first[byte]; i < added->first[byte + 1]; i++) {
        const spw__added_token *token = &added->tokens[i];
        if (token->normalized == normalized && token->bytes <= bytes &&
            memcmp(token->text, text, token->bytes) == 0)
            return token;
    }
    return NULL;
}

int spw__added_cut(const spw__added *added, bool normalized, const char *text, size_t bytes,
                   spw__added_fn *found, void *context)
{
    size_t done = 0;
    for (size_t at = 0; at < bytes;) {
        const spw__added_token *token = token_at(added, normalized, text + at, bytes - at);
        size_t begin = at, end = token ? at + token->bytes : at + 1;
        at = end;
        if (!token || begin < done ||
            (token->single_word && !stands_alone(text, bytes, begin, end)))
            continue;
        if (token->lstrip)
            begin = strip_left(text, done, begin);
        if (token->rstrip)
            end = strip_right(text, bytes, end);
        int rc = begin > done ? found(context, text + done, begin - done, NULL) : 0;
        if (rc == 0)
            rc = found(context, text + begin, end - begin, token);
        if (rc < 0)
            return rc;
        done = end;
    }
    return done < bytes ? found(context, text + done, bytes - done, NULL) : 0;
}
