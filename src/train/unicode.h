/*
 * unicode.h - characters as the tokenizers library sees them, whatever Unicode version the
 * libraries of this machine follow.
 *
 * tokenizers 0.23 takes \p{L} and \p{N} from Unicode 16 (Oniguruma), Digits from 17 (Rust), and
 * NFC from Unicode 9; PCRE2 10.42 follows 14, utf8proc 2.8 follows 15. The tables here make up the
 * difference, so that ids agree for every code point; a newer PCRE2 or utf8proc makes parts of them
 * idle, not wrong. Pure functions and constants; any thread.
 */
#ifndef SPW_TRAIN_UNICODE_H
#define SPW_TRAIN_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Insides of a PCRE2 class. */
extern const char spw__white_space[];    /* White_Space: \s; PCRE2's own has U+180E besides */
extern const char spw__later_letters[];  /* letters since Unicode 15 */
extern const char spw__later_numbers[];  /* numbers since Unicode 15 */
extern const char spw__newest_numbers[]; /* numbers since Unicode 17: only Digits knows them */

bool spw__is_space(int32_t code); /* White_Space */
bool spw__is_word(int32_t code);  /* \w of Unicode technical standard 18 */

/* The NFC of well-formed UTF-8, in new memory. */
int spw__nfc(const char *text, size_t bytes, char **composed, size_t *n);

#endif
