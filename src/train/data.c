#include "train/data.h"

#include "base/error.h"
#include "base/mem.h"
#include "format/json.h"
#include "train/bpe.h"
#include "train/template.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum shape { SHAPE_NONE, SHAPE_TEXT, SHAPE_COMPLETION, SHAPE_ALPACA, SHAPE_MESSAGES } shape;

typedef struct reading {
    const char *path;
    const spw__tokenizer *tokenizer;
    const spw__data_config *config;
    spw__data *data;
    size_t capacity;
    shape shape;        /* of the file, by its first row */
    spw__template chat; /* chosen when first needed */
    bool chat_chosen;
    spw__ids ids, counted; /* of the row under way */
    uint64_t line;
    char where[512]; /* "FILE:LINE" */
} reading;

/* ------------------------------------------------------------------------------------- shapes --
 */

static bool has(const json_t *row, const char *key)
{
    return json_object_get(row, key) != NULL;
}

static shape shape_of(const json_t *row)
{
    if (has(row, "messages"))
        return SHAPE_MESSAGES;
    if (has(row, "prompt") && has(row, "completion"))
        return SHAPE_COMPLETION;
    if (has(row, "instruction") && has(row, "output"))
        return SHAPE_ALPACA;
    return has(row, "text") ? SHAPE_TEXT : SHAPE_NONE;
}

static int check_shape(reading *r, const json_t *row)
{
    if (!json_is_object(row))
        return spw__error(SPW_EFORMAT, "%s: not a JSON object", r->where);
    shape found = shape_of(row);
    if (found == SHAPE_NONE)
        return spw__error(
            SPW_EFORMAT,
            "%s: has none of \"text\", \"prompt\" and \"completion\", \"instruction\" "
            "and \"output\", \"messages\"",
            r->where);
    if (r->shape != SHAPE_NONE && found != r->shape)
        return spw__error(SPW_EFORMAT, "%s: its fields are not those of the rows before it",
                          r->where);
    r->shape = found;
    return 0;
}

/* A string field; its bytes may include zero bytes. */
static int get_text(const reading *r, const json_t *row, const char *key, const char **text,
                    size_t *bytes)
{
    int rc = spw__json_get_string(row, key, r->where, true, text);
    if (rc == 0)
        *bytes = json_string_length(json_object_get(row, key));
    return rc;
}

/* ----------------------------------------------------------------------------------- encoding --
 */

/* Marks the ids that were appended since `counted` was last as long. */
static int count_new(reading *r, bool count)
{
    int rc = 0;
    while (rc == 0 && r->counted.n < r->ids.n)
        rc = spw__ids_append(&r->counted, count);
    return rc;
}

/* `first`: what the tokenizer puts before a text comes before this one. */
static int encode(reading *r, const char *text, size_t bytes, bool first, bool count)
{
    int rc = first ? spw__tokenizer_begin(r->tokenizer, &r->ids) : 0;
    if (rc == 0)
        rc = spw__tokenizer_encode(r->tokenizer, text, bytes, false, &r->ids);
    if (rc < 0)
        return spw__error(rc, "%s: %s", r->where, spw_last_error());
    return count_new(r, count);
}

static int encode_end(reading *r)
{
    int32_t end = spw__tokenizer_eos(r->tokenizer);
    int rc = end >= 0 ? spw__ids_append(&r->ids, end) : 0;
    return rc == 0 ? count_new(r, true) : rc;
}

static int encode_text_row(reading *r, const json_t *row)
{
    const char *text;
    size_t bytes;
    int rc = get_text(r, row, "text", &text, &bytes);
    if (rc == 0)
        rc = encode(r, text, bytes, true, true);
    return rc == 0 ? encode_end(r) : rc;
}

static int encode_completion_row(reading *r, const json_t *row)
{
    const char *prompt, *completion;
    size_t prompt_bytes, completion_bytes;
    int rc = get_text(r, row, "prompt", &prompt, &prompt_bytes);
    if (rc == 0)
        rc = get_text(r, row, "completion", &completion, &completion_bytes);
    if (rc == 0)
        rc = encode(r, prompt, prompt_bytes, true, false);
    if (rc == 0)
        rc = encode(r, completion, completion_bytes, false, true);
    return rc == 0 ? encode_end(r) : rc;
}

