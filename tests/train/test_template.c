#include "golden.h"

#include "train/template.h"

static const char chat_in_config[] =
    "\"{% for m in messages %}{% if loop.first and m.role != 'system' %}{{ "
    "'<|im_start|>system\\nhello"
    "<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' "
    "}}{% endfor %}\"";

/* The tokenizer with another chat template (a JSON string). */
static spw__tokenizer *load_with_chat(const char *chat)
{
    spw__tokenizer *tokenizer = NULL;
    put_edited("tokenizer.json", NULL, NULL);
    put_edited("tokenizer_config.json", chat_in_config, chat);
    assert_int_equal(spw__tokenizer_load(home, &tokenizer), 0);
    return tokenizer;
}

/* The tokenizer with Llama 3's special tokens in place of ChatML's. */
static spw__tokenizer *load_llama(void)
{
    return load_edited(
        "{\"id\": 268, \"content\": \"<|im_start|>\"",
        "{\"id\": 270, \"content\": \"<|start_header_id|>\"}, {\"id\": 271, \"content\": "
        "\"<|end_header_id|>\"}, {\"id\": 272, \"content\": \"<|eot_id|>\"}, {\"id\": 273, "
        "\"content\": \"<|begin_of_text|>\"}, {\"id\": 268, \"content\": \"<|none|>\"");
}

static spw__turn turn(const char *role, const char *content)
{
    return (spw__turn){role, content, strlen(content)};
}

typedef struct talk {
    spw__ids ids, counted;
} talk;

static talk encoded(const spw__tokenizer *t, const char *name, const spw__turn *turns, size_t n)
{
    talk talk = {.ids = {.n = 0}};
    spw__template chosen;
    assert_int_equal(spw__template_choose(t, name, &chosen), 0);
    assert_int_equal(spw__template_encode(&chosen, t, turns, n, &talk.ids, &talk.counted), 0);
    assert_int_equal(talk.ids.n, talk.counted.n);
    return talk;
}

static void drop(talk *talk)
{
    free(talk->ids.ids);
    free(talk->counted.ids);
}

static void chatml_begins_with_the_default_system_turn(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    const spw__turn turns[] = {turn("user", "he"), turn("assistant", "hello")};
    talk talk = encoded(t, NULL, turns, 2);
    CHECK_LIST(talk.ids.ids, talk.ids.n,                                /* */
               268, 's', 'y', 's', 't', 'e', 'm', '\n', 259, 269, '\n', /* */
               268, 'u', 's', 'e', 'r', '\n', 256, 269, '\n',           /* */
               268, 'a', 's', 's', 'i', 's', 't', 'a', 'n', 't', '\n', 259, 269, '\n');
    for (size_t i = 0; i < talk.counted.n; i++)
        assert_int_equal(talk.counted.ids[i], i == 31 || i == 32);
    drop(&talk);
    spw__tokenizer_free(t);
}

static void chatml_keeps_a_system_turn_that_is_given(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    const spw__turn turns[] = {turn("system", "ll"), turn("user", " he ")};
    talk talk = encoded(t, NULL, turns, 2);
    CHECK_LIST(talk.ids.ids, talk.ids.n, 268, 's', 'y', 's', 't', 'e', 'm', '\n', 257, 269, '\n',
               268, 'u', 's', 'e', 'r', '\n', ' ', 256, ' ', 269, '\n');
    drop(&talk);
    spw__tokenizer_free(t);
}

static void every_answer_counts_with_its_end(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    const spw__turn turns[] = {turn("system", ""), turn("assistant", "he<|im_end|>ll"),
                               turn("user", "he"), turn("assistant", "")};
    talk talk = encoded(t, NULL, turns, 4);
    int32_t counted[8];
    size_t n = 0;
    for (size_t i = 0; i < talk.ids.n; i++)
        if (talk.counted.ids[i])
            counted[n++ % 8] = talk.ids.ids[i];
    CHECK_LIST(counted, n, 256, 269, 257, 269, 269);
    drop(&talk);
    spw__tokenizer_free(t);
}

