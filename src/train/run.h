/*
 * run.h - what a fine-tuning run holds: made and checked here, cheap things first, stepped by
 * loop.c.
 */
#ifndef SPW_TRAIN_RUN_H
#define SPW_TRAIN_RUN_H

#include "train/checkpoint.h"
#include "train/feed.h"
#include "train/loop.h"
#include "train/outdir.h"
#include "train/progress.h"

typedef struct spw__run {
    const spw__finetune *asked;
    spw__outdir out;
    spw__runlog log;
    spw__progress progress;
    spw__model_config config;
    spw__tokenizer *tokenizer;
    spw__data data;
    spw__feed feed;
    spw__schedule schedule;
    uint64_t steps;
    uint64_t done;         /* steps taken, those before a resume too */
    uint32_t skipped;      /* the last so many of them changed nothing */
    uint32_t seq;          /* most tokens a row */
    spw__checkpoint start; /* that a resumed run begins with */
    uint64_t kept;         /* step of the newest checkpoint that is good; 0: none */
    uint32_t model_crc;    /* of the frozen model, where there are checkpoints */
    bool complete;         /* a resumed run that has its result: nothing to do, nothing is open */
    spw_device *device;
    spw_pager *pager;
    spw__pool *pool;
    spw__weights weights;
    spw__adapter_config lora; /* as created or loaded */
    spw__model *model;
    spw__trained *trained;
    size_t n_trained;
    spw_optim *optim;
} spw__run;

/* Opens all of it; after a failure too the run is to be closed. */
int spw__run_open(spw__run *run, const spw__finetune *asked);
void spw__run_close(spw__run *run);

/* Elements of all trained tensors. */
uint64_t spw__run_elements(const spw__run *run);

#endif
