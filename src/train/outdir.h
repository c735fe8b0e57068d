/*
 * outdir.h - the folder a run leaves its result in: all of it, or nothing.
 *
 * Begin proves, before anything expensive, that the folder can be made and written and holds no
 * result that would be lost, and takes away again what it made. The result is written into a folder
 * of its own inside it and moved out when it is whole; abandoning removes that, and the folder too
 * if the run made it. One thread.
 */
#ifndef SPW_TRAIN_OUTDIR_H
#define SPW_TRAIN_OUTDIR_H

#include <stdbool.h>

typedef struct spw__outdir {
    const char *path;
    char *staging; /* "path/.partial-PID" */
    bool made;     /* path was */
} spw__outdir;

/* True if the folder holds the result of a run that came to its end. */
bool spw__outdir_has_result(const char *path);

int spw__outdir_begin(spw__outdir *out, const char *path);

/* Makes both folders; write the result to out->staging, then commit or abandon. Refuses, as begin
 * does, a folder that holds a result by now. */
int spw__outdir_stage(spw__outdir *out);

/* Moves every file of the staging folder to its place, the one that spw__outdir_has_result looks
 * for last. Ends the outdir, also when it fails. */
int spw__outdir_commit(spw__outdir *out);
void spw__outdir_abandon(spw__outdir *out); /* ended or zeroed ones are allowed */

#endif
