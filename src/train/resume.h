/*
 * resume.h - between a run and its checkpoints: what a checkpoint says of a run, and a run that
 * goes on from one.
 *
 * A resumed run has the bits of one that never stopped if it is the same run: the document of a
 * checkpoint has every option that changes what is computed, and a checksum of the data's tokens;
 * another value is an error that names the option. Likewise another frozen model. Where state rests
 * (device memory, budget, store, page size, way to move, --keep) may change. Threads are not
 * compared: with another count the run goes on, by bits of its own.
 */
#ifndef SPW_TRAIN_RESUME_H
#define SPW_TRAIN_RESUME_H

#include "train/run.h"

/* Before anything expensive: refuses OUT's checkpoints without --resume; with it, finds the newest
 * valid one (run->start), or that the run is complete (run->complete). */
int spw__resume_find(spw__run *run);

/* When options are resolved and the data is there: is it the same run? */
int spw__resume_check(const spw__run *run);

/* When model and optimizer are there: is it the same model? Then the optimizer's state, and the
 * place in the data. */
int spw__resume_take(spw__run *run);

/* Writes checkpoint-(run->done) and removes those it makes needless. */
int spw__resume_save(spw__run *run);

#endif
