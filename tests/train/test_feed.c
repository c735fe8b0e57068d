#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/feed.h"
#include "train/schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_ROWS = 11, LONGEST = 5 };

static int32_t tokens[N_ROWS][LONGEST], targets[N_ROWS][LONGEST];
static spw__row rows[N_ROWS];

/* Row i has 1 + i % LONGEST tokens, all i; the last of them is a target. */
static spw__data make_data(void)
{
    spw__data data = {.rows = rows, .n_rows = N_ROWS, .longest = LONGEST};
    for (int i = 0; i < N_ROWS; i++) {
        uint32_t n = (uint32_t)(1 + i % LONGEST);
        for (uint32_t t = 0; t < n; t++) {
            tokens[i][t] = i;
            targets[i][t] = t + 1 == n ? i : -1;
        }
        rows[i] = (spw__row){tokens[i], targets[i], n, 1, (uint64_t)i + 1};
    }
    return data;
}

static void a_shuffle_is_a_permutation_and_depends_on_seed_and_epoch(void **state)
{
    (void)state;
    enum { N = 1000 };
    size_t a[N], b[N];
    char seen[N] = {0};
    spw__feed_shuffle(a, N, 7, 3);
    spw__feed_shuffle(b, N, 7, 3);
    assert_memory_equal(a, b, sizeof a);
    for (int i = 0; i < N; i++)
        seen[a[i]]++;
    for (int i = 0; i < N; i++)
        assert_int_equal(seen[i], 1);
    spw__feed_shuffle(b, N, 7, 4);
    assert_memory_not_equal(a, b, sizeof a);
    spw__feed_shuffle(b, N, 8, 3);
    assert_memory_not_equal(a, b, sizeof a);
}

/* Counts how often each row's tokens came in the step; checks the batches' seams. */
static void count_step(spw__feed *feed, int seen[N_ROWS])
{
    uint64_t n_tokens = 0, n_targets = 0;
    for (uint32_t i = 0; i < spw__feed_batches(feed); i++) {
        spw__batch batch;
        spw__feed_batch(feed, i, &batch);
        assert_int_equal(batch.starts[0], 0);
        assert_int_equal(batch.starts[batch.n_rows], batch.n_tokens);
        uint32_t longest = 0;
        for (uint32_t r = 0; r < batch.n_rows; r++) {
            int32_t row = batch.tokens[batch.starts[r]];
            uint32_t n = batch.starts[r + 1] - batch.starts[r];
            assert_int_equal(n, rows[row].n);
            assert_int_equal(batch.targets[batch.starts[r + 1] - 1], row);
            longest = n > longest ? n : longest;
            seen[row]++;
        }
        assert_int_equal(spw__feed_longest(feed, i)->n, longest);
        n_tokens += batch.n_tokens;
        n_targets += batch.n_rows;
    }
    assert_int_equal(n_tokens, spw__feed_tokens(feed));
    assert_int_equal(n_targets, spw__feed_targets(feed));
}

static void every_epoch_has_every_row_once_and_a_smaller_last_step(void **state)
{
    (void)state;
    spw__data data = make_data();
    spw__feed feed;
    assert_int_equal(spw__feed_init(&feed, &data, 1, 2, 2), 0);
    assert_int_equal(spw__feed_steps_per_epoch(&feed), 3);
    for (int epoch = 0; epoch < 3; epoch++) {
        int seen[N_ROWS] = {0};
        const uint32_t batches[] = {2, 2, 2};
        for (int step = 0; step < 3; step++) {
            spw__feed_next(&feed);
            assert_int_equal(spw__feed_batches(&feed), batches[step]);
            assert_int_equal(feed.n, step < 2 ? 4 : 3);
            count_step(&feed, seen);
        }
        for (int i = 0; i < N_ROWS; i++)
            assert_int_equal(seen[i], 1);
    }
    spw__feed_deinit(&feed);
}

