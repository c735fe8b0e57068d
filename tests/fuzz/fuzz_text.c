/* A text through the tests' tokenizer, which has every byte: UTF-8 comes back as it was. */
#include "fuzz.h"

#include "train/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int fuzz_read(const uint8_t *data, size_t bytes)
{
    static spw__tokenizer *golden; /* for as long as the process */
    spw__ids ids = {.n = 0};
    char *back;
    size_t n;
    if (!golden)
        fuzz_require(spw__tokenizer_load(SPW_TESTS "/data/tokenizer", &golden) == 0,
                     "the tokenizer of the tests");
    int rc = spw__tokenizer_encode(golden, (const char *)data, bytes, false, &ids);
    if (rc == 0) {
        fuzz_require(spw__tokenizer_decode(golden, ids.ids, ids.n, false, &back, &n) == 0,
                     "ids that decode");
        fuzz_require(n == bytes && memcmp(back, data, n) == 0, "the same text");
        free(back);
    }
    free(ids.ids);
    return rc;
}
