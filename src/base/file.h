/*
 * file.h - whole files, read in and written out so that nothing half-written is ever seen.
 *
 * A writer puts bytes under a temporary name beside the target; spw__file_commit syncs, renames
 * and syncs the folder; spw__file_abandon removes the temporary. One thread a writer.
 */
#ifndef SPW_BASE_FILE_H
#define SPW_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

/* Reads a whole file into memory (malloc, one zero byte behind the end). Files over `max_bytes`
 * are SPW_EFORMAT. Messages name the path. */
int spw__file_read(const char *path, uint64_t max_bytes, char **data, size_t *bytes);

typedef struct spw__file_writer {
    char *path;      /* the final name */
    char *temporary; /* path + ".tmp-PID" */
    uint64_t end;    /* where spw__file_write goes on */
    int fd;
} spw__file_writer;

int spw__file_begin(spw__file_writer *writer, const char *path);
int spw__file_write(spw__file_writer *writer, const void *data, size_t bytes);
/* Anywhere in the file; what spw__file_write does next does not depend on it. */
int spw__file_write_at(spw__file_writer *writer, uint64_t offset, const void *data, size_t bytes);
int spw__file_commit(spw__file_writer *writer);   /* ends the writer, whatever it returns */
void spw__file_abandon(spw__file_writer *writer); /* ends the writer; a zeroed one is allowed */

/* begin, write, commit. */
int spw__file_put(const char *path, const void *data, size_t bytes);

/* Tests: the n-th (from 1) create, write, sync or rename of a writer from now on fails, once, with
 * SPW_EIO; 0: off. When the last sync, of the folder, fails, the new file is in place already. */
void spw__file_fail(uint64_t nth);

/* "folder/name" in new memory (free()), or NULL after recording SPW_EHOSTMEM. */
char *spw__path_join(const char *folder, const char *name);

#endif
