#include "golden.h"

#include "train/data.h"

static const char *rows_path(const char *name)
{
    static char path[128];
    (void)snprintf(path, sizeof path, "data/rows/%s", name);
    return path;
}

static int load(const spw__tokenizer *tokenizer, const char *path, uint32_t max_tokens,
                spw__too_long too_long, spw__data *data)
{
    const spw__data_config config = {.max_tokens = max_tokens, .too_long = too_long};
    return spw__data_load(path, tokenizer, &config, data);
}

static spw__data loaded(const spw__tokenizer *tokenizer, const char *name)
{
    spw__data data;
    int rc = load(tokenizer, rows_path(name), 1000, SPW__ERROR, &data);
    if (rc < 0)
        print_error("%s\n", spw_last_error());
    assert_int_equal(rc, 0);
    return data;
}

#define CHECK_TOKENS(row, ...) CHECK_LIST((row)->tokens, (row)->n, __VA_ARGS__)
#define CHECK_TARGETS(row, ...) CHECK_LIST((row)->targets, (row)->n, __VA_ARGS__)

/* Targets are the next tokens, or none; their number and the sums over rows are right. */
static void check_sums(const spw__data *data)
{
    uint64_t n_tokens = 0, n_targets = 0;
    uint32_t longest = 0;
    for (size_t i = 0; i < data->n_rows; i++) {
        const spw__row *row = &data->rows[i];
        uint32_t counted = 0;
        for (uint32_t k = 0; k < row->n; k++) {
            counted += row->targets[k] >= 0;
            if (k + 1 < row->n && row->targets[k] >= 0)
                assert_int_equal(row->targets[k], row->tokens[k + 1]);
        }
        assert_int_equal(row->n_targets, counted);
        n_tokens += row->n;
        n_targets += counted;
        longest = row->n > longest ? row->n : longest;
    }
    assert_int_equal(data->n_tokens, n_tokens);
    assert_int_equal(data->n_targets, n_targets);
    assert_int_equal(data->longest, longest);
}

/* ------------------------------------------------------------------------------------- shapes --
 */

static void a_text_ends_with_the_end_token(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    spw__data data = loaded(t, "text.jsonl"); /* with a BOM, CRLF, empty lines, no last newline */
    assert_int_equal(data.n_rows, 3);
    CHECK_TOKENS(&data.rows[0], 259, 264);
    CHECK_TARGETS(&data.rows[0], 264, 269);
    CHECK_TOKENS(&data.rows[1], 259);
    CHECK_TARGETS(&data.rows[1], 269);
    CHECK_TOKENS(&data.rows[2], 257);
    assert_int_equal(data.rows[0].line, 1);
    assert_int_equal(data.rows[1].line, 3);
    assert_int_equal(data.rows[2].line, 5);
    check_sums(&data);
    spw__data_free(&data);
    spw__tokenizer_free(t);
}

static void only_the_completion_counts(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    spw__data data = loaded(t, "completion.jsonl");
    assert_int_equal(data.n_rows, 3);
    CHECK_TOKENS(&data.rows[0], 259, 264);
    CHECK_TARGETS(&data.rows[0], 264, 269);
    CHECK_TOKENS(&data.rows[1], 256);
    CHECK_TARGETS(&data.rows[1], 269);
    CHECK_TARGETS(&data.rows[2], 269);
    check_sums(&data);
    spw__data_free(&data);
    spw__tokenizer_free(t);
}

