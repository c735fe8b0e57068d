#include "train/template.h"

#include "base/error.h"
#include "base/mem.h"
#include "train/bpe.h"
#include "train/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* What a template says that the built-in ones do not do. */
static const char *const beyond_us[] = {"<think>", "enable_thinking", "strftime_now",
                                        "Cutting Knowledge Date"};
static const char *const beyond_chatml = "bos_token";

typedef struct marks {
    const char *name, *turn, *end;
} marks;

static const marks of_kind[] = {
    [SPW__TEMPLATE_CHATML] = {"chatml", "<|im_start|>", "<|im_end|>"},
    [SPW__TEMPLATE_LLAMA3] = {"llama3", "<|start_header_id|>", "<|eot_id|>"},
};

static bool has_tokens(const spw__tokenizer *t, spw__template_kind kind)
{
    return spw__tokenizer_find(t, of_kind[kind].turn) >= 0 &&
           spw__tokenizer_find(t, of_kind[kind].end) >= 0;
}

static int refuse_beyond(const char *what)
{
    return spw__error(
        SPW_ENOTSUP,
        "the model's chat template (it has \"%s\") is more than the built-in ones: name "
        "one with --template chatml or llama3, or give rows of prompt and completion",
        what);
}

static int choose_by_tokens(const spw__tokenizer *t, spw__template_kind *kind)
{
    const char *text = spw__tokenizer_chat_template(t);
    for (size_t i = 0; i < sizeof beyond_us / sizeof *beyond_us; i++)
        if (strstr(text, beyond_us[i]))
            return refuse_beyond(beyond_us[i]);
    if (has_tokens(t, SPW__TEMPLATE_CHATML))
        *kind = SPW__TEMPLATE_CHATML;
    else if (has_tokens(t, SPW__TEMPLATE_LLAMA3))
        *kind = SPW__TEMPLATE_LLAMA3;
    else
        return spw__error(SPW_ENOTSUP,
                          "the tokenizer has the special tokens of no built-in chat template: name "
                          "one with --template chatml or llama3, or give rows of prompt and "
                          "completion");
    return *kind == SPW__TEMPLATE_CHATML && strstr(text, beyond_chatml)
               ? refuse_beyond(beyond_chatml)
               : 0;
}

static int choose_by_name(const spw__tokenizer *t, const char *name, spw__template_kind *kind)
{
    *kind = SPW__TEMPLATE_CHATML;
    if (strcmp(name, of_kind[SPW__TEMPLATE_LLAMA3].name) == 0)
        *kind = SPW__TEMPLATE_LLAMA3;
    else if (strcmp(name, of_kind[SPW__TEMPLATE_CHATML].name) != 0)
        return spw__error(SPW_EINVAL, "--template %s: chatml and llama3 are built in", name);
    if (!has_tokens(t, *kind))
        return spw__error(SPW_EFORMAT, "--template %s: the tokenizer lacks the token %s or %s",
                          name, of_kind[*kind].turn, of_kind[*kind].end);
    return 0;
}

/* ChatML's default system turn is a literal in the template's text,
 *     '<|im_start|>system\nYou are ...<|im_end|>\n'
 * with the newline as it is or escaped; where a system turn is put together, a quote ends the
 * literal before <|im_end|> does. */
static int find_default_system(const spw__tokenizer *t, spw__template *chosen)
{
    static const char head[] = "<|im_start|>system", end[] = "<|im_end|>";
    const char *at = spw__tokenizer_chat_template(t);
    while ((at = strstr(at, head))) {
        at += sizeof head - 1;
        size_t newline = *at == '\n' ? 1 : strncmp(at, "\\n", 2) == 0 ? 2 : 0;
        const char *system = at + newline, *behind = strstr(system, end);
        size_t bytes = behind ? (size_t)(behind - system) : 0;
        if (!newline || strcspn(system, "'\"{}") < bytes || !bytes)
            continue;
        if (memchr(system, '\\', bytes))
            return refuse_beyond("\\");
        chosen->default_system = system;
        chosen->default_system_bytes = bytes;
        return 0;
    }
    return 0;
}

int spw__template_choose(const spw__tokenizer *t, const char *name, spw__template *chosen)
{
    *chosen = (spw__template){.begin = ""};
    int rc = name ? choose_by_name(t, name, &chosen->kind) : choose_by_tokens(t, &chosen->kind);
    if (rc < 0)
        return rc;
    chosen->end = spw__tokenizer_find(t, of_kind[chosen->kind].end);
    if (chosen->kind == SPW__TEMPLATE_LLAMA3)
        chosen->begin = "<|begin_of_text|>";
    return chosen->kind == SPW__TEMPLATE_CHATML ? find_default_system(t, chosen) : 0;
}

/* ------------------------------------------------------------------------------------- a turn --
 */

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
    return (code >= 0x1C && code <= 0x1F) || spw__is_space(code); /* to Python the four are, too */
}

/* Jinja's trim is Python's str.strip. */
static void trim(const char **bytes, size_t *n)
{
    utf8proc_int32_t code;
    utf8proc_ssize_t length;
    while (*n &&
           (length = utf8proc_iterate((const utf8proc_uint8_t *)*bytes, (utf8proc_ssize_t)*n,
                                      &code)) > 0 &&
           is_space(code)) {
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
    if (rc == 0 && chosen->default_system && !system_first)
        rc = encode_turn(
            chosen, t, &(spw__turn){"system", chosen->default_system, chosen->default_system_bytes},
            ids, counted);
    for (size_t i = 0; rc == 0 && i < n_turns; i++)
        rc = encode_turn(chosen, t, &turns[i], ids, counted);
    return rc;
}