/* The head's newline and the content's are one piece; made one token, it belongs to the head. */
static void a_token_of_the_head_never_counts(void **state)
{
    (void)state;
    spw__tokenizer *t = NULL;
    put_edited("tokenizer_config.json", NULL, NULL);
    put_edited("tokenizer.json", "\"he\": 256", "\"\xC4\x8A\xC4\x8A\": 256");
    char *text;
    size_t bytes;
    assert_int_equal(spw__file_read(in_home("tokenizer.json"), 1 << 20, &text, &bytes), 0);
    char *at = strstr(text, "\"merges\": [");
    assert_non_null(at);
    static const char merges[] = "\"merges\": [\"\xC4\x8A \xC4\x8A\"]}}";
    memcpy(at, merges, sizeof merges);
    put_file("tokenizer.json", text, strlen(text));
    free(text);
    assert_int_equal(spw__tokenizer_load(home, &t), 0);
    const spw__turn turns[] = {turn("system", ""), turn("assistant", "\n")};
    talk talk = encoded(t, NULL, turns, 2);
    CHECK_LIST(talk.ids.ids, talk.ids.n, 268, 's', 'y', 's', 't', 'e', 'm', '\n', 269, '\n', 268,
               'a', 's', 's', 'i', 's', 't', 'a', 'n', 't', 256, 269, '\n');
    for (size_t i = 0; i < talk.counted.n; i++)
        assert_int_equal(talk.counted.ids[i], i == 21);
    drop(&talk);
    spw__tokenizer_free(t);
}

static void llama3_is_chosen_by_its_tokens_and_trims(void **state)
{
    (void)state;
    spw__tokenizer *t = load_llama();
    const spw__turn turns[] = {turn("user", " \n\xE3\x80\x80he\x1F"), turn("assistant", "hello ")};
    talk talk = encoded(t, NULL, turns, 2);
    CHECK_LIST(talk.ids.ids, talk.ids.n, 273, 270, 'u', 's', 'e', 'r', 271, '\n', '\n', 256, 272,
               270, 'a', 's', 's', 'i', 's', 't', 'a', 'n', 't', 271, '\n', '\n', 259, 272);
    for (size_t i = 0; i < talk.counted.n; i++)
        assert_int_equal(talk.counted.ids[i], i >= talk.counted.n - 2);
    drop(&talk);
    spw__tokenizer_free(t);
}

