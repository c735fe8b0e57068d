#include "base/sizes.h"

#include "base/error.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const unit_names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
enum { N_UNITS = sizeof unit_names / sizeof *unit_names };

static int shift_of_unit(const char *unit)
{
    if (!*unit)
        return 0;
    for (int i = 0; i < N_UNITS; i++)
        if (strcmp(unit, unit_names[i]) == 0)
            return 10 * i;
    return -1;
}

int spw__parse_size(const char *text, uint64_t *bytes)
{
    char *end;
    if (!isdigit((unsigned char)text[0]))
        return SPW_EINVAL;
    double value = strtod(text, &end);
    int shift = shift_of_unit(end);
    if (shift < 0 || (end != text && memchr(text, 'x', (size_t)(end - text))))
        return SPW_EINVAL;
    double scaled = value * (double)(UINT64_C(1) << shift);
    if (!(scaled < 1e18) || (shift == 0 && scaled != (double)(uint64_t)scaled))
        return SPW_EINVAL;
    *bytes = (uint64_t)scaled;
    return 0;
}

const char *spw__format_size(uint64_t bytes, char *buffer, size_t buffer_bytes)
{
    double value = (double)bytes;
    int unit = 0;
    while (value >= 1024 && unit + 1 < N_UNITS) {
        value /= 1024;
        unit++;
    }
    if (unit == 0)
        (void)snprintf(buffer, buffer_bytes, "%" PRIu64 " B", bytes);
    else
        (void)snprintf(buffer, buffer_bytes, "%.1f %s", value, unit_names[unit]);
    return buffer;
}
