#include "train/bytechars.h"

#include <stdbool.h>

static bool stands_for_itself(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
           (byte >= 0xAE && byte <= 0xFF);
}

/* How many bytes below this one do not stand for themselves. */
static uint32_t others_below(uint32_t byte)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < byte; b++)
        n += !stands_for_itself(b);
    return n;
}

uint32_t spw__char_of_byte(uint8_t byte)
{
    return stands_for_itself(byte) ? byte : 0x100 + others_below(byte);
}

int spw__byte_of_char(uint32_t code)
{
    if (code < 0x100)
        return stands_for_itself(code) ? (int)code : -1;
    for (int byte = 0; byte < 256; byte++)
        if (spw__char_of_byte((uint8_t)byte) == code)
            return byte;
    return -1;
}

size_t spw__put_byte_char(uint8_t byte, char *out)
{
    uint32_t code = spw__char_of_byte(byte);
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3F));
    return 2;
}
