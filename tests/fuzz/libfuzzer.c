/* libFuzzer's side: any input may be refused, but never without a word. */
#include "fuzz.h"

#include <spillway/spillway.h>

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    int rc = fuzz_read(data, bytes);
    fuzz_require(rc <= 0, "an answer that is 0 or an error");
    fuzz_require(rc == 0 || spw_last_error()[0] != '\0', "an error that says something");
    fuzz_require(rc == 0 || !strchr(spw_last_error(), '\n'), "an error on one line");
    return 0;
}
