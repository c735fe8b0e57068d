#include "opt/opt.h"

#include "base/error.h"
#include "base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

void spw_group_default(spw_group *group)
{
    *group = (spw_group){
        .size = sizeof *group, .lr_scale = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
}

void spw_optim_config_default(spw_optim_config *config)
{
    *config = (spw_optim_config){
        .size = sizeof *config, .state = SPW_STATE_8BIT, .min_8bit_elements = 4096};
    spw_group_default(&config->group);
}

static int check_beta(const char *name, double beta)
{
    if (!(beta >= 0 && beta < 1))
        return spw__error(SPW_EINVAL, "%s %g is not at least 0 and below 1", name, beta);
    return 0;
}

static int check_not_negative(const char *name, double value)
{
    if (!(value >= 0 && isfinite(value)))
        return spw__error(SPW_EINVAL, "%s %g is not a number of at least 0", name, value);
    return 0;
}

static int check_group(const spw_group *group)
{
    if (!group || group->size != sizeof *group)
        return spw__error(SPW_EINVAL, "spw_group.size is not %zu: call spw_group_default",
                          sizeof *group);
    int rc = check_not_negative("lr_scale", group->lr_scale);
    if (rc == 0)
        rc = check_beta("beta1", group->beta1);
    if (rc == 0)
        rc = check_beta("beta2", group->beta2);
    if (rc == 0)
        rc = check_not_negative("eps", group->eps);
    if (rc == 0)
        rc = check_not_negative("weight_decay", group->weight_decay);
    return rc;
}

static int check_config(const spw_optim_config *config)
{
    if (config->size != sizeof *config)
        return spw__error(SPW_EINVAL,
                          "spw_optim_config.size is %u, not %zu: call "
                          "spw_optim_config_default",
                          config->size, sizeof *config);
    if (config->state != SPW_STATE_32BIT && config->state != SPW_STATE_8BIT)
        return spw__error(SPW_EINVAL, "state %d is none of spw_state", (int)config->state);
    return check_group(&config->group);
}

int spw_optim_create(spw_pager *pager, const spw_optim_config *config, spw_optim **result)
{
    spw_optim_config defaults;
    spw_optim_config_default(&defaults);
    if (!pager || !result)
        return spw__error(SPW_EINVAL, "spw_optim_create: pager and optim may not be NULL");
    if (!config)
        config = &defaults;
    int rc = check_config(config);
    if (rc < 0)
        return rc;
    if (pager->owned)
        return spw__error(SPW_EBUSY, "the pager has, or had, an optimizer: create another pager");
    spw_optim *optim = spw__calloc(1, sizeof *optim);
    if (!optim)
        return SPW_EHOSTMEM;
    optim->pager = pager;
    optim->config = *config;
    rc = spw_optim_add_group(optim, &config->group);
    if (rc < 0) {
        free(optim);
        return rc;
    }
    pager->owned = true;
    *result = optim;
    return 0;
}

/* A pager keeps the pages of its optimizer, so it stays owned: its state cannot be given a second
 * meaning. */
void spw_optim_destroy(spw_optim *optim)
{
    if (!optim)
        return;
    spw__optim_free_layout(optim);
    for (size_t i = 0; i < optim->n_params; i++)
        free(optim->params[i].name);
    free(optim->params);
    free(optim->groups);
    free(optim);
}

int spw_optim_add_group(spw_optim *optim, const spw_group *group)
{
    if (!optim)
        return spw__error(SPW_EINVAL, "spw_optim_add_group: optim is NULL");
    int rc = check_group(group);
    if (rc == 0)
        rc = spw__grow(&optim->groups, &optim->group_capacity, optim->n_groups + 1,
                       sizeof *optim->groups);
    if (rc < 0)
        return rc;
    optim->groups[optim->n_groups] = *group;
    return (int)optim->n_groups++;
}

int spw_optim_set_group(spw_optim *optim, uint32_t index, const spw_group *group)
{
    if (!optim || index >= optim->n_groups)
        return spw__error(SPW_EINVAL, "there is no group %u", index);
    int rc = check_group(group);
    if (rc == 0)
        optim->groups[index] = *group;
    return rc;
}

static int check_param(const spw_optim *optim, const spw_param *param)
{
    const char *name = param->name ? param->name : "";
    if (optim->laid_out)
        return spw__error(SPW_EINVAL,
                          "parameter %s: parameters are added before the first step, norm or "
                          "part of a state",
                          name);
    if (!param->data && param->n)
        return spw__error(SPW_EINVAL, "parameter %s: data is NULL", name);
    if (param->group >= optim->n_groups)
        return spw__error(SPW_EINVAL, "parameter %s: there is no group %u", name, param->group);
    if ((unsigned)param->type >= SPW__TYPES || (unsigned)param->grad_type >= SPW__TYPES)
        return spw__error(SPW_EINVAL, "parameter %s: type %d or %d is none of spw_type", name,
                          (int)param->type, (int)param->grad_type);
    if (param->bits != 0 && param->bits != 8 && param->bits != 32)
        return spw__error(SPW_EINVAL, "parameter %s: state of %u bits: 8, 32, or 0", name,
                          param->bits);
    if (param->n > UINT64_MAX / 64)
        return spw__error(SPW_EINVAL, "parameter %s: %" PRIu64 " elements", name, param->n);
    return 0;
}

static bool is_8bit(const spw_optim_config *config, const spw_param *param)
{
    if (param->bits)
        return param->bits == 8;
    return config->state == SPW_STATE_8BIT && param->n >= config->min_8bit_elements;
}

int64_t spw_optim_add(spw_optim *optim, const spw_param *param)
{
    if (!optim || !param)
        return spw__error(SPW_EINVAL, "spw_optim_add: optim and param may not be NULL");
    int rc = check_param(optim, param);
    if (rc == 0)
        rc = spw__grow(&optim->params, &optim->param_capacity, optim->n_params + 1,
                       sizeof *optim->params);
    if (rc < 0)
        return rc;
    char *name = spw__strdup(param->name ? param->name : "");
    if (!name)
        return SPW_EHOSTMEM;
    optim->params[optim->n_params] = (spw__param){
        .name = name,
        .data = param->data,
        .grad = param->grad,
        .n = param->n,
        .type = param->type,
        .grad_type = param->grad_type,
        .group = param->group,
        .is_8bit = is_8bit(&optim->config, param),
    };
    return (int64_t)optim->n_params++;
}

static int check_index(const spw_optim *optim, uint64_t index)
{
    if (!optim || index >= optim->n_params)
        return spw__error(SPW_EINVAL, "there is no parameter %" PRIu64, index);
    return 0;
}

int spw_optim_set_pointers(spw_optim *optim, uint64_t index, void *data, const void *grad)
{
    int rc = check_index(optim, index);
    if (rc < 0)
        return rc;
    if (!data && optim->params[index].n)
        return spw__error(SPW_EINVAL, "parameter %s: data is NULL", optim->params[index].name);
    optim->params[index].data = data;
    optim->params[index].grad = grad;
    return 0;
}

static int check_place(const spw__param *param, const spw_place *place)
{
    if (!place->data && param->n)
        return spw__error(SPW_EINVAL, "parameter %s: data is NULL", param->name);
    if ((unsigned)place->grad_type >= SPW__TYPES)
        return spw__error(SPW_EINVAL, "parameter %s: type %d is none of spw_type", param->name,
                          (int)place->grad_type);
    return 0;
}

int spw_optim_set_places(spw_optim *optim, const spw_place *places, uint64_t n)
{
    if (!optim || !places)
        return spw__error(SPW_EINVAL, "spw_optim_set_places: optim and places may not be NULL");
    if (n != optim->n_params)
        return spw__error(SPW_EINVAL, "%" PRIu64 " places for %zu parameters", n, optim->n_params);
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < n; i++)
        rc = check_place(&optim->params[i], &places[i]);
    for (uint64_t i = 0; rc == 0 && i < n; i++) {
        optim->params[i].data = places[i].data;
        optim->params[i].grad = places[i].grad;
        optim->params[i].grad_type = places[i].grad_type;
    }
    return rc;
}

