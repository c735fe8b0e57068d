#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 1024 };

static _Thread_local char last_error[MESSAGE_BYTES];

const char *spw_last_error(void)
{
    return last_error;
}

const char *spw_strerror(int code)
{
    switch (code) {
#define SPW_ERROR_CASE(name, number, text)                                                         \
    case number:                                                                                   \
        return text;
        SPW_ERRORS(SPW_ERROR_CASE)
#undef SPW_ERROR_CASE
    }
    return "unknown error";
}

const char *spw_version(void)
{
    return "0.1.0";
}

/* A message may name the previous one (spw_last_error() as an argument), so it is built aside. */
static void set_message(const char *format, va_list arguments)
{
    char message[MESSAGE_BYTES];
    (void)vsnprintf(message, sizeof message, format, arguments);
    for (char *c = message; *c; c++)
        if (*c == '\n' || *c == '\r')
            *c = ' ';
    memcpy(last_error, message, sizeof last_error);
}

int spw__error(int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_message(format, arguments);
    va_end(arguments);
    return code;
}

static int code_of_errno(int errno_value)
{
    switch (errno_value) {
    case ENOSPC:
    case EDQUOT:
        return SPW_ENOSPC;
    case EEXIST:
        return SPW_EEXIST;
    case ENOENT:
    case ENOTDIR:
        return SPW_ENOENT;
    case ENOMEM:
        return SPW_EHOSTMEM;
    default:
        return SPW_EIO;
    }
}

int spw__error_errno(int errno_value, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_message(format, arguments);
    va_end(arguments);
    size_t length = strlen(last_error);
    char text[128];
    (void)snprintf(last_error + length, sizeof last_error - length, ": %s",
                   strerror_r(errno_value, text, sizeof text));
    return code_of_errno(errno_value);
}
