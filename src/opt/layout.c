/* From parameters to pieces in pages. */
#include "opt/opt.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdlib.h>

enum { ALIGN = 64 };

spw__parts spw__piece_parts(bool is_8bit, uint64_t n)
{
    uint64_t moment = is_8bit ? n : n * sizeof(float);
    uint64_t absmax = is_8bit ? (n + SPW__BLOCK - 1) / SPW__BLOCK * sizeof(float) : 0;
    spw__parts parts = {.bytes = {moment, moment, absmax, absmax}};
    for (int i = 0; i < SPW__PARTS; i++) {
        parts.at[i] = parts.end;
        parts.end += spw__round_up(parts.bytes[i], ALIGN);
    }
    return parts;
}

/* The most elements, whole splits unless it is the rest, whose state fits in `room` bytes. */
static uint64_t fitting(bool is_8bit, uint64_t left, uint64_t room)
{
    if (spw__piece_parts(is_8bit, left).end <= room)
        return left;
    return room / spw__piece_parts(is_8bit, SPW__SPLIT).end * SPW__SPLIT;
}

static int append(spw_optim *optim, const spw__piece *piece)
{
    int rc = spw__grow(&optim->pieces, &optim->piece_capacity, optim->n_pieces + 1,
                       sizeof *optim->pieces);
    if (rc == 0)
        optim->pieces[optim->n_pieces++] = *piece;
    return rc;
}

/* Walks along the pages: `page` and `offset` are where the next piece may begin. */
typedef struct cursor {
    uint64_t page, offset, page_bytes;
} cursor;

static int place_param(spw_optim *optim, uint64_t index, cursor *at)
{
    spw__param *param = &optim->params[index];
    param->first_piece = optim->n_pieces;
    for (uint64_t first = 0; first < param->n;) {
        uint64_t n = fitting(param->is_8bit, param->n - first, at->page_bytes - at->offset);
        if (n == 0) {
            at->page++;
            at->offset = 0;
            continue;
        }
        spw__piece piece = {at->page, at->offset, index, first, n};
        int rc = append(optim, &piece);
        if (rc < 0)
            return rc;
        at->offset += spw__piece_parts(param->is_8bit, n).end;
        first += n;
    }
    param->n_pieces = optim->n_pieces - param->first_piece;
    return 0;
}

static uint64_t raw_bytes(const spw_optim *optim)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < optim->n_params; i++)
        bytes += spw__piece_parts(optim->params[i].is_8bit, optim->params[i].n).end;
    return bytes;
}

static int index_pages(spw_optim *optim)
{
    optim->page_first = spw__calloc((size_t)optim->n_pages + 1, sizeof *optim->page_first);
    if (!optim->page_first)
        return SPW_EHOSTMEM;
    uint64_t piece = 0;
    for (uint64_t page = 0; page <= optim->n_pages; page++) {
        while (piece < optim->n_pieces && optim->pieces[piece].page < page)
            piece++;
        optim->page_first[page] = piece;
    }
    return 0;
}

static int make_kern_table(spw_optim *optim)
{
    uint64_t blocks = 0;
    for (size_t i = 0; i < optim->n_params; i++)
        blocks += (optim->params[i].n + SPW__SPLIT - 1) / SPW__SPLIT;
    int rc = spw__kern_table_create(optim->pager->device, optim->n_params, blocks, &optim->table);
    for (size_t i = 0; rc == 0 && i < optim->n_params; i++)
        rc = spw__kern_table_set(optim->table, i, &optim->params[i].start);
    return rc;
}

static int make_step_tables(spw_optim *optim)
{
    optim->runs = spw__calloc(optim->n_pieces, sizeof *optim->runs);
    optim->visit = spw__calloc((size_t)optim->n_pages, sizeof *optim->visit);
    optim->norm_runs = spw__calloc(optim->n_params, sizeof *optim->norm_runs);
    optim->hyper = spw__calloc(optim->n_params, sizeof *optim->hyper);
    bool made = optim->runs && optim->visit && optim->norm_runs && optim->hyper;
    return made ? make_kern_table(optim) : SPW_EHOSTMEM;
}

static int lay_out(spw_optim *optim)
{
    cursor at = {.page_bytes = spw_pager_page_bytes(&optim->pager->config, raw_bytes(optim))};
    for (size_t i = 0; i < optim->n_params; i++) {
        int rc = place_param(optim, i, &at);
        if (rc < 0)
            return rc;
    }
    optim->n_pages = at.page + (at.offset > 0);
    int rc = index_pages(optim);
    if (rc == 0)
        rc = make_step_tables(optim);
    if (rc == 0 && optim->n_pages)
        rc = spw__pager_set_pages(optim->pager, at.page_bytes, optim->n_pages);
    return rc;
}

int spw__optim_lay_out(spw_optim *optim)
{
    if (optim->laid_out)
        return 0;
    int rc = lay_out(optim);
    if (rc < 0)
        spw__optim_free_layout(optim);
    optim->laid_out = rc == 0;
    return rc;
}

int spw_optim_lay_out(spw_optim *optim)
{
    if (!optim)
        return spw__error(SPW_EINVAL, "spw_optim_lay_out: optim is NULL");
    return spw__optim_lay_out(optim);
}

void spw__optim_free_layout(spw_optim *optim)
{
    free(optim->pieces);
    free(optim->page_first);
    free(optim->runs);
    free(optim->visit);
    free(optim->norm_runs);
    free(optim->hyper);
    spw__kern_table_destroy(optim->table);
    optim->pieces = NULL;
    optim->page_first = NULL;
    optim->runs = NULL;
    optim->visit = NULL;
    optim->norm_runs = NULL;
    optim->hyper = NULL;
    optim->table = NULL;
    optim->n_pieces = optim->piece_capacity = 0;
    optim->n_pages = 0;
}
