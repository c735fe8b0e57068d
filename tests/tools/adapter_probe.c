/*
 * adapter_probe.c - makes or copies an adapter for tests/python/test_adapter.py.
 *
 *     adapter_probe MODEL OUT new RANK ALPHA DROPOUT RSLORA TARGETS SEED
 *     adapter_probe MODEL OUT load DIR
 *
 * OUT exists. `load` reads DIR and writes what it read. On stdout: rank, alpha, dropout, scale.
 */
#include "train/adapter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(int rc)
{
    if (rc == 0)
        return;
    (void)fprintf(stderr, "adapter_probe: %s\n", spw_last_error());
    exit(1);
}

static void new_adapter(spw__weights *weights, char **words, spw__adapter_config *config)
{
    config->rank = (uint32_t)strtoul(words[0], NULL, 10);
    config->alpha = strtod(words[1], NULL);
    config->dropout = strtod(words[2], NULL);
    config->rslora = strcmp(words[3], "1") == 0;
    check(spw__adapter_parse_targets(words[4], &config->targets));
    config->seed = strtoull(words[5], NULL, 10);
    check(spw__adapter_create(weights, config));
}

static void print_scale(const spw__weights *weights, const spw__adapter_config *config)
{
    for (int which = 0; which < SPW__N_LINEAR; which++) {
        const spw__lora *lora = &weights->blocks[0].linear[which].lora;
        if (!lora->rank)
            continue;
        (void)printf("%u %g %g %.9g\n", config->rank, config->alpha, config->dropout,
                     (double)lora->scale);
        return;
    }
}

int main(int argc, char **argv)
{
    bool is_new = argc == 10 && strcmp(argv[3], "new") == 0;
    if (!is_new && !(argc == 5 && strcmp(argv[3], "load") == 0)) {
        (void)fprintf(stderr, "usage: adapter_probe MODEL OUT new|load ...\n");
        return 2;
    }
    spw_device *device;
    spw_pager *pager;
    spw__weights weights;
    spw__adapter_config config = {.rank = 0};
    check(spw_device_open("cpu", NULL, &device));
    check(spw_pager_create(device, NULL, &pager));
    check(spw__weights_load(argv[1], pager, SPW__BASE_FP32, false, &weights));
    if (is_new)
        new_adapter(&weights, argv + 4, &config);
    else
        check(spw__adapter_load(&weights, argv[4], &config));
    check(spw__adapter_save(&weights, &config, argv[1], argv[2]));
    print_scale(&weights, &config);
    spw__weights_free(&weights);
    spw_pager_destroy(pager);
    spw_device_close(device);
    return 0;
}
