#include "train/template.h"

#include "base/error.h"
#include "base/mem.h"
#include "train/bpe.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Default system turns of the templates that have one. */
static const char *const known_systems[] = {
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
};

/* What a template says that the built-in ones do not do. */
static const char *const beyond_us[] = {"<think>", "Cutting Knowledge Date"};

static bool has_tokens(const spw__tokenizer *t, const char *a, const char *b)
{
    return spw__tokenizer_find(t, a) >= 0 && spw__tokenizer_find(t, b) >= 0;
}

static int choose_by_tokens(const spw__tokenizer *t, spw__template_kind *kind)
{
    const char *text = spw__tokenizer_chat_template(t);
    for (size_t i = 0; i < sizeof beyond_us / sizeof *beyond_us; i++)
        if (strstr(text, beyond_us[i]))
            return spw__error(SPW_ENOTSUP,
                              "the model's chat template (it has \"%s\") is more than the built-in "
                              "ones: name one with --template chatml or llama3, or give rows of "
                              "prompt and completion",
                              beyond_us[i]);
    if (has_tokens(t, "<|im_start|>", "<|im_end|>"))
        *kind = SPW__TEMPLATE_CHATML;
    else if (has_tokens(t, "<|start_header_id|>", "<|eot_id|>"))
        *kind = SPW__TEMPLATE_LLAMA3;
    else
        return spw__error(SPW_ENOTSUP,
                          "the tokenizer has the special tokens of no built-in chat template: name "
                          "one with --template chatml or llama3, or give rows of prompt and "
                          "completion");
    return 0;
}

static int choose_by_name(const char *name, spw__template_kind *kind)
{
    if (strcmp(name, "chatml") == 0)
        *kind = SPW__TEMPLATE_CHATML;
    else if (strcmp(name, "llama3") == 0)
        *kind = SPW__TEMPLATE_LLAMA3;
    else
        return spw__error(SPW_EINVAL, "--template %s: chatml and llama3 are built in", name);
    return 0;
}

int spw__template_choose(const spw__tokenizer *t, const char *name, spw__template *chosen)
{
    *chosen = (spw__template){.begin = ""};
    int rc = name ? choose_by_name(name, &chosen->kind) : choose_by_tokens(t, &chosen->kind);
    if (rc < 0)
        return rc;
    const char *text = spw__tokenizer_chat_template(t);
    bool llama = chosen->kind == SPW__TEMPLATE_LLAMA3;
    for (size_t i = 0; !llama && i < sizeof known_systems / sizeof *known_systems; i++)
        if (strstr(text, known_systems[i]))
            chosen->default_system = known_systems[i];
    if (llama)
        chosen->begin = "<|begin_of_text|>";
    const char *end = llama ? "<|eot_id|>" : "<|im_end|>";
    chosen->end = spw__tokenizer_find(t, end);
    if (chosen->end < 0)
        return spw__error(SPW_EFORMAT, "--template %s: the tokenizer has no token %s",
                          llama ? "llama3" : "chatml", end);
    return 0;
}

/* ------------------------------------------------------------------------------------- a turn -- */

typedef struct text {
    char *bytes;
    size_t n, capacity;
} text;

static int put(text *out, const char *bytes, size_t n)
{
    int rc = spw__grow(&out->bytes, &out->capacity, out->n + n + 1, 1);
    if (rc < 0)
        return rc;
    memcpy(out->bytes + out->n, bytes, n);
    out->n += n;
    return 0;
}

static int put_string(text *out, const char *string)
{
    return put(out, string, strlen(string));
}

static bool is_space(utf8proc_int32_t code)
{
    return (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x1F) || code == 0x85 ||
           utf8proc_category(code) == UTF8PROC_CATEGORY_ZS ||
           utf8proc_category(code) == UTF8PROC_CATEGORY_ZL ||
           utf8proc_category(code) == UTF8PROC_CATEGORY_ZP;
}

