/* Which implementation a device has, and the thin wrappers over it. */
#include "kern/kern.h"

static const spw__kern_ops *ops_of(const spw_device *device)
{
#ifdef SPW_HAVE_CUDA
    if (device->async)
        return &spw__kern_cuda;
#else
    (void)device;
#endif
    return &spw__kern_cpu;
}

int spw__kern_check_stream(spw_device *device, void *stream)
{
    const spw__kern_ops *ops = ops_of(device);
    return ops->check_stream ? ops->check_stream(device, stream) : 0;
}

int spw__kern_table_create(spw_device *device, uint64_t n_params, uint64_t norm_blocks,
                           spw__step_table **table)
{
    return ops_of(device)->table_create(device, n_params, norm_blocks, table);
}

void spw__kern_table_destroy(spw__step_table *table)
{
    if (table)
        table->ops->table_destroy(table);
}

int spw__kern_table_begin(spw__step_table *table, const spw__step_request *step)
{
    return table->ops->table_begin(table, step);
}

bool spw__kern_table_skips(const spw__step_table *table)
{
    return table->skips;
}

const spw__adam_consts *spw__kern_table_consts(const spw__step_table *table, uint64_t param)
{
    return &table->consts[param];
}

int spw__kern_table_verdict(spw__step_table *table, spw__verdict *verdict)
{
    return table->ops->table_verdict(table, verdict);
}

int spw__kern_table_get(spw__step_table *table, uint64_t param, spw__param_progress *progress)
{
    return table->ops->table_get(table, param, progress);
}

int spw__kern_table_set(spw__step_table *table, uint64_t param, const spw__param_progress *progress)
{
    return table->ops->table_set(table, param, progress);
}

uint64_t spw__kern_norm_blocks(const spw__norm_run *runs, uint64_t n_runs)
{
    uint64_t n_blocks = 0;
    for (uint64_t i = 0; i < n_runs; i++)
        n_blocks += runs[i].n / SPW__SPLIT + (runs[i].n % SPW__SPLIT != 0);
    return n_blocks;
}

int spw__kern_norm(spw__step_table *table, const spw__norm_run *runs, uint64_t n_runs, double *norm)
{
    return table->ops->norm(table, runs, n_runs, norm);
}

int spw__kern_update(spw_device *device, spw_rule rule, const spw__update_run *runs,
                     uint64_t n_runs, void *stream)
{
    return n_runs ? ops_of(device)->update(device, rule, runs, n_runs, stream) : 0;
}
