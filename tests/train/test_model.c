#include "double_model.h"
#include "toy.h"

#include <stdio.h>

enum { MOST_TOKENS = 512 };

/* Rows of the given lengths with random tokens; a target at most places. */
typedef struct rows {
    spw__batch batch;
    int32_t tokens[MOST_TOKENS], targets[MOST_TOKENS];
    uint32_t starts[16];
} rows;

static void make_rows(rows *r, const uint32_t *lengths, uint32_t n_rows, uint32_t seed)
{
    uint32_t n = 0;
    for (uint32_t row = 0; row < n_rows; row++) {
        r->starts[row] = n;
        n += lengths[row];
    }
    r->starts[n_rows] = n;
    assert_true(n <= MOST_TOKENS);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t counter[4] = {i, 1, 2, 3}, key[2] = {seed, 9}, words[4];
        spw__philox(counter, key, words);
        r->tokens[i] = (int32_t)(words[0] % 37);
        r->targets[i] = words[2] % 4 == 0 ? -1 : (int32_t)(words[1] % 37);
    }
    r->batch = (spw__batch){.tokens = r->tokens,
                            .targets = r->targets,
                            .starts = r->starts,
                            .n_rows = n_rows,
                            .n_tokens = n};
}

static const spw__noise NOISE = {.seed = 11, .step = 3, .micro_batch = 1};

static void assert_close(double ours, double wanted, double tolerance, const char *what)
{
    if (fabs(ours - wanted) <= tolerance)
        return;
    fail_msg("%s: %.9g, wanted %.9g within %.3g", what, ours, wanted, tolerance);
}

/* ------------------------------------------------------------------------------- gradients -- */

/* d loss / d *value by central differences of the model in double. */
static double slope(const toy *t, float *value, const spw__batch *batch, const spw__noise *noise)
{
    float old = *value, up = old + 1e-3f, down = old - 1e-3f;
    *value = up;
    double above = reference_loss(&t->weights, batch, noise);
    *value = down;
    double below = reference_loss(&t->weights, batch, noise);
    *value = old;
    return (above - below) / ((double)up - (double)down);
}

static double largest(const float *values, size_t n)
{
    double most = 0.0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)values[i]));
    return most;
}

/* Some elements of every trained tensor: its first, its last, and a few between. */
static void check_gradients(const toy *t, const rows *r, const spw__noise *noise, double scale)
{
    toy_tensor list[TOY_TENSORS];
    size_t n = toy_trained(&t->weights, list);
    assert_true(n > 0);
    for (size_t i = 0; i < n; i++) {
        size_t stride = list[i].n / 7 + 1;
        double most = largest(list[i].grad, list[i].n);
        assert_true(most > 0.0);
        for (size_t j = 0; j < 9; j++) {
            size_t e = j < 8 ? j * stride : list[i].n - 1;
            if (e >= list[i].n)
                continue;
            char what[64];
            snprintf(what, sizeof what, "tensor %zu element %zu", i, e);
            double wanted = scale * slope(t, &list[i].data[e], &r->batch, noise);
            assert_close((double)list[i].grad[e], wanted, 2e-5 * most + 2e-6, what);
        }
    }
}

static void run_gradient_case(const toy_plan *plan, const uint32_t *lengths, uint32_t n_rows)
{
    toy t;
    rows r;
    toy_create(&t, plan);
    make_rows(&r, lengths, n_rows, plan->seed);
    const spw__noise *noise = plan->dropout > 0.0f ? &NOISE : NULL;
    double loss, scale = 0.3, wanted = reference_loss(&t.weights, &r.batch, noise);
    assert_int_equal(spw__model_loss(t.model, &r.batch, scale, noise, &loss), 0);
    assert_close(loss, wanted, 1e-6 * wanted, "loss");
    check_gradients(&t, &r, noise, scale);
    toy_destroy(&t);
}

static const uint32_t SHORT_ROWS[] = {5, 1, 9};

