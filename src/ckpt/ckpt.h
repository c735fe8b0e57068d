/*
 * ckpt.h - an optimizer's state to a file and back: spw_optim_save and spw_optim_load.
 *
 * What it is: the list of tensors that an optimizer's file holds, its metadata, and the two walks
 * over the pages. What it is not: it knows no other library's format, and nothing of the model.
 * Called through spillway.h, by one thread at a time.
 *
 * The file is a checked safetensors file (format/checked.h). Parameter NAME has the tensors
 * NAME.PART, PART as spw__part_kinds says ("m", "v", "absmax_m", ...), flattened: codes as U8,
 * all else as F32, those first so that they are aligned. Metadata, all strings:
 *
 *   format             "spillway.optimizer"
 *   version            "1"
 *   library            spw_version() of the writer
 *   optimizer          "adamw"
 *   codes, block       where 8-bit state is in it: the table of its codes ("bitsandbytes") and the
 *                      elements that share an absmax ("256")
 *   step.NAME          steps that the parameter has had, decimal
 *
 * Pages are walked in order, each read or written once, whole; a tensor's pieces come in order
 * then, and its checksum runs along.
 *
 * Files: table.c (tensors), metadata.c, save.c, load.c.
 */
#ifndef SPW_CKPT_CKPT_H
#define SPW_CKPT_CKPT_H

#include "format/checked.h"
#include "opt/opt.h"

#define SPW__NO_TENSOR SIZE_MAX

typedef struct spw__ckpt_table {
    spw__tensor_spec *specs; /* [n], in the order of the file; names are owned */
    size_t n;
    size_t *of; /* [n_params * SPW__PARTS]: index of the spec, or SPW__NO_TENSOR */
} spw__ckpt_table;

/* SPW_EINVAL: a parameter has no name, or two have the same, or one is not UTF-8. */
int spw__ckpt_table_make(const spw_optim *optim, spw__ckpt_table *table);
void spw__ckpt_table_free(spw__ckpt_table *table); /* a zeroed one is allowed */

/* The parts of n elements of a parameter: of a piece, or of all of it. */
static inline spw__parts spw__ckpt_parts(const spw_optim *optim, uint64_t param, uint64_t n)
{
    return spw__piece_parts(optim->params[param].is_8bit, n);
}

/* The index of a piece's part. */
static inline size_t spw__ckpt_tensor_of(const spw__ckpt_table *table, uint64_t param, int part)
{
    return table->of[param * SPW__PARTS + (uint64_t)part];
}

/* New metadata of an optimizer. */
int spw__ckpt_metadata_make(spw_optim *optim, struct json_t **metadata);

/* Is this an optimizer's file that can be read here, of this optimizer's parameters? Then where
 * each stands; `progress` has room for all. */
int spw__ckpt_metadata_read(const spw_optim *optim, const spw__safetensors *file,
                            spw__adam_progress *progress);

#endif
