/*
 * adamw.c - a trainer that links libspillway: AdamW whose state gives way when memory is short.
 *
 * It fits Y = X W, W of 256 x 1024, on a device of 6 MiB. Weights and gradient take 2 MiB, AdamW's
 * moments 2 MiB. Halfway a step needs 3 MiB more, as one long sample does in real training. Plain
 * AdamW would end there. Here the moments give way to RAM, the step has its memory, and the moments
 * come back; the losses are those of a run without a spike. Built with the library by `make`.
 */
#include <spillway/spillway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32, IN = 256, OUT = 1024, N = IN * OUT };
enum { STEPS = 40, SPIKE_STEP = 20, SPIKE_BYTES = 3 << 20 };

static void check(int rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "adamw: %s\n", spw_last_error());
    exit(1);
}

static float random_float(void) /* between -1 and 1 */
{
    static uint32_t state = 1;
    state = state * 1664525 + 1013904223;
    return (float)(state >> 8) / 8388608.0F - 1.0F;
}

/* Draws rows of X, takes Y from `truth`; returns the mean squared error, writes its gradient. */
static double forward_backward(const float *truth, const float *weights, float *gradient)
{
    double loss = 0;
    memset(gradient, 0, sizeof(float) * N);
    for (int row = 0; row < ROWS; row++) {
        float x[IN], error[OUT] = {0};
        for (int i = 0; i < IN; i++) {
            x[i] = random_float();
            for (int j = 0; j < OUT; j++)
                error[j] += x[i] * (weights[i * OUT + j] - truth[i * OUT + j]);
        }
        for (int i = 0; i < IN; i++)
            for (int j = 0; j < OUT; j++)
                gradient[i * OUT + j] += x[i] * error[j] * 2 / (ROWS * OUT);
        for (int j = 0; j < OUT; j++)
            loss += (double)error[j] * error[j] / (ROWS * OUT);
    }
    return loss;
}

static void report(spw_pager *pager, int step, double loss, const char *when)
{
    spw_pager_stats stats;
    check(spw_pager_stats_get(pager, &stats));
    printf("step %2d  loss %7.3f  moments on the device: %4d of %d KiB%s\n", step, loss,
           (int)(stats.resident_bytes >> 10), (int)(stats.state_bytes >> 10), when);
}

int main(void)
{
    spw_device_config device_config = {.size = sizeof device_config, .mem = 6 << 20};
    spw_optim_config optim_config;
    spw_optim_config_default(&optim_config);
    optim_config.state = SPW_STATE_32BIT;
    spw_device *device;
    spw_pager *pager;
    spw_optim *optim;
    check(spw_device_open("cpu", &device_config, &device));
    check(spw_pager_create(device, NULL, &pager));
    check(spw_optim_create(pager, &optim_config, &optim));
    static float truth[N];
    void *weights, *gradient, *spike;
    check(spw_malloc(pager, sizeof truth, &weights));
    check(spw_malloc(pager, sizeof truth, &gradient));
    for (int i = 0; i < N; i++)
        truth[i] = random_float();
    memset(weights, 0, sizeof truth);
    spw_param w = {.name = "W", .data = weights, .grad = gradient, .n = N};
    w.type = w.grad_type = SPW_FP32;
    check((int)spw_optim_add(optim, &w));
    for (int step = 1; step <= STEPS; step++) {
        double loss = forward_backward(truth, weights, gradient);
        if (step == SPIKE_STEP) {
            report(pager, step, loss, "; 3 MiB are asked for");
            check(spw_malloc(pager, SPIKE_BYTES, &spike));
            report(pager, step, loss, "; 3 MiB are there");
            spw_free(pager, spike);
        } else if (step % 5 == 0) {
            report(pager, step, loss, "");
        }
        check(spw_optim_step(optim, &(spw_step){.lr = 0.05, .max_norm = 1.0}));
    }
    spw_optim_destroy(optim);
    spw_pager_destroy(pager);
    spw_device_close(device); /* weights and gradient with it */
    return 0;
}
