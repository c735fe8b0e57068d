#include "train/tokenizer.h"

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"
#include "train/added.h"
#include "train/bpe.h"
#include "train/bytechars.h"
#include "train/pretok.h"
#include "train/unicode.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

static const uint64_t max_json_bytes = 512 << 20;
static const uint64_t max_template_bytes = 1 << 20;

struct spw__tokenizer {
    json_t *document; /* tokenizer.json; the parts below point into it */
    spw__bpe bpe;
    spw__pretok pretok;
    spw__added added;
    bool nfc;
    spw__ids before, after; /* what the post-processor adds */
    const char **texts;     /* [vocab]: a token's text by id, NULL if there is none */
    uint32_t vocab;
    int32_t bos, eos;
    char *chat_template; /* NULL: none */
};

/* ------------------------------------------------------------------------------- normalizer -- */

static int load_normalizer(spw__tokenizer *t, const json_t *rules, const char *where)
{
    const char *type = json_string_value(json_object_get(rules, "type"));
    if (!rules || json_is_null(rules))
        return 0;
    if (type && strcmp(type, "NFC") == 0) {
        t->nfc = true;
        return 0;
    }
    const json_t *list = json_object_get(rules, "normalizers");
    if (!type || strcmp(type, "Sequence") != 0)
        return spw__error(SPW_ENOTSUP,
                          "%s: normalizer %s is not supported: none and NFC are (byte-level BPE)",
                          where, type ? type : "without a type");
    for (size_t i = 0; i < json_array_size(list); i++) {
        int rc = load_normalizer(t, json_array_get(list, i), where);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* --------------------------------------------------------------------------- post-processor -- */

/* One entry of a template: a special token goes before or after the text. */
static int load_template_part(spw__tokenizer *t, const json_t *part, const json_t *specials,
                              bool *after_text, const char *where)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(part, "SpecialToken"), "id"));
    if (json_object_get(part, "Sequence")) {
        *after_text = true;
        return 0;
    }
    const json_t *ids = json_object_get(name ? json_object_get(specials, name) : NULL, "ids");
    if (!json_is_array(ids))
        return spw__error(SPW_EFORMAT, "%s: post_processor: token %s has no ids", where,
                          name ? name : "(none)");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > 1 << 24)
            return spw__error(SPW_EFORMAT, "%s: post_processor: an id of %s is not 0 to 2^24",
                              where, name);
        int rc =
            spw__ids_append(*after_text ? &t->after : &t->before, (int32_t)json_integer_value(id));
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int load_template(spw__tokenizer *t, const json_t *rules, const char *where)
{
    const json_t *single = json_object_get(rules, "single");
    bool after_text = false;
    if (!json_is_array(single))
        return spw__error(SPW_EFORMAT, "%s: post_processor lacks \"single\"", where);
    if (t->before.n || t->after.n)
        return spw__error(SPW_ENOTSUP, "%s: post_processor has two templates: one is supported",
                          where);
    for (size_t i = 0; i < json_array_size(single); i++) {
        int rc = load_template_part(t, json_array_get(single, i),
                                    json_object_get(rules, "special_tokens"), &after_text, where);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int load_post_processor(spw__tokenizer *t, const json_t *rules, const char *where)
{
    const char *type = json_string_value(json_object_get(rules, "type"));
    if (!rules || json_is_null(rules) || (type && strcmp(type, "ByteLevel") == 0))
        return 0; /* ByteLevel moves offsets only */
    if (type && strcmp(type, "TemplateProcessing") == 0)
        return load_template(t, rules, where);
    const json_t *list = json_object_get(rules, "processors");
    if (!type || strcmp(type, "Sequence") != 0)
        return spw__error(SPW_ENOTSUP,
                          "%s: post_processor %s is not supported: ByteLevel and "
                          "TemplateProcessing are",
                          where, type ? type : "without a type");
    for (size_t i = 0; i < json_array_size(list); i++) {
        int rc = load_post_processor(t, json_array_get(list, i), where);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ----------------------------------------------------------------------------------- loading -- */

/* A name in tokenizer_config.json: a string, or an object with "content". */
static int32_t named_token(const spw__tokenizer *t, const json_t *config, const char *key)
{
    const json_t *value = json_object_get(config, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value) ? spw__tokenizer_find(t, json_string_value(value)) : -1;
}

static int load_chat_template(spw__tokenizer *t, const char *directory, const json_t *config)
{
    size_t bytes;
    const char *inside = json_string_value(json_object_get(config, "chat_template"));
    char *path = spw__path_join(directory, "chat_template.jinja");
    int rc = path ? 0 : SPW_EHOSTMEM;
    if (rc == 0 && access(path, F_OK) == 0)
        rc = spw__file_read(path, max_template_bytes, &t->chat_template, &bytes);
    else if (rc == 0 && inside)
        rc = (t->chat_template = spw__strdup(inside)) ? 0 : SPW_EHOSTMEM;
    free(path);
    return rc;
}

static int load_config(spw__tokenizer *t, const char *directory)
{
    json_t *config = NULL;
    char *path = spw__path_join(directory, "tokenizer_config.json");
    int rc = path ? 0 : SPW_EHOSTMEM;
    t->bos = t->eos = -1;
    if (rc == 0 && access(path, F_OK) == 0)
        rc = spw__json_load(path, max_json_bytes, &config);
    if (rc == 0) {
        t->bos = named_token(t, config, "bos_token");
        t->eos = named_token(t, config, "eos_token");
        rc = load_chat_template(t, directory, config);
    }
    json_decref(config);
    free(path);
    return rc;
}

static int index_texts(spw__tokenizer *t)
{
    const char *text;
    json_t *id;
    int32_t highest = t->bpe.highest;
    for (size_t i = 0; i < t->added.n; i++)
        highest = t->added.tokens[i].id > highest ? t->added.tokens[i].id : highest;
    t->vocab = (uint32_t)highest + 1;
    t->texts = spw__calloc(t->vocab, sizeof *t->texts);
    if (!t->texts)
        return SPW_EHOSTMEM;
    json_object_foreach((json_t *)(uintptr_t)t->bpe.vocab, text, id)
        t->texts[json_integer_value(id)] = text;
    return 0;
}

/* A text that is looked for after NFC must itself be NFC, or it would never be found. */
static int check_added(const spw__tokenizer *t, const char *where)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && t->nfc && i < t->added.n; i++) {
        const spw__added_token *token = &t->added.tokens[i];
        char *composed;
        size_t n;
        rc = spw__nfc(token->text, token->bytes, &composed, &n);
        if (rc == 0 && token->normalized &&
            (n != token->bytes || memcmp(composed, token->text, n) != 0))
            rc = spw__error(SPW_ENOTSUP, "%s: added_tokens: \"%s\" is not in NFC", where,
                            token->text);
        free(composed);
    }
    return rc;
}

static int load_parts(spw__tokenizer *t, const char *where)
{
    const json_t *root = t->document;
    int rc = spw__bpe_load(&t->bpe, json_object_get(root, "model"), where);
    if (rc == 0)
        rc = spw__pretok_load(&t->pretok, json_object_get(root, "pre_tokenizer"), where);
    if (rc == 0)
        rc = load_normalizer(t, json_object_get(root, "normalizer"), where);
    if (rc == 0)
        rc = load_post_processor(t, json_object_get(root, "post_processor"), where);
    if (rc == 0)
        rc = spw__added_load(&t->added, json_object_get(root, "added_tokens"), where);
    if (rc == 0)
        rc = check_added(t, where);
    return rc == 0 ? index_texts(t) : rc;
}

int spw__tokenizer_load(const char *directory, spw__tokenizer **result)
{
    spw__tokenizer *t = spw__calloc(1, sizeof *t);
    char *path = spw__path_join(directory, "tokenizer.json");
    int rc = t && path ? spw__json_load(path, max_json_bytes, &t->document) : SPW_EHOSTMEM;
    if (rc == 0)
        rc = load_parts(t, path);
    if (rc == 0)
        rc = load_config(t, directory);
    free(path);
    if (rc < 0)
        spw__tokenizer_free(t);
    else
        *result = t;
    return rc;
}

void spw__tokenizer_free(spw__tokenizer *t)
{
    if (!t)
        return;
    spw__bpe_free(&t->bpe);
    spw__pretok_free(&t->pretok);
    spw__added_free(&t->added);
    free(t->before.ids);
    free(t->after.ids);
    free(t->texts);
    free(t->chat_template);
    json_decref(t->document);
    free(t);
}

/* ---------------------------------------------------------------------------------- encoding -- */

typedef struct encoding {
    const spw__tokenizer *t;
    spw__ids *ids;
} encoding;

static int encode_piece(void *context, const char *text, size_t bytes)
{
    encoding *e = context;
    return spw__bpe_encode(&e->t->bpe, text, bytes, e->ids);
}

static int encode_normalized_part(void *context, const char *text, size_t bytes,
                                  const spw__added_token *token)
{
    encoding *e = context;
    if (token)
        return spw__ids_append(e->ids, token->id);
    return spw__pretok_cut(&e->t->pretok, text, bytes, encode_piece, e);
}

static int encode_part(void *context, const char *text, size_t bytes, const spw__added_token *token)
{
    encoding *e = context;
    if (token)
        return spw__ids_append(e->ids, token->id);
    if (!e->t->nfc)
        return spw__added_cut(&e->t->added, true, text, bytes, encode_normalized_part, e);
    char *composed;
    size_t n;
    int rc = spw__nfc(text, bytes, &composed, &n);
    if (rc == 0)
        rc = spw__added_cut(&e->t->added, true, composed, n, encode_normalized_part, e);
    free(composed);
    return rc;
}

static int check_utf8(const char *text, size_t bytes)
{
    utf8proc_int32_t code;
    for (size_t at = 0; at < bytes;) {
        if ((unsigned char)text[at] < 0x80) {
            at++;
            continue;
        }
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                              (utf8proc_ssize_t)(bytes - at), &code);
        if (n <= 0)
            return spw__error(SPW_EINVAL, "not UTF-8 at byte %zu", at);
        at += (size_t)n;
    }
    return 0;
}

static int append_all(spw__ids *to, const spw__ids *from)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < from->n; i++)
        rc = spw__ids_append(to, from->ids[i]);
    return rc;
}