static void a_default_system_turn_is_read_from_the_template(void **state)
{
    (void)state;
    static const struct {
        const char *chat, *system;
    } cases[] = {
        {"\"{{ '<|im_start|>system\\\\nBe brief.<|im_end|>\\\\n' }}\"", "Be brief."},
        {"\"{{ '<|im_start|>system\\n' + m.content + '<|im_end|>' }}"
         "{{ '<|im_start|>system\\nBe.<|im_end|>' }}\"",
         "Be."},
        {"\"{{ '<|im_start|>system\\n' + m.content + '<|im_end|>' }}\"", NULL},
        {"\"{{ '<|im_start|>system\\n<|im_end|>' }}\"", NULL},
        {"\"{{ '<|im_start|>system\"", NULL},
        {"\"\"", NULL},
        {"null", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        spw__tokenizer *t = load_with_chat(cases[i].chat);
        spw__template chosen;
        assert_int_equal(spw__template_choose(t, NULL, &chosen), 0);
        assert_int_equal(chosen.default_system_bytes,
                         cases[i].system ? strlen(cases[i].system) : 0);
        if (cases[i].system)
            assert_memory_equal(chosen.default_system, cases[i].system,
                                chosen.default_system_bytes);
        spw__tokenizer_free(t);
    }
}

static void the_template_file_goes_before_the_configurations(void **state)
{
    (void)state;
    static const char jinja[] = "{{ '<|im_start|>system\nFile.<|im_end|>' }}";
    put_file("chat_template.jinja", jinja, sizeof jinja - 1);
    spw__tokenizer *t = load_edited(NULL, NULL);
    spw__template chosen;
    assert_int_equal(spw__template_choose(t, NULL, &chosen), 0);
    assert_memory_equal(chosen.default_system, "File.", 5);
    spw__tokenizer_free(t);
    assert_int_equal(unlink(in_home("chat_template.jinja")), 0);
}

static void a_template_beyond_the_built_in_ones_needs_a_name(void **state)
{
    (void)state;
    static const char *const beyond[] = {"\"{% if enable_thinking %}\"", "\"<think>\"",
                                         "\"{{ bos_token }}{{ '<|im_start|>' }}\"",
                                         "\"Cutting Knowledge Date: {{ strftime_now('%d') }}\"",
                                         "\"{{ '<|im_start|>system\\nOne\\\\ntwo<|im_end|>' }}\""};
    for (size_t i = 0; i < sizeof beyond / sizeof *beyond; i++) {
        spw__tokenizer *t = load_with_chat(beyond[i]);
        spw__template chosen;
        assert_int_equal(spw__template_choose(t, NULL, &chosen), SPW_ENOTSUP);
        check_message("--template chatml or llama3");
        spw__tokenizer_free(t);
    }
    spw__tokenizer *t = load_with_chat(beyond[1]);
    spw__template chosen;
    assert_int_equal(spw__template_choose(t, "chatml", &chosen), 0);
    assert_int_equal(chosen.end, 269);
    assert_int_equal(spw__template_choose(t, "llama3", &chosen), SPW_EFORMAT);
    check_message("<|start_header_id|>");
    assert_int_equal(spw__template_choose(t, "mistral", &chosen), SPW_EINVAL);
    check_message("--template mistral: chatml and llama3");
    spw__tokenizer_free(t);
}

static void a_tokenizer_without_turns_is_refused(void **state)
{
    (void)state;
    spw__tokenizer *t = load_edited("\"<|im_end|>\"", "\"<|end|>\"");
    spw__template chosen;
    assert_int_equal(spw__template_choose(t, NULL, &chosen), SPW_ENOTSUP);
    check_message("--template chatml or llama3");
    assert_int_equal(spw__template_choose(t, "chatml", &chosen), SPW_EFORMAT);
    check_message("<|im_end|>");
    spw__tokenizer_free(t);
}

static void a_turn_that_is_not_utf8_is_an_error(void **state)
{
    (void)state;
    spw__tokenizer *t = load_golden();
    spw__template chosen;
    spw__ids ids = {.n = 0}, counted = {.n = 0};
    const spw__turn bad = turn("user", "\xFF");
    assert_int_equal(spw__template_choose(t, NULL, &chosen), 0);
    assert_int_equal(spw__template_encode(&chosen, t, &bad, 1, &ids, &counted), SPW_EINVAL);
    free(ids.ids);
    free(counted.ids);
    spw__tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chatml_begins_with_the_default_system_turn),
        cmocka_unit_test(chatml_keeps_a_system_turn_that_is_given),
        cmocka_unit_test(every_answer_counts_with_its_end),
        cmocka_unit_test(a_token_of_the_head_never_counts),
        cmocka_unit_test(llama3_is_chosen_by_its_tokens_and_trims),
        cmocka_unit_test(a_default_system_turn_is_read_from_the_template),
        cmocka_unit_test(the_template_file_goes_before_the_configurations),
        cmocka_unit_test(a_template_beyond_the_built_in_ones_needs_a_name),
        cmocka_unit_test(a_tokenizer_without_turns_is_refused),
        cmocka_unit_test(a_turn_that_is_not_utf8_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_home, drop_home);
}
