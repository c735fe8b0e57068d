/*
 * bench_step.h - what an optimizer step reaches on this machine, beside what it could reach.
 *
 * Measures an optimizer over made-up parameters and gradients through spillway.h, then runs the
 * same steps again unpaged on a device without a cap and compares the parameters bit for bit. One
 * thread calls.
 */
#ifndef SPW_CLI_BENCH_STEP_H
#define SPW_CLI_BENCH_STEP_H

#include <spillway/spillway.h>

#include <stdbool.h>

typedef struct spw__bench_step {
    const char *device_name;
    spw_device_config device;
    spw_pager_config pager;
    spw_rule rule;
    spw_state state;
    uint64_t params; /* of one tensor; not used with lora448 */
    bool lora448;    /* 448 tensors: rank-64 LoRA on the seven linear layers of a 7B's 32 blocks */
    spw_type dtype;  /* of parameters and gradients */
    uint32_t steps;  /* timed, after one that is not */
} spw__bench_step;

typedef struct spw__bench_step_result {
    spw_pager_stats pager; /* after the last step */
    uint64_t params;
    uint64_t bytes_in, bytes_out; /* of the last step */
    uint64_t bound_bytes;         /* 2 * (state - resident) */
    double ms_median, ms_min, ms_max;
    double link_in_gbs, link_out_gbs; /* bytes moved over the median step */
    double probe_gbs; /* pages copied in and out, nothing else; 0 for a file store (the command's
                         store bench measures that) */
    double step_gbs;  /* bytes that parameters, gradients and state need, over the median */
    double limit_gbs; /* cpu: STREAM triad on the same threads; cuda: copies within the device */
    bool on_gpu;
    bool identical;
} spw__bench_step_result;

int spw__bench_step_run(const spw__bench_step *bench, spw__bench_step_result *result);

#endif
