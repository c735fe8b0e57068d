/*
 * folders.h - folders of plain files: their names, their removal, their way to the disk, and a
 * file's checksum.
 */
#ifndef SPW_TRAIN_FOLDERS_H
#define SPW_TRAIN_FOLDERS_H

#include <stdint.h>

/* Calls `visit` for every name but . and .., in no order, until one is not 0, which is returned. A
 * folder that is not there has no names. */
int spw__folder_each(const char *path, int (*visit)(void *context, const char *name),
                     void *context);

/* Removes a folder and the files in it, or a file; what cannot be removed stays. */
void spw__folder_remove(const char *path);

/* So that the names in it survive a power cut. */
int spw__folder_sync(const char *path);

/* A file's length and CRC-32C, read in pieces. */
int spw__folder_checksum(const char *path, uint64_t *bytes, uint32_t *crc);

#endif
