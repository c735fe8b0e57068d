/*
 * opt.h - parameters laid out in pages, and the step over them.
 *
 * What it is: the table of parameters and groups; the layout, fixed at the first step, that cuts
 * every parameter's state into pieces that lie in pages; the step, which turns the pages that a
 * sweep brings into runs for the kernels. What it is not: it moves no page and knows no store.
 * Called through spillway.h, by one thread at a time.
 *
 * Layout. Parameters follow one another in order of registration. A piece is a run of one
 * parameter's elements inside one page: the moments that the rule keeps and (8-bit) the absmax of
 * each, in spw_part's order, each part beginning at a multiple of 64 bytes. A parameter is cut at
 * multiples of SPW__SPLIT elements, so a piece is the same work whatever the page size. Many small
 * parameters share a page.
 *
 * Files: opt.c (life, parameters, groups), layout.c (pieces), step.c (a step), part.c (state out
 * and in).
 */
#ifndef SPW_OPT_OPT_H
#define SPW_OPT_OPT_H

#include "kern/kern.h"
#include "pager/pager.h"

typedef struct spw__param {
    char *name;
    void *data;
    const void *grad;
    uint64_t n;
    uint64_t first_piece, n_pieces;
    spw__param_progress start; /* what the table begins with; the table's word counts once it is */
    spw_type type, grad_type;
    uint32_t group;
    bool is_8bit;
} spw__param;

typedef struct spw__piece {
    uint64_t page;
    uint64_t offset; /* of its m, bytes into the page */
    uint64_t param;
    uint64_t first; /* element of the parameter */
    uint64_t n;
} spw__piece;

enum { SPW__PARTS = 6 }; /* of spw_part */

/* By spw_part: its name in checkpoints; is it codes where the state is 8-bit (else floats). */
typedef struct spw__part_kind {
    const char *name;
    bool coded;
} spw__part_kind;

extern const spw__part_kind spw__part_kinds[SPW__PARTS];

/* Where the parts of a piece begin, bytes from its offset; `end` is its size. */
typedef struct spw__parts {
    uint64_t at[SPW__PARTS];    /* by spw_part */
    uint64_t bytes[SPW__PARTS]; /* 0: the piece has no such part */
    uint64_t end;
} spw__parts;

struct spw_optim {
    spw_pager *pager;
    spw_optim_config config;
    spw_group *groups;
    size_t n_groups, group_capacity;
    spw__param *params;
    size_t n_params, param_capacity;
    spw__piece *pieces; /* in page order; NULL until the layout is made */
    size_t n_pieces, piece_capacity;
    uint64_t *page_first; /* [n_pages + 1]: first piece of each page */
    uint64_t n_pages;
    bool laid_out;
    bool torn;                /* a checkpoint was read in part: no step until one is read whole */
    spw__update_run *runs;    /* [n_pieces] */
    uint64_t *visit;          /* [n_pages]: pages of the step under way */
    spw__norm_run *norm_runs; /* [n_params] */
    spw__hyper *hyper;        /* [n_groups], of the step under way */
    size_t hyper_capacity;
    uint32_t *takes_part;   /* [n_params]: its group in this step, or SPW__SITS_OUT */
    spw__step_table *table; /* progress, constants and verdict; NULL until the layout is made */
};

/* layout.c: fixes the layout and tells the pager; once. Nothing changed on error. */
int spw__optim_lay_out(spw_optim *optim);
void spw__optim_free_layout(spw_optim *optim);
spw__parts spw__piece_parts(spw_rule rule, bool is_8bit, uint64_t n);

#endif