/* No token reaches from the prompt into the completion; a BOS comes once, and no EOS between. */
static void a_prompt_is_encoded_by_itself(void **state)
{
    (void)state;
    static const char rows[] = "{\"prompt\": \"ll h\", \"completion\": \"ello\"}\n";
    spw__tokenizer *t = load_edited(
        "\"post_processor\": null",
        "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
        "{\"id\": \"B\"}}, {\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": {\"id\": \"B\"}}], "
        "\"special_tokens\": {\"B\": {\"id\": \"B\", \"ids\": [267]}}}");
    put_file("rows.jsonl", rows, sizeof rows - 1);
    spw__data data;
    assert_int_equal(load(t, in_home("rows.jsonl"), 100, SPW__ERROR, &data), 0);
    CHECK_TOKENS(&data.rows[0], 267, 257, ' ', 'h', 'e', 257, 'o');
    CHECK_TARGETS(&data.rows[0], -1, -1, -1, 'e', 257, 'o', 269);
    check_sums(&data);
    spw__data_free(&data);
    spw__tokenizer_free(t);
}

static void an_instruction_is_a_user_turn_and_its_answer(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    spw__data data = loaded(t, "alpaca.jsonl");
    assert_int_equal(data.n_rows, 4);
    CHECK_TOKENS(&data.rows[0], 268, 's', 'y', 's', 't', 'e', 'm', '\n', 259, 269, '\n', /* */
                 268, 'u', 's', 'e', 'r', '\n', 256, '\n', 257, 269, '\n',               /* */
                 268, 'a', 's', 's', 'i', 's', 't', 'a', 'n', 't', '\n', 259, 269);
    assert_int_equal(data.rows[0].n_targets, 2);
    assert_int_equal(data.rows[0].targets[32], 259);
    assert_int_equal(data.rows[0].targets[33], 269);
    assert_int_equal(data.rows[1].n, data.rows[0].n - 2);
    for (size_t i = 2; i < 4; i++) { /* no input, or null, is an empty one */
        assert_int_equal(data.rows[i].n, data.rows[1].n);
        assert_memory_equal(data.rows[i].tokens, data.rows[1].tokens,
                            data.rows[1].n * sizeof(int32_t));
    }
    check_sums(&data);
    spw__data_free(&data);
    spw__tokenizer_free(t);
}

static void every_answer_of_a_conversation_counts(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    spw__data data = loaded(t, "messages.jsonl");
    assert_int_equal(data.n_rows, 1);
    assert_int_equal(data.n_empty, 1); /* a conversation without an answer */
    int32_t counted[8];
    size_t n = 0;
    for (uint32_t i = 0; i < data.rows[0].n; i++)
        if (data.rows[0].targets[i] >= 0)
            counted[n++ % 8] = data.rows[0].targets[i];
    CHECK_LIST(counted, n, 259, 269, 269);
    check_sums(&data);
    spw__data_free(&data);
    spw__tokenizer_free(t);
}

/* ----------------------------------------------------------------------------------- too long --
 */

static void a_long_row_is_cut_skipped_or_an_error(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    spw__data data;
    assert_int_equal(load(t, rows_path("text.jsonl"), 1, SPW__TRUNCATE, &data), 0);
    assert_int_equal(data.n_rows, 3);
    assert_int_equal(data.n_truncated, 1);
    CHECK_TOKENS(&data.rows[0], 259);
    CHECK_TARGETS(&data.rows[0], 264);
    spw__data_free(&data);
    assert_int_equal(load(t, rows_path("text.jsonl"), 1, SPW__SKIP, &data), 0);
    assert_int_equal(data.n_rows, 2);
    assert_int_equal(data.n_skipped, 1);
    assert_int_equal(data.n_truncated, 0);
    spw__data_free(&data);
    assert_int_equal(load(t, rows_path("text.jsonl"), 1, SPW__ERROR, &data), SPW_EINVAL);
    check_message("text.jsonl:1: 2 tokens, --seq is 1");
    check_message("--too-long");
    assert_int_equal(load(t, rows_path("text.jsonl"), 2, SPW__ERROR, &data), 0); /* just fits */
    spw__data_free(&data);
    spw__tokenizer_free(t);
}

static void a_row_cut_before_its_answer_is_empty(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    spw__data data;
    assert_int_equal(load(t, rows_path("alpaca.jsonl"), 20, SPW__TRUNCATE, &data), SPW_EFORMAT);
    check_message("no usable row: 4 without a token to learn");
    spw__tokenizer_free(t);
}

/* ---------------------------------------------------------------------------------- bad files --
 */

static void a_bad_line_is_named_by_its_number(void **state)
{
    (void)state;
    static const struct {
        const char *name, *words, *more;
    } cases[] = {
        {"bad-not-json.jsonl", "bad-not-json.jsonl:3: not JSON: column", "byte"},
        {"bad-not-object.jsonl", "bad-not-object.jsonl:2: ", "object"},
        {"bad-no-fields.jsonl", "bad-no-fields.jsonl:3: ", "\"prompt\" and \"completion\""},
        {"bad-mixed.jsonl", "bad-mixed.jsonl:2: ", "rows before"},
        {"bad-type.jsonl", "bad-type.jsonl:1: ", "\"text\" is not a string"},
        {"bad-null.jsonl", "bad-null.jsonl:1: ", "\"completion\""},
        {"bad-utf8.jsonl", "bad-utf8.jsonl:2: ", "column"},
        {"bad-surrogate.jsonl", "bad-surrogate.jsonl:2: ", "\\uD800"},
        {"bad-messages.jsonl", "bad-messages.jsonl:1: ", "\"messages\""},
        {"bad-message.jsonl", "bad-message.jsonl:1: ", "object"},
        {"bad-message-content.jsonl", "bad-message-content.jsonl:1: ", "\"content\""},
        {"bad-nothing.jsonl", "bad-nothing.jsonl: ", "no usable row"},
        {"bad-no-targets.jsonl", "bad-no-targets.jsonl: ", "no usable row"},
    };
    spw__tokenizer *t = load_golden();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spw__data data;
        assert_int_equal(load(t, rows_path(cases[i].name), 1000, SPW__ERROR, &data), SPW_EFORMAT);
        check_message(cases[i].words);
        check_message(cases[i].more);
        assert_null(data.rows);
    }
    spw__tokenizer_free(t);
}

