/*
 * golden.h - the small tokenizer of tests/data/tokenizer, as it is or edited, for the C tests.
 *
 * Its ids: a byte is its own id; he 256, ll 257, hell 258, hello 259, " w" 260, or 261, " wor" 262,
 * ld 263, " world" 264, 12 265 (its pieces never reach it), whole 266 (no merge leads there),
 * <|endoftext|> 267, <|im_start|> 268, <|im_end|> 269.
 */
#ifndef TESTS_TRAIN_GOLDEN_H
#define TESTS_TRAIN_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"
#include "train/tokenizer.h"

#include <spillway/spillway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char home[] = "/tmp/spw-golden-XXXXXX";

static inline int make_home(void **state)
{
    (void)state;
    return mkdtemp(home) ? 0 : -1;
}

static inline const char *in_home(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", home, name);
    return path;
}

static inline int drop_home(void **state)
{
    (void)state;
    (void)unlink(in_home("tokenizer.json"));
    (void)unlink(in_home("tokenizer_config.json"));
    (void)unlink(in_home("chat_template.jinja"));
    (void)unlink(in_home("rows.jsonl"));
    return rmdir(home); /* fails, and so does the test, when something else is left */
}

static inline void put_file(const char *name, const char *text, size_t bytes)
{
    assert_int_equal(spw__file_put(in_home(name), text, bytes), 0);
}

/* Copies a file of tests/data/tokenizer to the home, `from` (NULL: nothing) replaced once. */
static inline void put_edited(const char *name, const char *from, const char *to)
{
    char path[128], *text, *edited;
    size_t bytes;
    (void)snprintf(path, sizeof path, "data/tokenizer/%s", name);
    assert_int_equal(spw__file_read(path, 1 << 20, &text, &bytes), 0);
    char *at = from ? strstr(text, from) : text + bytes;
    if (!at)
        print_error("%s does not have: %s\n", path, from ? from : "");
    assert_non_null(at);
    assert_true(asprintf(&edited, "%.*s%s%s", (int)(at - text), text, from ? to : "",
                         at + (from ? strlen(from) : 0)) > 0);
    put_file(name, edited, strlen(edited));
    free(edited);
    free(text);
}

static inline spw__tokenizer *load_golden(void)
{
    spw__tokenizer *tokenizer;
    assert_int_equal(spw__tokenizer_load("data/tokenizer", &tokenizer), 0);
    return tokenizer;
}

/* The tokenizer with one edit of its tokenizer.json. */
static inline spw__tokenizer *load_edited(const char *from, const char *to)
{
    spw__tokenizer *tokenizer = NULL;
    put_edited("tokenizer_config.json", NULL, NULL);
    put_edited("tokenizer.json", from, to);
    if (spw__tokenizer_load(home, &tokenizer) < 0)
        print_error("%s\n", spw_last_error());
    assert_non_null(tokenizer);
    return tokenizer;
}

static inline void check_list(const int32_t *ids, size_t n, const int32_t *expected,
                              size_t n_expected)
{
    assert_int_equal(n, n_expected);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids[i], expected[i]);
}

#define CHECK_LIST(ids, n, ...)                                                                    \
    check_list(ids, n, (const int32_t[]){__VA_ARGS__},                                             \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static inline void check_message(const char *words)
{
    if (!strstr(spw_last_error(), words))
        print_error("not \"%s\" in: %s\n", words, spw_last_error());
    assert_non_null(strstr(spw_last_error(), words));
    assert_null(strchr(spw_last_error(), '\n'));
}

#endif
