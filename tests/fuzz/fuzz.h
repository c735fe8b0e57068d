/*
 * fuzz.h - a reader under test, and the two programs that feed it.
 *
 * fuzz_<reader>.c has one function, fuzz_read. With clang and -DSPW_FUZZ=ON it is linked with
 * libfuzzer.c and libFuzzer makes the inputs (`make fuzz`); otherwise with replay.c, which reads
 * what is in corpus/<reader>/ and is one of the tests. Files whose names begin with "bad-" are to
 * be refused, all others to be read. What a fuzzer finds goes there, too.
 */
#ifndef SPW_TESTS_FUZZ_H
#define SPW_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads the input as the library would; the reader's answer. */
int fuzz_read(const uint8_t *data, size_t bytes);

/* A folder of this process's own, in memory where the system has such; gone at exit. */
const char *fuzz_folder(void);

/* Puts a file into it and returns its path, which is good until the next call. */
const char *fuzz_put(const char *name, const void *data, size_t bytes);

/* Ends the process as a finding if a promise of the reader's header is not kept. */
void fuzz_require(bool promise, const char *what);

#endif
