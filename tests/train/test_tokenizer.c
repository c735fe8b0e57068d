#include "golden.h"

#define CHECK_IDS(tokenizer, text, ...)                                                            \
    do {                                                                                           \
        spw__ids ids_ = encoded(tokenizer, text, strlen(text), false);                             \
        CHECK_LIST(ids_.ids, ids_.n, __VA_ARGS__);                                                 \
        free(ids_.ids);                                                                            \
    } while (0)

static spw__ids encoded(const spw__tokenizer *tokenizer, const char *text, size_t bytes,
                        bool special)
{
    spw__ids ids = {.n = 0};
    assert_int_equal(spw__tokenizer_encode(tokenizer, text, bytes, special, &ids), 0);
    return ids;
}

/* ---------------------------------------------------------------------------------- encoding -- */

static void a_text_is_merged_by_rank_within_its_pieces(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    CHECK_IDS(t, "hello world", 259, 264);
    CHECK_IDS(t, "helloworld", 259, 'w', 261, 263);
    CHECK_IDS(t, "hellll", 258, 257);
    CHECK_IDS(t, "12", '1', '2'); /* digits are cut one by one */
    CHECK_IDS(t, "whole", 'w', 'h', 'o', 'l', 'e');
    CHECK_IDS(t, "\xC3\xA9", 0xC3, 0xA9);
    CHECK_IDS(t, "a  b", 'a', ' ', ' ', 'b');
    spw__ids none = encoded(t, "", 0, false);
    assert_int_equal(none.n, 0);
    spw__tokenizer_free(t);
}

static void an_added_token_is_one_token_wherever_it_stands(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    CHECK_IDS(t, "<|im_start|>", 268);
    CHECK_IDS(t, "he<|im_end|><|im_end|>ll", 256, 269, 269, 257);
    CHECK_IDS(t, "<|im_end|", '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|');
    assert_int_equal(spw__tokenizer_find(t, "<|im_end|>"), 269);
    assert_int_equal(spw__tokenizer_find(t, "hello"), 259);
    assert_int_equal(spw__tokenizer_find(t, "<|none|>"), -1);
    assert_int_equal(spw__tokenizer_bos(t), 267);
    assert_int_equal(spw__tokenizer_eos(t), 269);
    assert_int_equal(spw__tokenizer_vocab(t), 270);
    spw__tokenizer_free(t);
}

static void a_zero_byte_is_text_like_any_other(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    spw__ids ids = encoded(t, "he\0ll", 5, false);
    CHECK_LIST(ids.ids, ids.n, 256, 0, 257);
    free(ids.ids);
    spw__tokenizer_free(t);
}

static void text_that_is_not_utf8_is_refused_and_named_by_byte(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "ab\xFF", "ab\xC3(", "ab\xED\xA0\x80", "ab\xF4\x90\x80\x80", "ab\xE4\xB8", "ab\xC0\xAF"};
    spw__tokenizer *t = load_golden();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        spw__ids ids = {.n = 0};
        assert_int_equal(spw__tokenizer_encode(t, bad[i], strlen(bad[i]), false, &ids), SPW_EINVAL);
        check_message("byte 2");
        free(ids.ids);
    }
    spw__tokenizer_free(t);
}

/* The same, merged pair by pair in the plainest way. */
static size_t merge_plainly(const char *text, int32_t *ids)
{
    static const int32_t merges[][3] = {{'h', 'e', 256}, {'l', 'l', 257}, {256, 257, 258},
                                        {258, 'o', 259}, {'o', 'r', 261}, {'l', 'd', 263}};
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        ids[i] = (unsigned char)text[i];
    for (size_t m = 0; m < sizeof merges / sizeof *merges; m++) {
        size_t out = 0;
        for (size_t i = 0; i < n; i++, out++) {
            bool pair = i + 1 < n && ids[i] == merges[m][0] && ids[i + 1] == merges[m][1];
            ids[out] = pair ? merges[m][2] : ids[i];
            i += pair;
        }
        n = out;
    }
    return n;
}

static void merging_by_a_heap_is_merging_by_rank(void **state)
{
    (void)state;
    enum { LONGEST = 300 };
    char text[LONGEST + 1];
    int32_t expected[LONGEST];
    uint32_t random = 1;
    spw__tokenizer *t = load_golden();
    for (int trial = 0; trial < 2000; trial++) {
        size_t n = 0, length = 1 + (size_t)trial % LONGEST;
        while (n < length) {
            random = random * 1664525 + 1013904223;
            text[n++] = "helllorde"[(random >> 16) % 9];
        }
        text[n] = 0;
        spw__ids ids = encoded(t, text, n, false);
        check_list(ids.ids, ids.n, expected, merge_plainly(text, expected));
        free(ids.ids);
    }
    spw__tokenizer_free(t);
}

