/*
 * bytechars.h - the byte map of byte-level BPE: each byte stands for a printable character, so that
 * a vocabulary of strings can hold any bytes (GPT-2's encoder.py).
 *
 * Printable Latin-1 bytes stand for themselves, the other 68 for U+0100 and up, in order.
 */
#ifndef SPW_TRAIN_BYTECHARS_H
#define SPW_TRAIN_BYTECHARS_H

#include <stddef.h>
#include <stdint.h>

/* The code point for a byte; all are below U+0800, two bytes of UTF-8 at most. */
uint32_t spw__char_of_byte(uint8_t byte);

/* The byte for a code point, or -1. */
int spw__byte_of_char(uint32_t code);

/* Writes the character's UTF-8 (1 or 2 bytes) and returns its length. */
size_t spw__put_byte_char(uint8_t byte, char *out);

#endif
