/*
 * A step: kern works out what depends on the step alone, once for each parameter, in double; then
 * the pager sweeps and every page it brings becomes runs for the kernels.
 */
#include "opt/opt.h"

#include "base/error.h"

#include <math.h>

static bool takes_part(const spw__param *param)
{
    return param->grad && param->n;
}

static uint64_t fill_norm_runs(spw_optim *optim)
{
    uint64_t n = 0;
    for (size_t i = 0; i < optim->n_params; i++) {
        const spw__param *param = &optim->params[i];
        if (takes_part(param))
            optim->norm_runs[n++] = (spw__norm_run){param->grad, param->n, param->grad_type};
    }
    return n;
}

int spw_optim_grad_norm(spw_optim *optim, double *norm)
{
    if (!optim || !norm)
        return spw__error(SPW_EINVAL, "spw_optim_grad_norm: optim and norm may not be NULL");
    int rc = spw__kern_check_stream(optim->pager->device, NULL);
    if (rc == 0)
        rc = spw__optim_lay_out(optim);
    if (rc < 0)
        return rc;
    uint64_t n = fill_norm_runs(optim);
    return spw__kern_norm(optim->table, optim->norm_runs, n, norm);
}

static void fill_hyper(spw_optim *optim, double lr)
{
    for (size_t i = 0; i < optim->n_groups; i++) {
        const spw_group *group = &optim->groups[i];
        optim->hyper[i] = (spw__hyper){.lr = lr * group->lr_scale,
                                       .beta1 = group->beta1,
                                       .beta2 = group->beta2,
                                       .eps = group->eps,
                                       .weight_decay = group->weight_decay};
    }
    for (size_t i = 0; i < optim->n_params; i++) {
        const spw__param *param = &optim->params[i];
        optim->takes_part[i] = takes_part(param) ? param->group : SPW__SITS_OUT;
    }
}

/* The norm, if the step clips, and every parameter's constants. */
static int begin(spw_optim *optim, const spw_step *step)
{
    fill_hyper(optim, step->lr);
    spw__step_request begun = {.hyper = optim->hyper,
                               .groups = optim->takes_part,
                               .n_groups = optim->n_groups,
                               .norm_runs = optim->norm_runs,
                               .n_norm_runs = step->max_norm > 0 ? fill_norm_runs(optim) : 0,
                               .max_norm = step->max_norm,
                               .grad_scale = step->grad_scale != 0 ? step->grad_scale : 1,
                               .loss_scale = step->loss_scale,
                               .found_inf = step->found_inf,
                               .stream = step->stream};
    return spw__kern_table_begin(optim->table, &begun);
}

static spw__update_run make_run(const spw_optim *optim, const spw__piece *piece, char *page)
{
    const spw__param *param = &optim->params[piece->param];
    spw__parts parts = spw__piece_parts(param->is_8bit, piece->n);
    char *state = page + piece->offset;
    uint64_t p_bytes = spw__type_bytes(param->type);
    uint64_t g_bytes = spw__type_bytes(param->grad_type);
    bool quantised = param->is_8bit;
    return (spw__update_run){
        .p = (char *)param->data + piece->first * p_bytes,
        .g = (const char *)param->grad + piece->first * g_bytes,
        .m = state + parts.at[SPW_PART_M],
        .v = state + parts.at[SPW_PART_V],
        .absmax_m = quantised ? (float *)(void *)(state + parts.at[SPW_PART_ABSMAX_M]) : NULL,
        .absmax_v = quantised ? (float *)(void *)(state + parts.at[SPW_PART_ABSMAX_V]) : NULL,
        .n = piece->n,
        .consts = spw__kern_table_consts(optim->table, piece->param),
        .p_type = param->type,
        .g_type = param->grad_type,
    };
}

/* The sweep's callback. */
static int update_pages(void *context, const spw__page_view *views, uint64_t n, void *stream)
{
    spw_optim *optim = context;
    uint64_t n_runs = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t end = optim->page_first[views[i].page + 1];
        for (uint64_t j = optim->page_first[views[i].page]; j < end; j++)
            if (takes_part(&optim->params[optim->pieces[j].param]))
                optim->runs[n_runs++] = make_run(optim, &optim->pieces[j], views[i].memory);
    }
    return spw__kern_update(optim->pager->device, optim->runs, n_runs, stream);
}

/* Pages with at least one piece that has a gradient. */
static uint64_t pages_to_visit(spw_optim *optim)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < optim->n_pieces; i++) {
        uint64_t page = optim->pieces[i].page;
        bool listed = n && optim->visit[n - 1] == page;
        if (!listed && takes_part(&optim->params[optim->pieces[i].param]))
            optim->visit[n++] = page;
    }
    return n;
}

static int check_step(const spw_optim *optim, const spw_step *step)
{
    if (!optim || !step)
        return spw__error(SPW_EINVAL, "spw_optim_step: optim and step may not be NULL");
    if (!isfinite(step->lr) || step->lr < 0)
        return spw__error(SPW_EINVAL, "lr %g is not a number of at least 0", step->lr);
    if (!(step->max_norm >= 0))
        return spw__error(SPW_EINVAL, "max_norm %g is not a number of at least 0", step->max_norm);
    if (!isfinite(step->grad_scale) || step->grad_scale < 0)
        return spw__error(SPW_EINVAL, "grad_scale %g is not a number of at least 0",
                          step->grad_scale);
    return 0;
}

int spw_optim_step(spw_optim *optim, const spw_step *step)
{
    int rc = check_step(optim, step);
    if (rc == 0)
        rc = spw__kern_check_stream(optim->pager->device, step->stream);
    if (rc == 0)
        rc = spw__optim_lay_out(optim);
    if (rc == 0)
        rc = spw__pager_prepare(optim->pager);
    if (rc == 0)
        rc = begin(optim, step);
    if (rc < 0 || spw__kern_table_skips(optim->table))
        return rc;
    spw__sweep sweep = {.pages = optim->visit,
                        .n_pages = pages_to_visit(optim),
                        .update = update_pages,
                        .context = optim,
                        .stream = step->stream};
    return spw__pager_sweep(optim->pager, &sweep);
}
