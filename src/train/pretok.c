#define PCRE2_CODE_UNIT_WIDTH 8
#include "train/pretok.h"

#include "base/error.h"
#include "base/mem.h"
#include "train/unicode.h"

#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* GPT-2's pattern, which ByteLevel means by use_regex (huggingface/tokenizers, byte_level.rs). */
static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* No escape is spelled out to more than this. */
enum { LONGEST_SPELLING = 1024 };

/* Appends to a buffer that is large enough. */
static char *put(char *at, const char *text)
{
    size_t n = strlen(text);
    memcpy(at, text, n);
    return at + n;
}

/* What stands for an escape inside a class; NULL: itself. *length is the escape's, less the "\". */
static const char *inside_of(const char *escape, size_t *length)
{
    *length = 1;
    if (*escape == 's' || *escape == 'S')
        return spw__white_space;
    *length = 4;
    if (strncmp(escape, "p{L}", 4) == 0)
        return spw__later_letters;
    return strncmp(escape, "p{N}", 4) == 0 ? spw__later_numbers : NULL;
}

/* Spells out the escape behind a "\" and returns what follows it. */
static const char *put_escape(char **at, const char *escape, bool in_class)
{
    size_t length;
    const char *inside = inside_of(escape, &length);
    if (!inside || (*escape == 'S' && in_class)) {
        *(*at)++ = '\\';
        *(*at)++ = *escape;
        return escape + 1;
    }
    if (!in_class)
        *at = put(*at, *escape == 'S' ? "[^" : "[");
    if (*escape == 'p') {
        *(*at)++ = '\\';
        memcpy(*at, escape, length);
        *at += length;
    }
    *at = put(*at, inside);
    if (!in_class)
        *at = put(*at, "]");
    return escape + length;
}

/* The pattern with \s, \S, \p{L} and \p{N} spelled out (unicode.h says why); new memory. */
static char *spell_out(const char *pattern)
{
    char *out = spw__calloc(strlen(pattern) + 1, LONGEST_SPELLING);
    bool in_class = false;
    char *at = out;
    for (const char *c = pattern; out && *c;) {
        if (*c == '\\' && c[1]) {
            c = put_escape(&at, c + 1, in_class);
            continue;
        }
        if (*c == '[')
            in_class = true;
        else if (*c == ']')
            in_class = false;
        *at++ = *c++;
    }
    return out;
}

/* What of a pattern means one thing to Oniguruma, which the tokenizers library uses, and another to
 * PCRE2; NULL: nothing. */
static const char *strange_escape(const char *c, bool in_class)
{
    if (strchr("rntfsdDpPx", *c) || (*c == 'S' && !in_class))
        return NULL;
    bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
    return letter ? "an escape other than \\r \\n \\t \\f \\s \\S \\d \\D \\p \\P \\x" : NULL;
}

static const char *strange_part(const char *c, bool in_class)
{
    if (in_class)
        return *c == '[' || strncmp(c, "&&", 2) == 0 ? "a class within a class" : NULL;
    if (*c == '^' || *c == '$')
        return "^ or $";
    return strncmp(c, "}+", 2) == 0 ? "a possessive {m,n}+" : NULL;
}

static const char *find_strange(const char *pattern)
{
    const char *found = NULL;
    bool in_class = false;
    for (const char *c = pattern; *c && !found; c++) {
        if (*c == '\\' && c[1]) {
            found = strange_escape(++c, in_class);
            if (c[1] == '{')
                c += strcspn(c, "}") - (strchr(c, '}') == NULL);
            continue;
        }
        found = strange_part(c, in_class);
        in_class = *c == '[' || (in_class && *c != ']');
        if (*c == '[' && c[1] == '^')
            c++;
    }
    return found;
}

static int compile(const char *pattern, const char *where, void **code)
{
    int error;
    PCRE2_SIZE at;
    const char *strange = find_strange(pattern);
    if (strange)
        return spw__error(SPW_ENOTSUP, "%s: pre_tokenizer: pattern %s: %s is not supported", where,
                          pattern, strange);
    char *spelled = spell_out(pattern);
    if (!spelled)
        return SPW_EHOSTMEM;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)spelled, PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    free(spelled);
    if (!compiled) {
        char text[128];
        (void)pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof text);
        return spw__error(SPW_EFORMAT, "%s: pre_tokenizer: pattern %s: %s", where, pattern, text);
    }
    (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE); /* without it the same, slower */
    *code = compiled;
    return 0;
}

