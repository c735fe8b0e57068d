/* The corpus of one reader, SPW_FUZZ_CORPUS, read file by file: a test where there is no clang. */
#include "fuzz.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static void check_file(const char *name)
{
    char *path = spw__path_join(SPW_FUZZ_CORPUS, name), *data;
    size_t bytes;
    assert_non_null(path);
    assert_int_equal(spw__file_read(path, 1 << 20, &data, &bytes), 0);
    (void)spw__error(SPW_EINVAL, "none");
    int rc = fuzz_read((const uint8_t *)data, bytes);
    bool is_bad = strncmp(name, "bad-", 4) == 0;
    if (rc == 0 && is_bad)
        fail_msg("%s was read", path);
    if (rc < 0 && !is_bad)
        fail_msg("%s was refused: %s", path, spw_last_error());
    if (rc < 0 && strcmp(spw_last_error(), "none") == 0)
        fail_msg("%s was refused without a word", path);
    free(data);
    free(path);
}

static void the_corpus_is_read_as_its_names_say(void **state)
{
    int files = 0;
    const struct dirent *entry;
    DIR *list = opendir(SPW_FUZZ_CORPUS);
    (void)state;
    assert_non_null(list);
    while ((entry = readdir(list))) {
        if (entry->d_name[0] == '.')
            continue;
        check_file(entry->d_name);
        files++;
    }
    (void)closedir(list);
    assert_true(files > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_corpus_is_read_as_its_names_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
