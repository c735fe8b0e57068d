/*
 * folder.h - a temporary folder of a test program, for the model directories it writes.
 */
#ifndef TESTS_TRAIN_FOLDER_H
#define TESTS_TRAIN_FOLDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file.h"

#include <ftw.h>
#include <spillway/spillway.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/spw-folder-XXXXXX";

/* The folder itself for "". The text lives until the 64th call from now. */
static inline const char *in_folder(const char *name)
{
    static char paths[64][160];
    static unsigned turn;
    char *path = paths[turn++ % 64];
    (void)snprintf(path, sizeof paths[0], "%s%s%s", folder, *name ? "/" : "", name);
    return path;
}

static inline int folder_entry_remove(const char *path, const struct stat *info, int kind,
                                      struct FTW *at)
{
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

static inline int folder_make(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static inline int folder_drop(void **state)
{
    (void)state;
    return nftw(folder, folder_entry_remove, 8, FTW_DEPTH | FTW_PHYS);
}

/* Removes a folder inside it, where it is there, and makes it new and empty. */
static inline const char *folder_fresh(const char *name)
{
    (void)nftw(in_folder(name), folder_entry_remove, 8, FTW_DEPTH | FTW_PHYS);
    assert_int_equal(mkdir(in_folder(name), 0700), 0);
    return in_folder(name);
}

static inline void folder_put(const char *name, const char *text)
{
    assert_int_equal(spw__file_put(in_folder(name), text, strlen(text)), 0);
}

/* Wants these words in the last error, which must be one line. */
static inline void check_said(const char *words)
{
    if (!strstr(spw_last_error(), words))
        print_error("not \"%s\" in: %s\n", words, spw_last_error());
    assert_non_null(strstr(spw_last_error(), words));
    assert_null(strchr(spw_last_error(), '\n'));
}

#endif