/* ---------------------------------------------------------------------------------- loading -- */

static int refuse(const char *where, const char *what)
{
    return spw__error(SPW_ENOTSUP,
                      "%s: pre_tokenizer: %s is not supported: Digits, Split (Isolated) and "
                      "ByteLevel are",
                      where, what);
}

static int load_split(spw__pretok_step *step, const json_t *rule, const char *where)
{
    const json_t *pattern = json_object_get(rule, "pattern");
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *behavior = json_string_value(json_object_get(rule, "behavior"));
    if (!regex)
        return refuse(where, "a Split without a Regex");
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return refuse(where, "a Split that is not Isolated");
    if (json_is_true(json_object_get(rule, "invert")))
        return refuse(where, "an inverted Split");
    return compile(regex, where, &step->pattern);
}

static int load_byte_level(spw__pretok_step *step, const json_t *rule, const char *where)
{
    step->prefix_space = json_is_true(json_object_get(rule, "add_prefix_space"));
    const json_t *use_regex = json_object_get(rule, "use_regex"); /* true where absent */
    return json_is_false(use_regex) ? 0 : compile(gpt2_pattern, where, &step->pattern);
}

/* Rust's is_numeric: one Unicode version newer than the patterns' \p{N}. */
static int load_digits(spw__pretok_step *step, const json_t *rule, const char *where)
{
    bool each = json_is_true(json_object_get(rule, "individual_digits"));
    char pattern[128];
    (void)snprintf(pattern, sizeof pattern, "[\\p{N}%s]%s", spw__newest_numbers, each ? "" : "+");
    return compile(pattern, where, &step->pattern);
}

static int load_rule(spw__pretok *pretok, const json_t *rule, const char *where)
{
    const char *type = json_string_value(json_object_get(rule, "type"));
    if (pretok->n_steps == SPW__PRETOK_STEPS)
        return refuse(where, "a sequence of more than 8");
    if (!type)
        return spw__error(SPW_EFORMAT, "%s: pre_tokenizer lacks \"type\"", where);
    spw__pretok_step *step = &pretok->steps[pretok->n_steps++];
    if (strcmp(type, "Split") == 0)
        return load_split(step, rule, where);
    if (strcmp(type, "ByteLevel") == 0)
        return load_byte_level(step, rule, where);
    if (strcmp(type, "Digits") == 0) {
        return load_digits(step, rule, where);
    }
    return refuse(where, type);
}

