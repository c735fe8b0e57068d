/*
 * loop.h - a fine-tuning run, from a model directory and a JSONL file to an adapter or a model.
 *
 * Everything cheap is checked before anything expensive; the loss of a step is the mean over the
 * target tokens of all its micro-batches; device memory is asked for through the pager, so the
 * optimizer's state gives way when a batch is long. Only `screen` and the files named here are
 * written; a run that fails leaves nothing in `out` but checkpoints. One thread calls; it makes its
 * own.
 *
 * One group of parameters has weight decay (matrices), one has none (norms and biases).
 */
#ifndef SPW_TRAIN_LOOP_H
#define SPW_TRAIN_LOOP_H

#include "train/adapter.h"
#include "train/data.h"
#include "train/schedule.h"

#include <signal.h>
#include <stdio.h>

#define SPW__KEEP_BY_MEMORY UINT64_MAX

typedef struct spw__finetune {
    const char *model;   /* directory */
    const char *data;    /* FILE.jsonl */
    const char *out;     /* directory of the result */
    const char *adapter; /* PEFT directory to start from; NULL: new pairs by `lora` */
    const char *log;     /* NULL: none */
    const char *sample;  /* text to continue before the first and after the last step; NULL */
    const char *template;
    bool full;           /* train every tensor */
    bool resume;         /* from the newest valid checkpoint in `out`, if there is one */
    uint64_t save_every; /* steps between checkpoints; 0: none */
    spw__base base;
    spw__adapter_config lora;
    uint64_t steps; /* 0: by epochs */
    uint64_t epochs;
    uint32_t batch, accum;
    uint32_t seq; /* 0: 2048, or what the model has positions for if that is less */
    spw__too_long too_long;
    double lr, warmup;
    spw__schedule_kind schedule;
    double clip; /* 0: off */
    uint64_t seed;
    uint64_t keep; /* bytes for spw__model_keep, or SPW__KEEP_BY_MEMORY: an eighth of the device */
    const char *device;
    spw_device_config device_config;
    spw_pager_config pager;
    spw_optim_config optim;
    FILE *screen;                      /* NULL: say nothing */
    bool live;                         /* the screen is a terminal */
    const volatile sig_atomic_t *stop; /* not 0: end after the current step */
} spw__finetune;

/* 0, or SPW__FINETUNE_STOPPED, or a negative error; what happened is in spw_last_error(). */
enum { SPW__FINETUNE_STOPPED = 1 };
int spw__finetune_run(const spw__finetune *finetune);

#endif
