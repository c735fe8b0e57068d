/*
 * nf4_probe.c - packs raw fp32 from stdin for tests/python/test_nf4.py.
 *
 *     nf4_probe N [OFFSET]   OFFSET: the fp32's bits in hexadecimal; without it, the mean
 *
 * Writes to stdout: codes, absmax codes, nested absmax, the offset, and the n floats unpacked.
 */
#include "base/half.h"
#include "train/nf4.h"

#include <stdio.h>
#include <stdlib.h>

static void *need(size_t n, size_t size)
{
    void *memory = calloc(n ? n : 1, size);
    if (memory)
        return memory;
    (void)fprintf(stderr, "nf4_probe: out of host memory\n");
    exit(1);
}

static void put(const void *data, size_t size, uint64_t n)
{
    if (fwrite(data, size, (size_t)n, stdout) != (size_t)n)
        exit(1);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: nf4_probe N [OFFSET] < floats\n");
        return 2;
    }
    uint64_t n = strtoull(argv[1], NULL, 10), blocks = spw__nf4_blocks(n);
    float offset = spw__float_of_bits(argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 16) : 0);
    float *x = need((size_t)n, sizeof *x), *absmax = need((size_t)blocks, sizeof *absmax);
    spw__nf4 nf4 = {.codes = need((size_t)(n + 1) / 2, 1),
                    .absmax_codes = need((size_t)blocks, 1),
                    .nested_absmax = need((size_t)spw__nf4_nested_blocks(n), sizeof(float))};
    if (fread(x, sizeof *x, (size_t)n, stdin) != (size_t)n)
        return 1;
    spw__nf4_pack(x, n, argc > 2 ? &offset : NULL, absmax, &nf4);
    spw__nf4_unpack(&nf4, 0, n, x);
    put(nf4.codes, 1, (n + 1) / 2);
    put(nf4.absmax_codes, 1, blocks);
    put(nf4.nested_absmax, sizeof(float), spw__nf4_nested_blocks(n));
    put(&nf4.offset, sizeof(float), 1);
    put(x, sizeof *x, n);
    free(x);
    free(absmax);
    free(nf4.codes);
    free(nf4.absmax_codes);
    free(nf4.nested_absmax);
    return 0;
}