static void a_file_that_cannot_be_read_is_named(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    spw__data data;
    assert_int_equal(load(t, "data/rows/none.jsonl", 10, SPW__ERROR, &data), SPW_ENOENT);
    check_message("data/rows/none.jsonl");
    assert_true(load(t, "data/rows", 10, SPW__ERROR, &data) < 0); /* a folder */
    check_message("data/rows");
    spw__tokenizer_free(t);
}

static void every_truncation_of_a_file_is_rows_or_an_error(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    spw__tokenizer *t = load_golden();
    assert_int_equal(spw__file_read(rows_path("messages.jsonl"), 1 << 20, &text, &bytes), 0);
    for (size_t n = 0; n < bytes; n++) {
        spw__data data;
        put_file("rows.jsonl", text, n);
        int rc = load(t, in_home("rows.jsonl"), 1000, SPW__TRUNCATE, &data);
        const char *first_end = memchr(text, '\n', n);
        bool whole = n + 1 == bytes || n == (size_t)(strchr(text, '\n') - text) ||
                     (first_end && first_end + 1 == text + n);
        assert_int_equal(rc, whole ? 0 : SPW_EFORMAT);
        if (rc == 0)
            check_sums(&data);
        spw__data_free(&data);
    }
    free(text);
    spw__tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_ends_with_the_end_token),
        cmocka_unit_test(only_the_completion_counts),
        cmocka_unit_test(a_prompt_is_encoded_by_itself),
        cmocka_unit_test(an_instruction_is_a_user_turn_and_its_answer),
        cmocka_unit_test(every_answer_of_a_conversation_counts),
        cmocka_unit_test(a_long_row_is_cut_skipped_or_an_error),
        cmocka_unit_test(a_row_cut_before_its_answer_is_empty),
        cmocka_unit_test(a_bad_line_is_named_by_its_number),
        cmocka_unit_test(a_file_that_cannot_be_read_is_named),
        cmocka_unit_test(every_truncation_of_a_file_is_rows_or_an_error),
    };
    return cmocka_run_group_tests(tests, make_home, drop_home);
}
