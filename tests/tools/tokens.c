/*
 * tokens.c - lets the Python tests ask our tokenizer: one line in, one line out.
 *
 * Usage: tokens DIR [--special | --decode | --pieces | --chat] [NAME]
 *   (none), --special   in: a JSON string; out: its ids
 *   --decode            in: ids; out: their text's bytes in hexadecimal, special tokens left out
 *   --pieces            in: a JSON string; out: a JSON array of what the pre-tokenizers cut it into
 *   --chat [NAME]       in: a JSON array of messages; out: ids, each of an answer with a + behind
 */
#include "base/error.h"
#include "base/file.h"
#include "format/json.h"
#include "train/bpe.h"
#include "train/pretok.h"
#include "train/template.h"
#include "train/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TURNS = 64 };

typedef struct asking {
    const char *mode; /* "" without one */
    spw__tokenizer *tokenizer;
    spw__template chat;
    json_t *document; /* of --pieces */
    spw__pretok pretok;
    spw__ids ids, counted;
} asking;

static void check(int rc)
{
    if (rc == 0)
        return;
    (void)fprintf(stderr, "tokens: %s\n", spw_last_error());
    exit(1);
}

static bool is_mode(const asking *a, const char *mode)
{
    return strcmp(a->mode, mode) == 0;
}

static void put_ids(const asking *a)
{
    for (size_t i = 0; i < a->ids.n; i++)
        (void)printf("%s%d%s", i ? " " : "", a->ids.ids[i],
                     i < a->counted.n && a->counted.ids[i] ? "+" : "");
}

static void encode(asking *a, const json_t *text)
{
    check(spw__tokenizer_encode(a->tokenizer, json_string_value(text), json_string_length(text),
                                is_mode(a, "--special"), &a->ids));
    put_ids(a);
}

static void chat(asking *a, const json_t *messages)
{
    spw__turn turns[MOST_TURNS];
    size_t n = json_array_size(messages) < MOST_TURNS ? json_array_size(messages) : MOST_TURNS;
    for (size_t i = 0; i < n; i++) {
        const json_t *message = json_array_get(messages, i);
        const json_t *content = json_object_get(message, "content");
        turns[i].role = json_string_value(json_object_get(message, "role"));
        turns[i].content = json_string_value(content);
        turns[i].content_bytes = json_string_length(content);
    }
    check(spw__template_encode(&a->chat, a->tokenizer, turns, n, &a->ids, &a->counted));
    put_ids(a);
}

static int add_piece(void *list, const char *text, size_t bytes)
{
    return json_array_append_new(list, json_stringn(text, bytes));
}

static void cut(asking *a, const json_t *text)
{
    json_t *list = json_array();
    check(spw__pretok_cut(&a->pretok, json_string_value(text), json_string_length(text), add_piece,
                          list));
    check(json_dumpf(list, stdout, JSON_ENSURE_ASCII));
    json_decref(list);
}

static void decode(asking *a, char *line)
{
    char *text, *end = line;
    size_t bytes;
    for (long id = strtol(line, &end, 10); end != line; id = strtol(line, &end, 10)) {
        check(spw__ids_append(&a->ids, (int32_t)id));
        line = end;
    }
    check(spw__tokenizer_decode(a->tokenizer, a->ids.ids, a->ids.n, true, &text, &bytes));
    for (size_t i = 0; i < bytes; i++)
        (void)printf("%02x", (unsigned char)text[i]);
    free(text);
}

static void answer(asking *a, char *line, size_t bytes)
{
    json_t *value = NULL;
    a->ids.n = a->counted.n = 0;
    if (is_mode(a, "--decode")) {
        decode(a, line);
    } else {
        check(spw__json_parse(line, bytes, "stdin", false, &value));
        if (is_mode(a, "--chat"))
            chat(a, value);
        else if (is_mode(a, "--pieces"))
            cut(a, value);
        else
            encode(a, value);
    }
    json_decref(value);
    (void)putchar('\n');
}

static void open_all(asking *a, const char *directory, const char *name)
{
    check(spw__tokenizer_load(directory, &a->tokenizer));
    if (is_mode(a, "--chat"))
        check(spw__template_choose(a->tokenizer, name, &a->chat));
    if (!is_mode(a, "--pieces"))
        return;
    char *path = spw__path_join(directory, "tokenizer.json");
    check(spw__json_load(path, UINT64_C(1) << 30, &a->document));
    check(spw__pretok_load(&a->pretok, json_object_get(a->document, "pre_tokenizer"), path));
    free(path);
}

int main(int argc, char **argv)
{
    asking a = {.mode = argc > 2 ? argv[2] : ""};
    if (argc < 2) {
        (void)fprintf(stderr,
                      "usage: tokens DIR [--special | --decode | --pieces | --chat [NAME]]\n");
        return 2;
    }
    open_all(&a, argv[1], argc > 3 ? argv[3] : NULL);
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t bytes; (bytes = getline(&line, &capacity, stdin)) >= 0;)
        answer(&a, line, (size_t)bytes);
    free(line);
    free(a.ids.ids);
    free(a.counted.ids);
    spw__pretok_free(&a.pretok);
    json_decref(a.document);
    spw__tokenizer_free(a.tokenizer);
    return 0;
}
