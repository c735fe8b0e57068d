/*
 * error.h - how a function says what went wrong.
 *
 * A function returns 0 or a negative SPW_E... code; the detail (which file, tensor, byte) goes to a
 * string of the calling thread, which spw_last_error() returns. Nothing here prints or exits.
 * Any thread; the string lives until the thread's next spw__error.
 *
 *     return spw__error(SPW_EIO, "%s: cannot read %zu bytes at %" PRIu64, path, n, offset);
 */
#ifndef SPW_BASE_ERROR_H
#define SPW_BASE_ERROR_H

#include <spillway/spillway.h>

/* Records the message and returns `code`. */
int spw__error(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The same for a failed system call: appends ": strerror(errno_value)" and picks the code from
 * errno_value (ENOSPC -> SPW_ENOSPC, EEXIST, ENOENT, ENOMEM -> SPW_EHOSTMEM, else SPW_EIO). */
int spw__error_errno(int errno_value, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
