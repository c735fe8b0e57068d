/* A tokenizer.json: what is accepted encodes and decodes without harm. */
#include "fuzz.h"

#include "train/tokenizer.h"

#include <stdlib.h>
#include <string.h>

static void try_text(const spw__tokenizer *tokenizer, const char *text)
{
    spw__ids ids = {.n = 0};
    char *back;
    size_t bytes;
    if (spw__tokenizer_encode(tokenizer, text, strlen(text), true, &ids) == 0) {
        for (size_t i = 0; i < ids.n; i++)
            (void)spw__tokenizer_token_bytes(tokenizer, ids.ids[i]);
        fuzz_require(spw__tokenizer_decode(tokenizer, ids.ids, ids.n, false, &back, &bytes) == 0,
                     "ids that decode");
        fuzz_require(strlen(back) <= bytes, "a zero behind the text");
        free(back);
    }
    free(ids.ids);
}

int fuzz_read(const uint8_t *data, size_t bytes)
{
    static const char *const texts[] = {"hello world", "  12 345's\r\n\n\tl'l",
                                        "caf\xC3\xA9 e\xCC\x81 \xF0\x9F\x8E\x89<|im_end|>he", ""};
    spw__tokenizer *tokenizer;
    (void)fuzz_put("tokenizer.json", data, bytes);
    int rc = spw__tokenizer_load(fuzz_folder(), &tokenizer);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        try_text(tokenizer, texts[i]);
    spw__tokenizer_free(tokenizer);
    return 0;
}