static int load_rules(spw__pretok *pretok, const json_t *rules, const char *where)
{
    const char *type = json_string_value(json_object_get(rules, "type"));
    if (!type || strcmp(type, "Sequence") != 0)
        return load_rule(pretok, rules, where);
    const json_t *list = json_object_get(rules, "pretokenizers");
    if (!json_is_array(list) || json_array_size(list) == 0)
        return spw__error(SPW_EFORMAT, "%s: pre_tokenizer: a Sequence of nothing", where);
    for (size_t i = 0; i < json_array_size(list); i++) {
        int rc = load_rule(pretok, json_array_get(list, i), where);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The vocabulary is of byte characters, so some step must be ByteLevel. */
static bool has_byte_level(const json_t *rules)
{
    const json_t *list = json_object_get(rules, "pretokenizers");
    const char *type = json_string_value(json_object_get(rules, "type"));
    for (size_t i = 0; i < json_array_size(list); i++)
        if (has_byte_level(json_array_get(list, i)))
            return true;
    return type && strcmp(type, "ByteLevel") == 0;
}

int spw__pretok_load(spw__pretok *pretok, const json_t *rules, const char *where)
{
    *pretok = (spw__pretok){.n_steps = 0};
    int rc = has_byte_level(rules)
                 ? load_rules(pretok, rules, where)
                 : spw__error(SPW_ENOTSUP,
                              "%s: pre_tokenizer has no ByteLevel: only byte-level BPE is "
                              "supported (GPT-2, Llama 3, Qwen, SmolLM)",
                              where);
    if (rc < 0)
        spw__pretok_free(pretok);
    return rc;
}

void spw__pretok_free(spw__pretok *pretok)
{
    for (int i = 0; i < pretok->n_steps; i++)
        pcre2_code_free(pretok->steps[i].pattern);
    *pretok = (spw__pretok){.n_steps = 0};
}

/* ---------------------------------------------------------------------------------- cutting -- */

typedef struct cutting {
    const spw__pretok *pretok;
    pcre2_match_data *match; /* of one pair; each step is done with it before the next begins */
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    int (*piece)(void *context, const char *text, size_t bytes);
    void *piece_context;
} cutting;

static int cut_from(cutting *c, int step, const char *text, size_t bytes);

static int match_at(cutting *c, int step, const char *text, size_t bytes, size_t from,
                    size_t found[2])
{
    int rc = pcre2_match(c->pretok->steps[step].pattern, (PCRE2_SPTR)text, bytes, from,
                         PCRE2_NO_UTF_CHECK, c->match, c->context);
    if (rc == PCRE2_ERROR_NOMATCH) {
        found[0] = found[1] = bytes;
        return 0;
    }
    if (rc < 0)
        return spw__error(SPW_EINVAL,
                          "the pre-tokenizer's pattern gave up on a text of %zu bytes "
                          "(PCRE2 error %d)",
                          bytes, rc);
    const PCRE2_SIZE *pair = pcre2_get_ovector_pointer(c->match);
    found[0] = pair[0];
    found[1] = pair[1];
    return 0;
}

static int cut_by_pattern(cutting *c, int step, const char *text, size_t bytes)
{
    size_t done = 0, from = 0, found[2] = {0, 0};
    while (done < bytes) {
        int rc = match_at(c, step, text, bytes, from, found);
        if (rc < 0)
            return rc;
        if (found[0] == found[1] && found[0] < bytes) {
            from = found[1] + 1; /* an empty match cuts nothing */
            while (from < bytes && ((unsigned char)text[from] & 0xC0) == 0x80)
                from++;
            continue;
        }
        if (found[0] > done)
            rc = cut_from(c, step + 1, text + done, found[0] - done);
        if (rc == 0 && found[1] > found[0])
            rc = cut_from(c, step + 1, text + found[0], found[1] - found[0]);
        if (rc < 0)
            return rc;
        done = from = found[1];
    }
    return 0;
}

static int cut_with_space(cutting *c, int step, const char *text, size_t bytes)
{
    char *longer = spw__calloc(bytes + 1, 1);
    if (!longer)
        return SPW_EHOSTMEM;
    longer[0] = ' ';
    memcpy(longer + 1, text, bytes);
    int rc = c->pretok->steps[step].pattern ? cut_by_pattern(c, step, longer, bytes + 1)
                                            : cut_from(c, step + 1, longer, bytes + 1);
    free(longer);
    return rc;
}

static int cut_from(cutting *c, int step, const char *text, size_t bytes)
{
    if (step == c->pretok->n_steps)
        return c->piece(c->piece_context, text, bytes);
    if (c->pretok->steps[step].prefix_space && text[0] != ' ')
        return cut_with_space(c, step, text, bytes);
    return c->pretok->steps[step].pattern ? cut_by_pattern(c, step, text, bytes)
                                          : cut_from(c, step + 1, text, bytes);
}

int spw__pretok_cut(const spw__pretok *pretok, const char *text, size_t bytes,
                    int (*piece)(void *, const char *, size_t), void *context)
{
    enum { STACK_START = 32 << 10, STACK_MOST = 16 << 20 };
    if (!bytes)
        return 0;
    cutting c = {.pretok = pretok, .piece = piece, .piece_context = context};
    c.match = pcre2_match_data_create(1, NULL);
    c.context = pcre2_match_context_create(NULL);
    c.stack = pcre2_jit_stack_create(STACK_START, STACK_MOST, NULL);
    int rc = SPW_EHOSTMEM;
    if (c.match && c.context && c.stack) {
        pcre2_jit_stack_assign(c.context, NULL, c.stack);
        rc = cut_from(&c, 0, text, bytes);
    } else {
        rc = spw__error(rc, "out of host memory for the pre-tokenizer");
    }
    pcre2_jit_stack_free(c.stack);
    pcre2_match_context_free(c.context);
    pcre2_match_data_free(c.match);
    return rc;
}
