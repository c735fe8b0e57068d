/*
 * checkpoint.h - OUT/checkpoint-N: a folder that is there whole or not at all.
 *
 * In it lie the files of the adapter or the model, the optimizer's (optimizer.safetensors), and
 * spillway.json: what the run was asked, where it stood after step N, and size and CRC-32C of every
 * other file and of itself. It is made as OUT/.checkpoint, and renamed when it is complete and
 * synced, so a run that is killed leaves at most that folder, which the next save or resume
 * removes. What the document says is resume.c's. One thread, one run a folder.
 */
#ifndef SPW_TRAIN_CHECKPOINT_H
#define SPW_TRAIN_CHECKPOINT_H

#include "train/progress.h"

#include <stddef.h>

struct json_t; /* format/json.h */

#define SPW__CHECKPOINT_OPTIMIZER "optimizer.safetensors"
#define SPW__CHECKPOINT_DOCUMENT "spillway.json"

typedef struct spw__checkpoint {
    char *path; /* NULL: there is none */
    uint64_t step;
    struct json_t *document;
} spw__checkpoint;

/* True if OUT has a checkpoint-N, valid or not. */
bool spw__checkpoint_any(const char *out);

/* The newest valid one, every byte of it checked; newer ones that are not are said. */
int spw__checkpoint_find(const char *out, spw__progress *progress, spw__checkpoint *found);
void spw__checkpoint_free(spw__checkpoint *checkpoint);

/* Begins one: makes OUT where it is missing and an empty OUT/.checkpoint; *staging is its path. */
int spw__checkpoint_begin(const char *out, char **staging);

/* Ends it: writes the document, which gets "step", "files" and "crc32c", syncs, and renames, also
 * over a damaged one of the same number. */
int spw__checkpoint_commit(const char *out, char *staging, uint64_t step, struct json_t *document);
void spw__checkpoint_abandon(char *staging); /* both free it; NULL is allowed */

/* Removes all checkpoints but those two, and what killed runs left. */
void spw__checkpoint_retire(const char *out, uint64_t newest, uint64_t before);

/* Removes what killed runs left of results and checkpoints that were not complete. */
void spw__checkpoint_sweep(const char *out);

#endif