int spw__tokenizer_begin(const spw__tokenizer *t, spw__ids *ids)
{
    return append_all(ids, &t->before);
}

int spw__tokenizer_encode(const spw__tokenizer *t, const char *text, size_t bytes, bool special,
                          spw__ids *ids)
{
    encoding e = {t, ids};
    int rc = check_utf8(text, bytes);
    if (rc == 0 && special)
        rc = append_all(ids, &t->before);
    if (rc == 0)
        rc = spw__added_cut(&t->added, false, text, bytes, encode_part, &e);
    if (rc == 0 && special)
        rc = append_all(ids, &t->after);
    return rc;
}

/* ---------------------------------------------------------------------------------- decoding -- */

/* The bytes that a token's characters stand for; its text as it is if one stands for none. The
 * library does so with added tokens too, odd as it is: decoding gives byte E9 for an added U+00E9.
 */
static size_t decode_token(const char *text, char *out)
{
    size_t n = 0, bytes = strlen(text);
    utf8proc_int32_t code;
    for (size_t at = 0; at < bytes;) {
        utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text + at,
                                                   (utf8proc_ssize_t)(bytes - at), &code);
        int byte = length > 0 ? spw__byte_of_char((uint32_t)code) : -1;
        if (byte < 0) {
            memcpy(out, text, bytes);
            return bytes;
        }
        out[n++] = (char)byte;
        at += (size_t)length;
    }
    return n;
}

