#include "train/unicode.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

const char spw__white_space[] = "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}"
                                "\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

const char spw__later_letters[] =
    "\\x{1C89}\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}"
    "\\x{10D4A}-\\x{10D65}\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}\\x{11240}"
    "\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}"
    "\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}\\x{11F12}-\\x{11F33}\\x{1342F}"
    "\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}\\x{16D40}-\\x{16D6C}"
    "\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}"
    "\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}"
    "\\x{31350}-\\x{323AF}";

const char spw__later_numbers[] =
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}"
    "\\x{16130}-\\x{16139}\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}"
    "\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}";

const char spw__newest_numbers[] = "\\x{11DE0}-\\x{11DE9}\\x{16FF4}-\\x{16FF6}";

typedef struct range {
    int32_t first, last;
} range;

/* `ranges` ascend. */
static bool is_within(const range *ranges, size_t n, int32_t code)
{
    for (size_t i = 0; i < n && code >= ranges[i].first; i++)
        if (code <= ranges[i].last)
            return true;
    return false;
}

bool spw__is_space(int32_t code)
{
    utf8proc_category_t category = utf8proc_category(code);
    return (code >= 9 && code <= 13) || code == 0x85 || category == UTF8PROC_CATEGORY_ZS ||
           category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

/* Joiners; letters in circles and boxes, which are alphabetic though their category is that of
 * symbols; letters, marks and digits since Unicode 15.1. */
static const range other_words[] = {
    {0x897, 0x897},     {0x1C89, 0x1C8A},   {0x200C, 0x200D},   {0x24B6, 0x24E9},
    {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3}, {0x10D40, 0x10D65},
    {0x10D69, 0x10D6D}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFC},
    {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5},
    {0x113B7, 0x113C0}, {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA},
    {0x113CC, 0x113D3}, {0x113E1, 0x113E2}, {0x116D0, 0x116E3}, {0x11BC0, 0x11BE0},
    {0x11BF0, 0x11BF9}, {0x11F5A, 0x11F5A}, {0x13460, 0x143FA}, {0x16100, 0x16139},
    {0x16D40, 0x16D6C}, {0x16D70, 0x16D79}, {0x18CFF, 0x18CFF}, {0x1CCF0, 0x1CCF9},
    {0x1E5D0, 0x1E5FA}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
    {0x2EBF0, 0x2EE5D},
};

bool spw__is_word(int32_t code)
{
    switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return is_within(other_words, sizeof other_words / sizeof *other_words, code);
    }
}

/* --------------------------------------------------------------------------------------- NFC -- */

/* Characters with a combining class or a composition that came after Unicode 9 (whole blocks where
 * all of a block did). The tokenizers library passes them on and composes nothing across them. */
static const range inert[] = {
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1AFF},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x105C0, 0x105FF},
    {0x10D00, 0x10D8F}, {0x10E80, 0x10FFF}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x11380, 0x113FF}, {0x1145E, 0x1145E}, {0x11800, 0x1184F}, {0x11900, 0x11AAF},
    {0x11D00, 0x11DFF}, {0x11F00, 0x11F5F}, {0x16100, 0x1613F}, {0x16D40, 0x16D7F},
    {0x16FF0, 0x16FF1}, {0x1E030, 0x1E08F}, {0x1E100, 0x1E14F}, {0x1E290, 0x1E2FF},
    {0x1E4D0, 0x1E4FF}, {0x1E5D0, 0x1E6FF},
};

static bool is_inert(int32_t code)
{
    return is_within(inert, sizeof inert / sizeof *inert, code);
}

/* Bytes up to the first inert character; *inert_bytes are those of the inert ones that follow. */
static size_t plain_run(const char *text, size_t bytes, size_t *inert_bytes)
{
    utf8proc_int32_t code;
    utf8proc_ssize_t n;
    size_t plain = bytes;
    *inert_bytes = 0;
    for (size_t at = 0; at < bytes; at += (size_t)n) {
        n = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at),
                             &code);
        if (n <= 0)
            return bytes;
        bool found = is_inert(code);
        if (!found && plain < bytes)
            return plain;
        if (found && plain == bytes)
            plain = at;
        *inert_bytes += found ? (size_t)n : 0;
    }
    return plain;
}

typedef struct buffer {
    char *bytes;
    size_t n, capacity;
} buffer;

static int put(buffer *out, const void *bytes, size_t n)
{
    int rc = spw__grow(&out->bytes, &out->capacity, out->n + n + 1, 1);
    if (rc < 0)
        return rc;
    memcpy(out->bytes + out->n, bytes, n);
    out->n += n;
    return 0;
}

static int put_composed(buffer *out, const char *text, size_t bytes)
{
    utf8proc_uint8_t *composed = NULL;
    utf8proc_ssize_t n = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes,
                                      &composed, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (n < 0)
        return spw__error(n == UTF8PROC_ERROR_NOMEM ? SPW_EHOSTMEM : SPW_EINVAL,
                          "cannot normalize a text: %s", utf8proc_errmsg(n));
    int rc = put(out, composed, (size_t)n);
    free(composed);
    return rc;
}

int spw__nfc(const char *text, size_t bytes, char **composed, size_t *n)
{
    buffer out = {.bytes = NULL};
    int rc = put(&out, "", 0);
    while (rc == 0 && bytes) {
        size_t after, plain = plain_run(text, bytes, &after);
        rc = plain ? put_composed(&out, text, plain) : 0;
        if (rc == 0)
            rc = put(&out, text + plain, after);
        text += plain + after;
        bytes -= plain + after;
    }
    if (rc < 0)
        free(out.bytes);
    *composed = rc < 0 ? NULL : out.bytes;
    *n = out.n;
    return rc;
}