static int encode_turns(reading *r, const spw__turn *turns, size_t n)
{
    int rc = 0;
    if (!r->chat_chosen)
        rc = spw__template_choose(r->tokenizer, r->config->template, &r->chat);
    if (rc < 0)
        return rc;
    r->chat_chosen = true;
    rc = spw__template_encode(&r->chat, r->tokenizer, turns, n, &r->ids, &r->counted);
    return rc < 0 ? spw__error(rc, "%s: %s", r->where, spw_last_error()) : 0;
}

/* The instruction and, after an empty line, its input. */
static int encode_alpaca_turns(reading *r, const spw__turn parts[3])
{
    size_t bytes = parts[0].content_bytes + parts[1].content_bytes + 2;
    char *user = spw__calloc(bytes, 1);
    if (!user)
        return SPW_EHOSTMEM;
    size_t n = parts[0].content_bytes;
    memcpy(user, parts[0].content, n);
    if (parts[1].content_bytes) {
        user[n++] = '\n';
        memcpy(user + n, parts[1].content, parts[1].content_bytes);
        n += parts[1].content_bytes;
    }
    const spw__turn turns[] = {{"user", user, n},
                               {"assistant", parts[2].content, parts[2].content_bytes}};
    int rc = encode_turns(r, turns, 2);
    free(user);
    return rc;
}

static int encode_alpaca_row(reading *r, const json_t *row)
{
    spw__turn parts[3] = {{.content = ""}, {.content = ""}, {.content = ""}};
    int rc = get_text(r, row, "instruction", &parts[0].content, &parts[0].content_bytes);
    if (rc == 0 && has(row, "input") && !json_is_null(json_object_get(row, "input")))
        rc = get_text(r, row, "input", &parts[1].content, &parts[1].content_bytes);
    if (rc == 0)
        rc = get_text(r, row, "output", &parts[2].content, &parts[2].content_bytes);
    return rc == 0 ? encode_alpaca_turns(r, parts) : rc;
}

static int get_turn(const reading *r, const json_t *message, spw__turn *turn)
{
    if (!json_is_object(message))
        return spw__error(SPW_EFORMAT, "%s: a message is not an object", r->where);
    int rc = spw__json_get_string(message, "role", r->where, true, &turn->role);
    return rc == 0 ? get_text(r, message, "content", &turn->content, &turn->content_bytes) : rc;
}

static int encode_messages_row(reading *r, const json_t *row)
{
    const json_t *messages = json_object_get(row, "messages");
    size_t n = json_array_size(messages);
    if (n == 0)
        return spw__error(SPW_EFORMAT, "%s: \"messages\" is not a list of messages", r->where);
    spw__turn *turns = spw__calloc(n, sizeof *turns);
    int rc = turns ? 0 : SPW_EHOSTMEM;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = get_turn(r, json_array_get(messages, i), &turns[i]);
    if (rc == 0)
        rc = encode_turns(r, turns, n);
    free(turns);
    return rc;
}

static int encode_row(reading *r, const json_t *row)
{
    r->ids.n = r->counted.n = 0;
    switch (r->shape) {
    case SHAPE_TEXT:
        return encode_text_row(r, row);
    case SHAPE_COMPLETION:
        return encode_completion_row(r, row);
    case SHAPE_ALPACA:
        return encode_alpaca_row(r, row);
    default:
        return encode_messages_row(r, row);
    }
}

/* --------------------------------------------------------------------------------------- rows --
 */

/* Cuts the row under way to what may be run; *keep says whether it is a row at all. */
static int limit_row(reading *r, bool *keep)
{
    size_t most = (size_t)r->config->max_tokens + 1; /* the last one is only a target */
    *keep = true;
    if (r->ids.n <= most)
        return 0;
    switch (r->config->too_long) {
    case SPW__TRUNCATE:
        r->ids.n = most;
        r->data->n_truncated++;
        return 0;
    case SPW__SKIP:
        r->data->n_skipped++;
        *keep = false;
        return 0;
    default:
        return spw__error(SPW_EINVAL,
                          "%s: %zu tokens, --seq is %" PRIu32
                          ": raise it, or let --too-long truncate or skip",
                          r->where, r->ids.n - 1, r->config->max_tokens);
    }
}

