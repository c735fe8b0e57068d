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
                                       .weight_decay = group->weight_decay,
                                       .beta3 = group->beta3,
                                       .alpha = group->alpha,
                                       .log_beta1 = log(group->beta1),
                                       .log_beta3 = log(group->beta3),
                                       .t_alpha = group->t_alpha,
                                       .t_beta3 = group->t_beta3,
                                       .rule = optim->config.rule,
                                       .decay = group->decay};
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

/* A part of a piece whose state is at `state`; NULL if it has no such part. */
static void *part_at(const spw__parts *parts, spw_part part, char *state)
{
    return parts->bytes[part] ? state + parts->at[part] : NULL;
}

static spw__update_run make_run(const spw_optim *optim, const spw__piece *piece, char *page)
{
    const spw__param *param = &optim->params[piece->param];
    spw__parts parts = spw__piece_parts(optim->config.rule, param->is_8bit, piece->n);
    char *state = page + piece->offset;
    uint64_t p_bytes = spw__type_bytes(param->type);
    uint64_t g_bytes = spw__type_bytes(param->grad_type);
    return (spw__update_run){
        .p = (char *)param->data + piece->first * p_bytes,
        .g = (const char *)param->grad + piece->first * g_bytes,
        .m = part_at(&parts, SPW_PART_M, state),
        .v = part_at(&parts, SPW_PART_V, state),
        .absmax_m = part_at(&parts, SPW_PART_ABSMAX_M, state),
        .absmax_v = part_at(&parts, SPW_PART_ABSMAX_V, state),
        .m_slow = part_at(&parts, SPW_PART_M_SLOW, state),
        .absmax_m_slow = part_at(&parts, SPW_PART_ABSMAX_M_SLOW, state),
        .n = piece->n,
        .consts = spw__kern_table_consts(optim->table, piece->param),
        .p_type = param->type,
        .g_type = param->grad_type,
    };
}

/* Adam without decay is AdamW, whose kernels are the quickest; AdamW that decays after the update
 * needs Adam's. Either way the bits are the same. */
static spw_rule kernels_of(const spw_optim *optim)
{
    spw_rule rule = optim->config.rule;
    bool plain = true;
    for (size_t i = 0; i < optim->n_groups; i++) {
        const spw_group *group = &optim->groups[i];
        bool usual = rule == SPW_ADAMW && group->decay == SPW_DECAY_BEFORE;
        plain = plain && (usual || group->weight_decay == 0);
    }
    if (rule != SPW_ADAMW && rule != SPW_ADAM)
        return rule;
    return plain ? SPW_ADAMW : SPW_ADAM;
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
    return spw__kern_update(optim->pager->device, kernels_of(optim), optim->runs, n_runs, stream);
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
    if (optim->torn)
        return spw__error(SPW_EFAILED, "a checkpoint was loaded in part: load one before a step");
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
