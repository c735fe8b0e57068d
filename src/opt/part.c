/* A parameter's state out to host memory and in from it, piece by piece. */
#include "opt/opt.h"

#include "base/error.h"

#include <inttypes.h>

const spw__part_kind spw__part_kinds[SPW__PARTS] = {
    [SPW_PART_M] = {"m", true},
    [SPW_PART_V] = {"v", true},
    [SPW_PART_ABSMAX_M] = {"absmax_m", false},
    [SPW_PART_ABSMAX_V] = {"absmax_v", false},
    [SPW_PART_M_SLOW] = {"m_slow", true},
    [SPW_PART_ABSMAX_M_SLOW] = {"absmax_m_slow", false},
};

static int check(const spw_optim *optim, uint64_t index, spw_part part)
{
    if (!optim || index >= optim->n_params)
        return spw__error(SPW_EINVAL, "there is no parameter %" PRIu64, index);
    if ((unsigned)part >= SPW__PARTS)
        return spw__error(SPW_EINVAL, "part %d is none of spw_part", (int)part);
    return 0;
}

int64_t spw_optim_part_bytes(spw_optim *optim, uint64_t index, spw_part part)
{
    int rc = check(optim, index, part);
    if (rc < 0)
        return rc;
    const spw__param *param = &optim->params[index];
    return (int64_t)spw__piece_parts(optim->config.rule, param->is_8bit, param->n).bytes[part];
}

/* What to do with one piece of the part. */
typedef int (*mover)(spw_pager *pager, uint64_t page, uint64_t offset, void *host, uint64_t bytes);

static int write_piece(spw_pager *pager, uint64_t page, uint64_t offset, void *host, uint64_t bytes)
{
    return spw__pager_write(pager, page, offset, host, bytes);
}

static int move_part(spw_optim *optim, uint64_t index, spw_part part, char *host, mover move)
{
    int rc = spw__optim_lay_out(optim);
    if (rc == 0)
        rc = spw__pager_prepare(optim->pager);
    const spw__param *param = &optim->params[index];
    for (uint64_t i = 0; rc == 0 && i < param->n_pieces; i++) {
        const spw__piece *piece = &optim->pieces[param->first_piece + i];
        spw__parts parts = spw__piece_parts(optim->config.rule, param->is_8bit, piece->n);
        rc = move(optim->pager, piece->page, piece->offset + parts.at[part], host,
                  parts.bytes[part]);
        host += parts.bytes[part];
    }
    return rc;
}

static int check_bytes(spw_optim *optim, uint64_t index, spw_part part, uint64_t bytes)
{
    int64_t wanted = spw_optim_part_bytes(optim, index, part);
    if (wanted < 0)
        return (int)wanted;
    if ((uint64_t)wanted != bytes)
        return spw__error(SPW_EINVAL, "parameter %s: part %d has %" PRId64 " bytes, not %" PRIu64,
                          optim->params[index].name, (int)part, wanted, bytes);
    return 0;
}

int spw_optim_get_part(spw_optim *optim, uint64_t index, spw_part part, void *host, uint64_t bytes)
{
    int rc = check_bytes(optim, index, part, bytes);
    return rc < 0 ? rc : move_part(optim, index, part, host, spw__pager_read);
}

/* The source is const to the caller; one walk serves both directions and write_piece only reads. */
int spw_optim_set_part(spw_optim *optim, uint64_t index, spw_part part, const void *host,
                       uint64_t bytes)
{
    int rc = check_bytes(optim, index, part, bytes);
    return rc < 0 ? rc : move_part(optim, index, part, (char *)(uintptr_t)host, write_piece);
}