static uint32_t count_targets(const reading *r)
{
    uint32_t n = 0;
    for (size_t i = 1; i < r->ids.n; i++)
        n += r->counted.ids[i] != 0;
    return n;
}

static int make_row(const reading *r, uint32_t n_targets, spw__row *row)
{
    uint32_t n = (uint32_t)r->ids.n - 1;
    *row = (spw__row){.n = n, .n_targets = n_targets, .line = r->line};
    row->tokens = spw__calloc(n, sizeof *row->tokens);
    row->targets = spw__calloc(n, sizeof *row->targets);
    if (!row->tokens || !row->targets) {
        free(row->tokens);
        free(row->targets);
        return SPW_EHOSTMEM;
    }
    memcpy(row->tokens, r->ids.ids, n * sizeof *row->tokens);
    for (uint32_t i = 0; i < n; i++)
        row->targets[i] = r->counted.ids[i + 1] ? r->ids.ids[i + 1] : -1;
    return 0;
}

static int keep_row(reading *r)
{
    spw__data *data = r->data;
    bool keep;
    int rc = limit_row(r, &keep);
    uint32_t n_targets = rc == 0 && keep ? count_targets(r) : 0;
    if (rc < 0 || !keep)
        return rc;
    if (!n_targets) {
        data->n_empty++;
        return 0;
    }
    rc = spw__grow(&data->rows, &r->capacity, data->n_rows + 1, sizeof *data->rows);
    if (rc == 0)
        rc = make_row(r, n_targets, &data->rows[data->n_rows]);
    if (rc < 0)
        return rc;
    const spw__row *row = &data->rows[data->n_rows++];
    data->n_tokens += row->n;
    data->n_targets += row->n_targets;
    data->longest = row->n > data->longest ? row->n : data->longest;
    return 0;
}

static bool is_blank(const char *line, size_t bytes)
{
    return strspn(line, " \t\r\n") == bytes;
}

static int read_line(reading *r, const char *line, size_t bytes)
{
    json_t *row;
    if (r->line == 1 && bytes >= 3 && memcmp(line, "\xEF\xBB\xBF", 3) == 0) {
        line += 3; /* a byte order mark */
        bytes -= 3;
    }
    if (is_blank(line, bytes))
        return 0;
    (void)snprintf(r->where, sizeof r->where, "%s:%" PRIu64, r->path, r->line);
    int rc = spw__json_parse(line, bytes, r->where, false, &row);
    if (rc < 0)
        return rc;
    rc = check_shape(r, row);
    if (rc == 0)
        rc = encode_row(r, row);
    if (rc == 0)
        rc = keep_row(r);
    json_decref(row);
    return rc;
}

static int read_lines(reading *r, FILE *file)
{
    char *line = NULL;
    size_t capacity = 0;
    ssize_t bytes;
    int rc = 0;
    while (rc == 0 && (bytes = getline(&line, &capacity, file)) >= 0) {
        r->line++;
        rc = read_line(r, line, (size_t)bytes);
    }
    if (rc == 0 && ferror(file))
        rc = spw__error_errno(errno, "%s: cannot read", r->path);
    free(line);
    return rc;
}

static int check_usable(const spw__data *data, const char *path)
{
    if (data->n_rows)
        return 0;
    return spw__error(SPW_EFORMAT,
                      "%s: no usable row: %zu without a token to learn, %zu skipped as too long",
                      path, data->n_empty, data->n_skipped);
}

int spw__data_load(const char *path, const spw__tokenizer *tokenizer,
                   const spw__data_config *config, spw__data *data)
{
    *data = (spw__data){.rows = NULL};
    reading r = {.path = path, .tokenizer = tokenizer, .config = config, .data = data};
    FILE *file = fopen(path, "re");
    if (!file)
        return spw__error_errno(errno, "%s: cannot open", path);
    int rc = read_lines(&r, file);
    (void)fclose(file);
    free(r.ids.ids);
    free(r.counted.ids);
    if (rc == 0)
        rc = check_usable(data, path);
    if (rc < 0)
        spw__data_free(data);
    return rc;
}

void spw__data_free(spw__data *data)
{
    for (size_t i = 0; i < data->n_rows; i++) {
        free(data->rows[i].tokens);
        free(data->rows[i].targets);
    }
    free(data->rows);
    *data = (spw__data){.rows = NULL};
}