static void a_run_of_one_letter_is_as_long_as_it_likes(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    spw__tokenizer *t = load_golden();
    char *text = malloc(N);
    assert_non_null(text);
    memset(text, 'l', N);
    spw__ids ids = encoded(t, text, N, false);
    assert_int_equal(ids.n, N / 2);
    assert_int_equal(ids.ids[N / 2 - 1], 257);
    free(ids.ids);
    free(text);
    spw__tokenizer_free(t);
}

/* --------------------------------------------------------------------------- parts of the file --
 */

static const char post_none[] = "\"post_processor\": null";
static const char normalizer_none[] = "\"normalizer\": null";
static const char sequence[] =
    "{\"type\": \"Sequence\", \"pretokenizers\": [\n{\"type\": \"Digits\", \"individual_digits\": "
    "true},\n{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
    "\"use_regex\": true}]}";

static void pre_tokenizers_cut_as_the_file_says(void **state)
{
    (void)state;
    spw__tokenizer *t = load_edited("\"individual_digits\": true", "\"individual_digits\": false");
    CHECK_IDS(t, "12", 265);
    spw__tokenizer_free(t);
    t = load_edited("\"add_prefix_space\": false", "\"add_prefix_space\": true");
    CHECK_IDS(t, "world", 264);
    CHECK_IDS(t, " world", 264);
    spw__tokenizer_free(t);
    t = load_edited("{\"type\": \"Digits\", \"individual_digits\": true}",
                    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"e|\\\\s?w\"}, \"behavior\": "
                    "\"Isolated\", \"invert\": false}");
    CHECK_IDS(t, "hello world", 'h', 'e', 257, 'o', 260, 261, 263);
    spw__tokenizer_free(t);
}

static void a_whole_piece_is_looked_up_first_where_merges_are_ignored(void **state)
{
    (void)state;
    spw__tokenizer *t = load_edited("\"ignore_merges\": false", "\"ignore_merges\": true");
    CHECK_IDS(t, "whole hello", 266, ' ', 259);
    spw__tokenizer_free(t);
}

static void nfc_comes_before_the_pieces(void **state)
{
    (void)state;
    spw__tokenizer *t = load_edited(normalizer_none, "\"normalizer\": {\"type\": \"NFC\"}");
    CHECK_IDS(t, "e\xCC\x81", 0xC3, 0xA9);
    spw__tokenizer_free(t);
}

static void a_template_adds_its_tokens_on_request(void **state)
{
    (void)state;
    spw__tokenizer *t = load_edited(
        post_none,
        "\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": "
        "\"ByteLevel\"}, {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
        "{\"id\": \"B\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
        "{\"SpecialToken\": {\"id\": \"E\", \"type_id\": 0}}], \"special_tokens\": {\"B\": "
        "{\"id\": \"B\", \"ids\": [267]}, \"E\": {\"id\": \"E\", \"ids\": [269]}}}]}");
    spw__ids ids = encoded(t, "he", 2, true);
    CHECK_LIST(ids.ids, ids.n, 267, 256, 269);
    ids.n = 0;
    assert_int_equal(spw__tokenizer_begin(t, &ids), 0);
    CHECK_LIST(ids.ids, ids.n, 267);
    free(ids.ids);
    CHECK_IDS(t, "he", 256);
    spw__tokenizer_free(t);
}

static void flags_of_added_tokens_are_kept(void **state)
{
    (void)state;
    static const char end[] =
        "\"content\": \"<|im_end|>\", \"single_word\": false, \"lstrip\": false, "
        "\"rstrip\": false, \"normalized\": false";
    spw__tokenizer *t = load_edited(
        end, "\"content\": \"ll\", \"single_word\": true, \"lstrip\": true, \"rstrip\": "
             "true, \"normalized\": true");
    CHECK_IDS(t, "hello", 259);
    CHECK_IDS(t, "he  ll \n<|im_start|>", 256, 269, 268);
    CHECK_IDS(t, "ll-ll", 269, '-', 269);
    spw__tokenizer_free(t);
}

/* ---------------------------------------------------------------------------------- decoding -- */