static void full_gradients_equal_slopes(void **state)
{
    (void)state;
    run_gradient_case(&(toy_plan){.full = true, .seed = 1}, SHORT_ROWS, 3);
    run_gradient_case(&(toy_plan){.full = true, .tied = true, .seed = 2}, SHORT_ROWS, 3);
}

static void full_gradients_with_biases_and_head_norms_equal_slopes(void **state)
{
    (void)state;
    run_gradient_case(&(toy_plan){.full = true, .qkv_bias = true, .o_bias = true, .seed = 3},
                      SHORT_ROWS, 3);
    run_gradient_case(&(toy_plan){.full = true, .qk_norm = true, .tied = true, .seed = 4},
                      SHORT_ROWS, 3);
}

static void lora_gradients_equal_slopes(void **state)
{
    (void)state;
    run_gradient_case(&(toy_plan){.rank = 4, .seed = 5}, SHORT_ROWS, 3);
    run_gradient_case(&(toy_plan){.rank = 3, .qkv_bias = true, .qk_norm = true, .seed = 6},
                      SHORT_ROWS, 3);
}

static void dropout_is_the_same_in_forward_and_backward(void **state)
{
    (void)state;
    run_gradient_case(&(toy_plan){.rank = 4, .dropout = 0.3f, .seed = 7}, SHORT_ROWS, 3);
}

/* Rows longer than a tile of attention, whose length is no multiple of one. */
static void long_ragged_rows_agree(void **state)
{
    (void)state;
    const uint32_t lengths[] = {150, 64, 1, 65};
    toy t;
    rows r;
    toy_create(&t, &(toy_plan){.full = true, .seed = 8});
    make_rows(&r, lengths, 4, 8);
    double loss, wanted = reference_loss(&t.weights, &r.batch, NULL);
    assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, NULL, &loss), 0);
    assert_close(loss, wanted, 1e-6 * wanted, "loss");
    toy_tensor list[TOY_TENSORS];
    size_t n = toy_trained(&t.weights, list);
    for (size_t i = 0; i < n; i++) {
        size_t e = list[i].n / 2;
        double most = largest(list[i].grad, list[i].n);
        assert_close((double)list[i].grad[e], slope(&t, &list[i].data[e], &r.batch, NULL),
                     5e-5 * most, "gradient");
    }
    toy_destroy(&t);
}

/* --------------------------------------------------------------------------------- batches -- */

/* All gradients, one after another; free() it. */
static float *copy_gradients(const toy *t, size_t *total)
{
    toy_tensor list[TOY_TENSORS];
    size_t n = toy_trained(&t->weights, list);
    *total = 0;
    for (size_t i = 0; i < n; i++)
        *total += list[i].n;
    float *copy = malloc(*total * sizeof *copy), *end = copy;
    assert_non_null(copy);
    for (size_t i = 0; i < n; i++, end += list[i - 1].n)
        memcpy(end, list[i].grad, list[i].n * sizeof *copy);
    return copy;
}

static double one_row_at_a_time(toy *t, const rows *r)
{
    double sum = 0.0;
    for (uint32_t row = 0; row < r->batch.n_rows; row++) {
        uint32_t first = r->starts[row], n = r->starts[row + 1] - first;
        uint32_t starts[2] = {0, n};
        spw__batch batch = {.tokens = r->tokens + first,
                            .targets = r->targets + first,
                            .starts = starts,
                            .n_rows = 1,
                            .n_tokens = n};
        double loss;
        assert_int_equal(spw__model_loss(t->model, &batch, 1.0, NULL, &loss), 0);
        sum += loss;
    }
    return sum;
}

static void a_batch_is_the_sum_of_its_rows(void **state)
{
    (void)state;
    const uint32_t lengths[] = {70, 3, 1, 33};
    toy t;
    rows r;
    toy_create(&t, &(toy_plan){.full = true, .rank = 2, .seed = 9});
    make_rows(&r, lengths, 4, 9);
    double together, alone = one_row_at_a_time(&t, &r);
    size_t n;
    float *wanted = copy_gradients(&t, &n);
    toy_zero(&t);
    assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, NULL, &together), 0);
    float *ours = copy_gradients(&t, &n);
    assert_close(together, alone, 1e-6 * alone, "loss");
    double most = largest(wanted, n);
    for (size_t i = 0; i < n; i++)
        assert_close((double)ours[i], (double)wanted[i], 1e-5 * most, "gradient");
    free(wanted);
    free(ours);
    toy_destroy(&t);
}