/* Jinja's trim is Python's str.strip. */
static void trim(const char **bytes, size_t *n)
{
    utf8proc_int32_t code;
    utf8proc_ssize_t length;
    while (*n && (length = utf8proc_iterate((const utf8proc_uint8_t *)*bytes,
                                            (utf8proc_ssize_t)*n, &code)) > 0 && is_space(code)) {
        *bytes += length;
        *n -= (size_t)length;
    }
    while (*n) {
        size_t last = *n - 1;
        while (last && ((unsigned char)(*bytes)[last] & 0xC0) == 0x80)
            last--;
        length = utf8proc_iterate((const utf8proc_uint8_t *)*bytes + last,
                                  (utf8proc_ssize_t)(*n - last), &code);
        if (length <= 0 || !is_space(code))
            return;
        *n = last;
    }
}

/* The turn's text; *head is where the content begins. */
static int render(const spw__template *chosen, const spw__turn *turn, text *out, size_t *head)
{
    bool llama = chosen->kind == SPW__TEMPLATE_LLAMA3;
    const char *content = turn->content;
    size_t bytes = turn->content_bytes;
    int rc = put_string(out, llama ? "<|start_header_id|>" : "<|im_start|>");
    if (rc == 0)
        rc = put_string(out, turn->role);
    if (rc == 0)
        rc = put_string(out, llama ? "<|end_header_id|>\n\n" : "\n");
    *head = out->n;
    if (llama)
        trim(&content, &bytes);
    if (rc == 0)
        rc = put(out, content, bytes);
    return rc == 0 ? put_string(out, llama ? "<|eot_id|>" : "<|im_end|>\n") : rc;
}

/* Marks the answer among the ids from `first` on: from the first token that begins in the content
 * (a token of white space may reach into it from the head) to the last end of turn. */
static int count_answer(const spw__template *chosen, const spw__tokenizer *t, const spw__ids *ids,
                        size_t first, size_t head, spw__ids *counted)
{
    size_t last = ids->n, at = 0;
    while (last > first && ids->ids[last - 1] != chosen->end)
        last--;
    for (size_t i = first; i < ids->n; i++) {
        int rc = spw__ids_append(counted, at >= head && i < last);
        if (rc < 0)
            return rc;
        at += spw__tokenizer_token_bytes(t, ids->ids[i]);
    }
    return 0;
}

static int encode_turn(const spw__template *chosen, const spw__tokenizer *t, const spw__turn *turn,
                       spw__ids *ids, spw__ids *counted)
{
    text out = {.bytes = NULL};
    size_t head, first = ids->n;
    bool answer = strcmp(turn->role, "assistant") == 0;
    int rc = render(chosen, turn, &out, &head);
    if (rc == 0)
        rc = spw__tokenizer_encode(t, out.bytes, out.n, false, ids);
    if (rc == 0)
        rc = count_answer(chosen, t, ids, first, answer ? head : SIZE_MAX, counted);
    free(out.bytes);
    return rc;
}

/* Every turn begins with a special token, which cuts the text wherever it stands: so turns may be
 * encoded one by one. */
int spw__template_encode(const spw__template *chosen, const spw__tokenizer *t,
                         const spw__turn *turns, size_t n_turns, spw__ids *ids, spw__ids *counted)
{
    size_t first = ids->n;
    int rc = spw__tokenizer_encode(t, chosen->begin, strlen(chosen->begin), false, ids);
    for (size_t i = first; rc == 0 && i < ids->n; i++)
        rc = spw__ids_append(counted, 0);
    bool system_first = n_turns && strcmp(turns[0].role, "system") == 0;
    if (rc == 0 && chosen->default_system && !system_first) {
        const char *system = chosen->default_system;
        rc = encode_turn(chosen, t, &(spw__turn){"system", system, strlen(system)}, ids, counted);
    }
    for (size_t i = 0; rc == 0 && i < n_turns; i++)
        rc = encode_turn(chosen, t, &turns[i], ids, counted);
    return rc;
}
