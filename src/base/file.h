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
    int fd;
} spw__file_writer;

int spw__file_begin(spw__file_writer *writer, const char *path);
int spw__file_write(spw__file_writer *writer, const void *data, size_t bytes);
int spw__file_commit(spw__file_writer *writer);   /* ends the writer, whatever it returns */
void spw__file_abandon(spw__file_writer *writer); /* ends the writer; a zeroed one is allowed */

/* begin, write, commit. */
int spw__file_put(const char *path, const void *data, size_t bytes);

/* "folder/name" in new memory (free()), or NULL after recording SPW_EHOSTMEM. */
char *spw__path_join(const char *folder, const char *name);

#endif
