/*
 * A step: what depends on the step alone is computed here, once for each parameter, in double; then
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
    int rc = spw__optim_lay_out(optim);
    if (rc < 0)
        return rc;
    uint64_t n = fill_norm_runs(optim);
    return spw__kern_norm(optim->pager->device, optim->norm_runs, n, optim->norm_scratch, norm);
}

/* What a step would leave behind; nothing is changed before it has succeeded. */
static spw__adam_consts make_consts(const spw_optim *optim, const spw__param *param,
                                    const spw_step *step, double grad_factor)
{
    const spw_group *group = &optim->groups[param->group];
    double lr = step->lr * group->lr_scale;
    double bias1 = 1 - param->beta1_power * group->beta1;
    double bias2 = 1 - param->beta2_power * group->beta2;
    float weight = (float)(1 - group->beta1);
    bool from_m = weight < 0.5f;
    return (spw__adam_consts){
        .grad_factor = (float)grad_factor,
        .lerp_weight = from_m ? weight : weight - 1,
        .lerp_from_m = from_m ? UINT32_MAX : 0,
        .beta2 = (float)group->beta2,
        .one_minus_beta2 = (float)(1 - group->beta2),
        .step_size = (float)(lr / bias1),
        .root_bias2 = (float)sqrt(bias2),
        .inv_root_bias2 = (float)(1 / sqrt(bias2)),
        .eps = (float)group->eps,
        .decay = (float)(1 - lr * group->weight_decay),
    };
}

static spw__adam_run make_run(const spw_optim *optim, const spw__piece *piece, char *page)
{
    const spw__param *param = &optim->params[piece->param];
    spw__parts parts = spw__piece_parts(param->is_8bit, piece->n);
    char *state = page + piece->offset;
    uint64_t p_bytes = param->type == SPW_BF16 ? 2 : 4;
    uint64_t g_bytes = param->grad_type == SPW_BF16 ? 2 : 4;
    bool quantised = param->is_8bit;
    return (spw__adam_run){
        .p = (char *)param->data + piece->first * p_bytes,
        .g = (const char *)param->grad + piece->first * g_bytes,
        .m = state + parts.at[SPW_PART_M],
        .v = state + parts.at[SPW_PART_V],
        .absmax_m = quantised ? (float *)(void *)(state + parts.at[SPW_PART_ABSMAX_M]) : NULL,
        .absmax_v = quantised ? (float *)(void *)(state + parts.at[SPW_PART_ABSMAX_V]) : NULL,
        .n = piece->n,
        .consts = &param->consts,
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
    return spw__kern_adam(optim->pager->device, optim->runs, n_runs, stream);
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

/* torch.nn.utils.clip_grad_norm_: max_norm / (norm + 1e-6), at most 1. */
static double clip_factor(double norm, double max_norm)
{
    double factor = max_norm / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}

static int find_factor(spw_optim *optim, const spw_step *step, double *factor)
{
    double scale = step->grad_scale != 0 ? step->grad_scale : 1;
    *factor = scale;
    if (!(step->max_norm > 0))
        return 0;
    double norm;
    int rc = spw_optim_grad_norm(optim, &norm);
    if (rc < 0)
        return rc;
    optim->grad_norm = norm * scale;
    *factor = scale * clip_factor(optim->grad_norm, step->max_norm);
    return 0;
}

static void count_step(spw_optim *optim)
{
    for (size_t i = 0; i < optim->n_params; i++) {
        spw__param *param = &optim->params[i];
        if (!takes_part(param))
            continue;
        param->step++;
        param->beta1_power *= optim->groups[param->group].beta1;
        param->beta2_power *= optim->groups[param->group].beta2;
    }
    optim->steps++;
}

int spw_optim_step(spw_optim *optim, const spw_step *step)
{
    int rc = check_step(optim, step);
    if (rc == 0)
        rc = spw__optim_lay_out(optim);
    if (rc == 0)
        rc = spw__pager_prepare(optim->pager);
    double factor = 1;
    if (rc == 0)
        rc = find_factor(optim, step, &factor);
    if (rc < 0)
        return rc;
    if (step->max_norm > 0 && !isfinite(optim->grad_norm)) {
        optim->skipped++;
        return 0;
    }
    for (size_t i = 0; i < optim->n_params; i++)
        if (takes_part(&optim->params[i]))
            optim->params[i].consts = make_consts(optim, &optim->params[i], step, factor);
    spw__sweep sweep = {.pages = optim->visit,
                        .n_pages = pages_to_visit(optim),
                        .update = update_pages,
                        .context = optim,
                        .stream = step->stream};
    rc = spw__pager_sweep(optim->pager, &sweep);
    if (rc == 0)
        count_step(optim);
    return rc;
}
