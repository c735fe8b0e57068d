/* Rows of JSONL: what is kept is ids of the vocabulary, and targets are the next tokens. */
#include "fuzz.h"

#include "train/data.h"

static const spw__tokenizer *tokenizer(void)
{
    static spw__tokenizer *golden; /* for as long as the process */
    if (!golden)
        fuzz_require(spw__tokenizer_load(SPW_TESTS "/data/tokenizer", &golden) == 0,
                     "the tokenizer of the tests");
    return golden;
}

static void check_row(const spw__row *row, uint32_t most)
{
    fuzz_require(row->n > 0 && row->n <= most, "a row within --seq");
    for (uint32_t i = 0; i < row->n; i++) {
        int32_t token = row->tokens[i], target = row->targets[i];
        fuzz_require(token >= 0 && (uint32_t)token < spw__tokenizer_vocab(tokenizer()), "an id");
        fuzz_require(target == -1 || i + 1 == row->n || target == row->tokens[i + 1],
                     "a target that is the next token");
    }
}

static int read_with(const char *path, const spw__data_config *config)
{
    spw__data data;
    int rc = spw__data_load(path, tokenizer(), config, &data);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < data.n_rows; i++)
        check_row(&data.rows[i], config->max_tokens);
    spw__data_free(&data);
    return 0;
}

int fuzz_read(const uint8_t *data, size_t bytes)
{
    const char *path = fuzz_put("rows.jsonl", data, bytes);
    (void)read_with(path, &(spw__data_config){.max_tokens = 5, .too_long = SPW__TRUNCATE});
    (void)read_with(path, &(spw__data_config){.max_tokens = 9, .too_long = SPW__SKIP});
    return read_with(path, &(spw__data_config){.max_tokens = 1000, .too_long = SPW__ERROR});
}