static void gradients_are_added(void **state)
{
    (void)state;
    toy t;
    rows r;
    toy_create(&t, &(toy_plan){.rank = 4, .seed = 10});
    make_rows(&r, SHORT_ROWS, 3, 10);
    double loss;
    size_t n;
    assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, NULL, &loss), 0);
    float *once = copy_gradients(&t, &n);
    assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, NULL, &loss), 0);
    float *twice = copy_gradients(&t, &n);
    double most = largest(once, n);
    for (size_t i = 0; i < n; i++)
        assert_close((double)twice[i], 2.0 * (double)once[i], 1e-6 * most, "gradient");
    free(once);
    free(twice);
    toy_destroy(&t);
}

static void the_same_call_gives_the_same_bits(void **state)
{
    (void)state;
    const uint32_t lengths[] = {200, 90};
    toy t;
    rows r;
    toy_create(&t, &(toy_plan){.full = true, .rank = 4, .dropout = 0.2f, .seed = 11});
    make_rows(&r, lengths, 2, 11);
    double first, second, plain;
    size_t n;
    assert_int_equal(spw__model_loss(t.model, &r.batch, 0.5, &NOISE, &first), 0);
    float *wanted = copy_gradients(&t, &n);
    toy_zero(&t);
    assert_int_equal(spw__model_loss(t.model, &r.batch, 0.5, &NOISE, &second), 0);
    float *ours = copy_gradients(&t, &n);
    assert_memory_equal(&first, &second, sizeof first);
    assert_memory_equal(ours, wanted, n * sizeof *ours);
    /* A loss alone is that of the call with gradients; other noise is another loss. */
    assert_int_equal(spw__model_loss(t.model, &r.batch, 0.0, &NOISE, &plain), 0);
    assert_memory_equal(&plain, &first, sizeof first);
    spw__noise other = NOISE;
    other.step++;
    assert_int_equal(spw__model_loss(t.model, &r.batch, 0.0, &other, &plain), 0);
    assert_true(plain != first);
    free(wanted);
    free(ours);
    toy_destroy(&t);
}

/* Blocks computed again, some kept, all kept, and more asked than the device has. */
static void keeping_blocks_changes_no_bit(void **state)
{
    (void)state;
    const uint32_t lengths[] = {90, 40};
    const uint64_t keep[] = {0, 400 << 10, 16 << 20};
    toy t;
    rows r;
    toy_create(&t, &(toy_plan){.rank = 4, .dropout = 0.2f, .mem = 2 << 20, .seed = 19});
    make_rows(&r, lengths, 2, 19);
    float *wanted = NULL;
    uint64_t peaks[3];
    for (int i = 0; i < 3; i++) {
        double loss;
        size_t n;
        spw_device_stats stats;
        toy_zero(&t);
        spw__model_keep(t.model, keep[i]);
        assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, &NOISE, &loss), 0);
        assert_int_equal(spw_device_stats_get(t.device, &stats), 0);
        peaks[i] = stats.peak_bytes;
        float *ours = copy_gradients(&t, &n);
        if (wanted)
            assert_memory_equal(ours, wanted, n * sizeof *ours);
        else
            wanted = copy_gradients(&t, &n);
        free(ours);
    }
    assert_true(peaks[1] > peaks[0]);
    free(wanted);
    toy_destroy(&t);
}