static void a_step_wider_than_the_data_takes_all_of_it(void **state)
{
    (void)state;
    spw__data data = make_data();
    spw__feed feed;
    assert_int_equal(spw__feed_init(&feed, &data, 1, 64, 1000), 0);
    assert_int_equal(spw__feed_steps_per_epoch(&feed), 1);
    for (int step = 0; step < 2; step++) {
        int seen[N_ROWS] = {0};
        spw__feed_next(&feed);
        assert_int_equal(spw__feed_batches(&feed), 1);
        count_step(&feed, seen);
        for (int i = 0; i < N_ROWS; i++)
            assert_int_equal(seen[i], 1);
    }
    spw__feed_deinit(&feed);
}

/* A feed that seeks gives the rows of one that went all the way, also from the end of an epoch. */
static void a_seek_leads_where_the_steps_would(void **state)
{
    (void)state;
    spw__data data = make_data();
    for (uint64_t steps = 0; steps < 12; steps++) {
        spw__feed went, sought;
        assert_int_equal(spw__feed_init(&went, &data, 3, 2, 2), 0);
        assert_int_equal(spw__feed_init(&sought, &data, 3, 2, 2), 0);
        for (uint64_t i = 0; i < steps; i++)
            spw__feed_next(&went);
        spw__feed_seek(&sought, steps);
        for (int i = 0; i < 9; i++) {
            spw__feed_next(&went);
            spw__feed_next(&sought);
            assert_int_equal(sought.n, went.n);
            assert_int_equal(sought.at, went.at);
            assert_memory_equal(sought.order, went.order, N_ROWS * sizeof *went.order);
        }
        spw__feed_deinit(&went);
        spw__feed_deinit(&sought);
    }
}

static void the_rate_warms_up_from_above_zero_to_its_peak_and_falls_to_zero(void **state)
{
    (void)state;
    spw__schedule s = spw__schedule_of(SPW__COSINE, 2.0, 0.1, 100);
    assert_int_equal(s.warmup, 10);
    assert_true(fabs(spw__schedule_rate(&s, 0) - 0.2) < 1e-15);
    assert_true(spw__schedule_rate(&s, 9) == 2.0);
    assert_true(spw__schedule_rate(&s, 10) == 2.0);
    assert_true(fabs(spw__schedule_rate(&s, 55) - 1.0) < 1e-12);
    for (uint64_t k = 10; k < 99; k++)
        assert_true(spw__schedule_rate(&s, k + 1) < spw__schedule_rate(&s, k));
    assert_true(spw__schedule_rate(&s, 99) > 0);
    assert_true(spw__schedule_rate(&s, 100) == 0);
}

static void a_constant_rate_stays_and_no_warm_up_begins_at_the_peak(void **state)
{
    (void)state;
    spw__schedule s = spw__schedule_of(SPW__CONSTANT, 0.5, 0, 4);
    for (uint64_t k = 0; k < 4; k++)
        assert_true(spw__schedule_rate(&s, k) == 0.5);
    s = spw__schedule_of(SPW__COSINE, 0.5, 0, 1);
    assert_true(spw__schedule_rate(&s, 0) == 0.5);
    s = spw__schedule_of(SPW__COSINE, 0.5, 1, 4); /* all of it warm-up */
    assert_true(spw__schedule_rate(&s, 3) == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shuffle_is_a_permutation_and_depends_on_seed_and_epoch),
        cmocka_unit_test(every_epoch_has_every_row_once_and_a_smaller_last_step),
        cmocka_unit_test(a_step_wider_than_the_data_takes_all_of_it),
        cmocka_unit_test(a_seek_leads_where_the_steps_would),
        cmocka_unit_test(the_rate_warms_up_from_above_zero_to_its_peak_and_falls_to_zero),
        cmocka_unit_test(a_constant_rate_stays_and_no_warm_up_begins_at_the_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
