/* A safetensors file: every byte of every tensor is the file's. */
#include "fuzz.h"

#include "format/safetensors.h"

#include <spillway/spillway.h>

int fuzz_read(const uint8_t *data, size_t bytes)
{
    spw__safetensors file;
    uint64_t sum = 0, covered = 0;
    int rc = spw__safetensors_open(fuzz_put("x.safetensors", data, bytes), &file);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < file.n_tensors; i++) {
        const spw__tensor *tensor = &file.tensors[i];
        for (uint64_t byte = 0; byte < tensor->bytes; byte++)
            sum += ((const uint8_t *)tensor->data)[byte];
        covered += tensor->bytes;
        fuzz_require(spw__safetensors_find(&file, tensor->name) == tensor, "a tensor by its name");
    }
    fuzz_require(covered + 8 <= bytes && sum <= 255 * covered, "tensors within the file");
    spw__safetensors_close(&file);
    return 0;
}
