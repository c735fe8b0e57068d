/* A model's config.json: what is accepted has sane counts. */
#include "fuzz.h"

#include "train/config.h"

#include <stdlib.h>

int fuzz_read(const uint8_t *data, size_t bytes)
{
    spw__model_config config;
    (void)fuzz_put("config.json", data, bytes);
    int rc = spw__model_config_load(fuzz_folder(), &config);
    if (rc < 0)
        return rc;
    fuzz_require(config.kv_heads && config.heads % config.kv_heads == 0, "groups of heads");
    fuzz_require(config.head_dim && config.head_dim % 2 == 0, "pairs to rotate");
    float *inverse = calloc(config.head_dim / 2, sizeof *inverse);
    fuzz_require(inverse != NULL, "memory");
    spw__rope_frequencies(&config, inverse);
    free(inverse);
    return 0;
}