/* The text that an id has in the file. NULL: none, or one to be skipped. */
static const char *text_of(const spw__tokenizer *t, int32_t id, bool skip_special)
{
    const spw__added_token *added = spw__added_by_id(&t->added, id);
    if (added)
        return skip_special && added->special ? NULL : added->text;
    return id >= 0 && (uint32_t)id < t->vocab ? t->texts[id] : NULL;
}

int spw__tokenizer_decode(const spw__tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                          char **text, size_t *bytes)
{
    size_t room = 1, length = 0;
    for (size_t i = 0; i < n; i++) {
        const char *token = text_of(t, ids[i], skip_special);
        room += token ? strlen(token) : 0;
    }
    char *out = spw__calloc(room, 1);
    if (!out)
        return SPW_EHOSTMEM;
    for (size_t i = 0; i < n; i++) {
        const char *token = text_of(t, ids[i], skip_special);
        length += token ? decode_token(token, out + length) : 0;
    }
    *text = out;
    *bytes = length;
    return 0;
}

/* ------------------------------------------------------------------------------------- tokens --
 */

size_t spw__tokenizer_token_bytes(const spw__tokenizer *t, int32_t id)
{
    const spw__added_token *added = spw__added_by_id(&t->added, id);
    const char *token = text_of(t, id, false);
    size_t n = 0, bytes = token ? strlen(token) : 0;
    if (added)
        return added->bytes;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)token[i] & 0xC0) != 0x80; /* a character a byte */
    return n;
}

const char *spw__tokenizer_chat_template(const spw__tokenizer *t)
{
    return t->chat_template ? t->chat_template : "";
}

int32_t spw__tokenizer_find(const spw__tokenizer *t, const char *token)
{
    size_t bytes = strlen(token);
    for (size_t i = 0; i < t->added.n; i++)
        if (t->added.tokens[i].bytes == bytes && memcmp(t->added.tokens[i].text, token, bytes) == 0)
            return t->added.tokens[i].id;
    return spw__bpe_find(&t->bpe, token, bytes);
}

int32_t spw__tokenizer_bos(const spw__tokenizer *t)
{
    return t->bos;
}

int32_t spw__tokenizer_eos(const spw__tokenizer *t)
{
    return t->eos;
}

uint32_t spw__tokenizer_vocab(const spw__tokenizer *t)
{
    return t->vocab;
}