int spw_optim_set_param_group(spw_optim *optim, uint64_t index, uint32_t group)
{
    int rc = check_index(optim, index);
    if (rc < 0)
        return rc;
    if (group >= optim->n_groups)
        return spw__error(SPW_EINVAL, "parameter %s: there is no group %u",
                          optim->params[index].name, group);
    optim->params[index].group = group;
    return 0;
}

int spw_optim_get_step(spw_optim *optim, uint64_t index, uint64_t *step)
{
    int rc = check_index(optim, index);
    if (rc < 0)
        return rc;
    spw__adam_progress progress = optim->params[index].start;
    if (optim->table)
        rc = spw__kern_table_get(optim->table, index, &progress);
    if (rc == 0)
        *step = progress.step;
    return rc;
}

int spw_optim_set_step(spw_optim *optim, uint64_t index, uint64_t step)
{
    int rc = check_index(optim, index);
    if (rc < 0)
        return rc;
    spw__param *param = &optim->params[index];
    param->start = (spw__adam_progress){.step = step};
    return optim->table ? spw__kern_table_set(optim->table, index, &param->start) : 0;
}

int spw_optim_info_get(spw_optim *optim, spw_optim_info *info)
{
    if (!optim || !info)
        return spw__error(SPW_EINVAL, "spw_optim_info_get: optim and info may not be NULL");
    spw__adam_verdict verdict = {0};
    int rc = optim->table ? spw__kern_table_verdict(optim->table, &verdict) : 0;
    if (rc < 0)
        return rc;
    *info = (spw_optim_info){.n_params = optim->n_params,
                             .steps = verdict.steps,
                             .skipped = verdict.skipped,
                             .grad_norm = verdict.grad_norm};
    for (size_t i = 0; i < optim->n_params; i++)
        info->n_elements += optim->params[i].n;
    return 0;
}