static void decoding_gives_the_text_back(void **state)
{
    (void)state;
    static const char text[] = "hello w\xC3\xB6rld\t\xF0\x9F\x98\x80 12\n";
    spw__tokenizer *t = load_golden();
    spw__ids ids = encoded(t, text, sizeof text, false); /* its zero byte too */
    char *out;
    size_t bytes;
    assert_int_equal(spw__tokenizer_decode(t, ids.ids, ids.n, false, &out, &bytes), 0);
    assert_int_equal(bytes, sizeof text);
    assert_memory_equal(out, text, sizeof text);
    free(out);
    free(ids.ids);
    spw__tokenizer_free(t);
}

static void decoding_leaves_out_what_is_special_or_no_id(void **state)
{
    (void)state;
    static const int32_t ids[] = {268, 259, -1, 270, INT32_MAX, 269};
    spw__tokenizer *t = load_golden();
    char *out;
    size_t bytes;
    assert_int_equal(spw__tokenizer_decode(t, ids, 6, true, &out, &bytes), 0);
    assert_string_equal(out, "hello");
    free(out);
    assert_int_equal(spw__tokenizer_decode(t, ids, 6, false, &out, &bytes), 0);
    assert_string_equal(out, "<|im_start|>hello<|im_end|>");
    assert_int_equal(bytes, strlen(out));
    free(out);
    spw__tokenizer_free(t);
}

/* --------------------------------------------------------------------------------- bad files -- */

typedef struct bad_edit {
    const char *from, *to;
    int code;
    const char *words;
} bad_edit;

static const bad_edit bad_edits[] = {
    {"\"model\"", "\"models\"", SPW_EFORMAT, "lacks \"model\""},
    {"\"BPE\"", "\"WordPiece\"", SPW_ENOTSUP, "WordPiece"},
    {"\"BPE\"", "\"Unigram\"", SPW_ENOTSUP, "Unigram"},
    {"\"byte_fallback\": false", "\"byte_fallback\": true", SPW_ENOTSUP, "byte_fallback"},
    {"\"dropout\": null", "\"dropout\": 0.1", SPW_ENOTSUP, "dropout"},
    {"\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"", SPW_ENOTSUP, "suffix"},
    {"\"vocab\"", "\"words\"", SPW_EFORMAT, "model.vocab"},
    {"\"merges\"", "\"merge\"", SPW_EFORMAT, "model.merges"},
    {"\"hello\": 259", "\"hello\": \"259\"", SPW_EFORMAT, "hello"},
    {"\"hello\": 259", "\"hello\": -2", SPW_EFORMAT, "hello"},
    {"\"hello\": 259", "\"hello\": 99999999999", SPW_EFORMAT, "hello"},
    {"\"hello\": 259", "\"hella\": 259", SPW_EFORMAT, "model.merges[3]"},
    {"\"ll\": 257", "\"lz\": 257", SPW_EFORMAT, "model.merges[1]"},
    {"\"hell o\"", "\"hello\"", SPW_EFORMAT, "model.merges[3]"},
    {"[\"1\", \"2\"]", "[\"1\", 2]", SPW_EFORMAT, "model.merges[9]"},
    {"[\"1\", \"2\"]", "[\"1\"]", SPW_EFORMAT, "model.merges[9]"},
    {"\"vocab\": {", "\"vocab\": {\"h\": 0, \"e\": 1}, \"rest\": {", SPW_ENOTSUP, "2 of the 256"},
    {"\"ByteLevel\"", "\"Metaspace\"", SPW_ENOTSUP, "ByteLevel"},
    {"\"Digits\"", "\"Punctuation\"", SPW_ENOTSUP, "Punctuation"},
    {"{\"type\": \"Digits\"", "{\"kind\": \"Digits\"", SPW_EFORMAT, "pre_tokenizer"},
    {sequence, "null", SPW_ENOTSUP, "pre_tokenizer"},
    {"\"Digits\", \"individual_digits\": true",
     "\"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\": \"Isolated\"", SPW_EFORMAT, "(a"},
    {"\"Digits\", \"individual_digits\": true",
     "\"Split\", \"pattern\": {\"Regex\": \"[a&&[b]]\"}, \"behavior\": \"Isolated\"", SPW_ENOTSUP,
     "class"},
    {"\"Digits\", \"individual_digits\": true",
     "\"Split\", \"pattern\": {\"Regex\": \"\\\\h\"}, \"behavior\": \"Isolated\"", SPW_ENOTSUP,
     "escape"},
    {"\"Digits\", \"individual_digits\": true",
     "\"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Removed\"", SPW_ENOTSUP,
     "Isolated"},
    {"\"Digits\", \"individual_digits\": true",
     "\"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Isolated\"", SPW_ENOTSUP,
     "Regex"},
    {normalizer_none, "\"normalizer\": {\"type\": \"Lowercase\"}", SPW_ENOTSUP, "Lowercase"},
    {normalizer_none, "\"normalizer\": {}", SPW_ENOTSUP, "normalizer"},
    {post_none, "\"post_processor\": {\"type\": \"BertProcessing\"}", SPW_ENOTSUP,
     "BertProcessing"},
    {post_none, "\"post_processor\": {\"type\": \"TemplateProcessing\"}", SPW_EFORMAT, "single"},
    {post_none,
     "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": "
     "{\"id\": "
     "\"<s>\"}}]}",
     SPW_EFORMAT, "<s>"},
    {"{\"id\": 267, \"content\": \"<|endoftext|>\"", "{\"id\": 267, \"text\": \"<|endoftext|>\"",
     SPW_EFORMAT, "added_tokens[0]"},
    {"{\"id\": 268", "{\"id\": \"268\"", SPW_EFORMAT, "added_tokens[1]"},
};

static void a_file_of_another_kind_or_with_missing_parts_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_edits / sizeof *bad_edits; i++) {
        const bad_edit *bad = &bad_edits[i];
        spw__tokenizer *tokenizer = NULL;
        put_edited("tokenizer.json", bad->from, bad->to);
        int rc = spw__tokenizer_load(home, &tokenizer);
        if (rc != bad->code)
            print_error("%s -> %s: %d %s\n", bad->from, bad->to, rc, spw_last_error());
        assert_int_equal(rc, bad->code);
        assert_null(tokenizer);
        check_message(bad->words);
        check_message("tokenizer.json");
    }
}