static void thread_counts_agree(void **state)
{
    (void)state;
    const uint32_t lengths[] = {130, 7};
    float *gradients[2];
    double losses[2];
    size_t n = 0;
    for (unsigned i = 0; i < 2; i++) {
        toy t;
        rows r;
        toy_create(&t, &(toy_plan){.full = true, .threads = i ? 3 : 1, .seed = 12});
        make_rows(&r, lengths, 2, 12);
        assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, NULL, &losses[i]), 0);
        gradients[i] = copy_gradients(&t, &n);
        toy_destroy(&t);
    }
    assert_close(losses[0], losses[1], 1e-6 * losses[0], "loss");
    double most = largest(gradients[0], n);
    for (size_t i = 0; i < n; i++)
        assert_close((double)gradients[0][i], (double)gradients[1][i], 1e-5 * most, "gradient");
    free(gradients[0]);
    free(gradients[1]);
}

static void logits_are_those_of_the_last_token(void **state)
{
    (void)state;
    const uint32_t lengths[] = {71};
    toy t;
    rows r;
    toy_create(&t, &(toy_plan){.rank = 4, .dropout = 0.5f, .tied = true, .seed = 13});
    make_rows(&r, lengths, 1, 13);
    reference ref = {.weights = &t.weights, .n = 71};
    double *wanted = reference_logits(&ref, r.tokens);
    float logits[37];
    assert_int_equal(spw__model_logits(t.model, r.tokens, 71, logits), 0);
    for (int i = 0; i < 37; i++)
        assert_close((double)logits[i], wanted[70 * 37 + i], 1e-4, "logit");
    free(wanted);
    toy_destroy(&t);
}

/* ---------------------------------------------------------------------------- other bases -- */

static void expand_in_place(toy *t, spw__matrix *matrix)
{
    if (matrix->kind == SPW__MATRIX_FP32)
        return;
    float *single = toy_memory(t, (size_t)matrix->rows * matrix->cols * sizeof *single);
    spw__matrix_expand(matrix, 0, matrix->rows, single);
    spw_free(t->pager, matrix->data);
    matrix->data = single;
    matrix->kind = SPW__MATRIX_FP32;
}

static void expand_all(toy *t)
{
    spw__weights *weights = &t->weights;
    expand_in_place(t, &weights->embedding);
    if (weights->config.tied)
        weights->head = weights->embedding;
    expand_in_place(t, &weights->head);
    expand_in_place(t, &weights->norm);
    for (uint32_t layer = 0; layer < weights->config.layers; layer++) {
        spw__block *block = &weights->blocks[layer];
        for (int name = 0; name < SPW__N_LINEAR; name++) {
            expand_in_place(t, &block->linear[name].w);
            expand_in_place(t, &block->linear[name].bias);
        }
        expand_in_place(t, &block->norm_attention);
        expand_in_place(t, &block->norm_mlp);
        expand_in_place(t, &block->norm_q);
        expand_in_place(t, &block->norm_k);
    }
}

/* What is computed from packed weights is what their fp32 values give, bit for bit. */
static void check_packed(const toy_plan *plan)
{
    toy t;
    rows r;
    toy_create(&t, plan);
    make_rows(&r, SHORT_ROWS, 3, 14);
    double ours, wanted;
    size_t n;
    assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, NULL, &ours), 0);
    float *gradients = copy_gradients(&t, &n);
    toy_zero(&t);
    expand_all(&t);
    assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, NULL, &wanted), 0);
    float *expected = copy_gradients(&t, &n);
    assert_memory_equal(&ours, &wanted, sizeof ours);
    assert_memory_equal(gradients, expected, n * sizeof *expected);
    free(gradients);
    free(expected);
    toy_destroy(&t);
}

static void packed_weights_compute_as_their_values(void **state)
{
    (void)state;
    check_packed(&(toy_plan){.kind = SPW__MATRIX_NF4, .rank = 4, .dropout = 0.1f, .seed = 20});
    check_packed(&(toy_plan){.kind = SPW__MATRIX_BF16, .rank = 4, .qkv_bias = true, .seed = 14});
    check_packed(&(toy_plan){
        .kind = SPW__MATRIX_BF16, .full = true, .tied = true, .qk_norm = true, .seed = 15});
}

/* ------------------------------------------------------------------------------- bad times -- */