static void a_truncated_file_is_an_error_wherever_it_ends(void **state)
{
    (void)state;
    char *text;
    size_t bytes;
    spw__tokenizer *tokenizer = NULL;
    assert_int_equal(spw__file_read("data/tokenizer/tokenizer.json", 1 << 20, &text, &bytes), 0);
    for (size_t n = 0; n + 2 < bytes; n += 97) {
        put_file("tokenizer.json", text, n);
        assert_int_equal(spw__tokenizer_load(home, &tokenizer), SPW_EFORMAT);
        check_message("tokenizer.json: not JSON: ");
    }
    free(text);
}

static void a_missing_file_or_a_bad_configuration_is_named(void **state)
{
    (void)state;
    spw__tokenizer *tokenizer = NULL;
    assert_int_equal(spw__tokenizer_load("data/rows", &tokenizer), SPW_ENOENT);
    check_message("data/rows/tokenizer.json");
    put_edited("tokenizer.json", NULL, NULL);
    put_file("tokenizer_config.json", "{\"eos_token\"\n}", 15);
    assert_int_equal(spw__tokenizer_load(home, &tokenizer), SPW_EFORMAT);
    check_message("tokenizer_config.json: not JSON: line 2, column 1 (byte 14)");
    put_file("tokenizer_config.json", "[]", 2);
    assert_int_equal(spw__tokenizer_load(home, &tokenizer), SPW_EFORMAT);
    check_message("tokenizer_config.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_is_merged_by_rank_within_its_pieces),
        cmocka_unit_test(an_added_token_is_one_token_wherever_it_stands),
        cmocka_unit_test(a_zero_byte_is_text_like_any_other),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_and_named_by_byte),
        cmocka_unit_test(merging_by_a_heap_is_merging_by_rank),
        cmocka_unit_test(a_run_of_one_letter_is_as_long_as_it_likes),
        cmocka_unit_test(pre_tokenizers_cut_as_the_file_says),
        cmocka_unit_test(a_whole_piece_is_looked_up_first_where_merges_are_ignored),
        cmocka_unit_test(nfc_comes_before_the_pieces),
        cmocka_unit_test(a_template_adds_its_tokens_on_request),
        cmocka_unit_test(flags_of_added_tokens_are_kept),
        cmocka_unit_test(decoding_gives_the_text_back),
        cmocka_unit_test(decoding_leaves_out_what_is_special_or_no_id),
        cmocka_unit_test(a_file_of_another_kind_or_with_missing_parts_is_named),
        cmocka_unit_test(a_truncated_file_is_an_error_wherever_it_ends),
        cmocka_unit_test(a_missing_file_or_a_bad_configuration_is_named),
    };
    return cmocka_run_group_tests(tests, make_home, drop_home);
}