/* With less and less room, a call either works or says SPW_ENOMEM and leaves nothing. */
static void out_of_memory_leaves_nothing(void **state)
{
    (void)state;
    const uint32_t lengths[] = {100};
    toy t;
    rows r;
    toy_create(&t, &(toy_plan){.rank = 4, .dropout = 0.1f, .mem = 4 << 20, .seed = 16});
    make_rows(&r, lengths, 1, 16);
    double loss, wanted;
    assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, &NOISE, &wanted), 0);
    int failures = 0;
    for (uint64_t room = 0; room < (uint64_t)1 << 20; room += 16384) {
        spw_device_stats stats;
        void *ballast = NULL;
        assert_int_equal(spw_device_stats_get(t.device, &stats), 0);
        uint64_t fill = stats.capacity_bytes - stats.in_use_bytes - room;
        assert_int_equal(spw_malloc(t.pager, fill > 4096 ? fill - 4096 : 0, &ballast), 0);
        uint64_t before = toy_in_use(&t);
        int rc = spw__model_loss(t.model, &r.batch, 1.0, &NOISE, &loss);
        assert_int_equal(toy_in_use(&t), before);
        assert_true(rc == 0 || rc == SPW_ENOMEM);
        failures += rc == SPW_ENOMEM;
        if (rc == 0)
            assert_memory_equal(&loss, &wanted, sizeof loss);
        spw_free(t.pager, ballast);
    }
    assert_true(failures > 3);
    assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, &NOISE, &loss), 0);
    assert_memory_equal(&loss, &wanted, sizeof loss);
    toy_destroy(&t);
}

static void bad_tokens_are_refused(void **state)
{
    (void)state;
    toy t;
    rows r;
    toy_create(&t, &(toy_plan){.rank = 2, .seed = 17});
    make_rows(&r, SHORT_ROWS, 3, 17);
    double loss;
    r.tokens[4] = 37;
    assert_int_equal(spw__model_loss(t.model, &r.batch, 0.0, NULL, &loss), SPW_EINVAL);
    assert_non_null(strstr(spw_last_error(), "token id 37"));
    r.tokens[4] = 0;
    r.targets[2] = 99;
    assert_int_equal(spw__model_loss(t.model, &r.batch, 0.0, NULL, &loss), SPW_EINVAL);
    assert_non_null(strstr(spw_last_error(), "target id 99"));
    float logits[37];
    assert_int_equal(spw__model_logits(t.model, r.tokens, 0, logits), SPW_EINVAL);
    toy_destroy(&t);
}

static void no_target_is_no_loss(void **state)
{
    (void)state;
    toy t;
    rows r;
    toy_create(&t, &(toy_plan){.rank = 2, .seed = 18});
    make_rows(&r, SHORT_ROWS, 3, 18);
    for (uint32_t i = 0; i < r.batch.n_tokens; i++)
        r.targets[i] = -1;
    double loss = 1.0;
    assert_int_equal(spw__model_loss(t.model, &r.batch, 1.0, NULL, &loss), 0);
    assert_true(loss == 0.0);
    toy_destroy(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_gradients_equal_slopes),
        cmocka_unit_test(full_gradients_with_biases_and_head_norms_equal_slopes),
        cmocka_unit_test(lora_gradients_equal_slopes),
        cmocka_unit_test(dropout_is_the_same_in_forward_and_backward),
        cmocka_unit_test(long_ragged_rows_agree),
        cmocka_unit_test(a_batch_is_the_sum_of_its_rows),
        cmocka_unit_test(gradients_are_added),
        cmocka_unit_test(the_same_call_gives_the_same_bits),
        cmocka_unit_test(keeping_blocks_changes_no_bit),
        cmocka_unit_test(thread_counts_agree),
        cmocka_unit_test(logits_are_those_of_the_last_token),
        cmocka_unit_test(packed_weights_compute_as_their_values),
        cmocka_unit_test(out_of_memory_leaves_nothing),
        cmocka_unit_test(bad_tokens_are_refused),
        cmocka_unit_test(no_target_is_no_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
