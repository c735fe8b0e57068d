/* The options that say where and how the optimizer runs. */
#include "base/sizes.h"
#include "cli/cli.h"
#include "cli/options.h"

#include <stdlib.h>
#include <string.h>

enum code {
    CODE_DEVICE = 1000,
    CODE_DEVICE_MEM,
    CODE_THREADS,
    CODE_OPTIM,
    CODE_STATE,
    CODE_PAGING,
    CODE_STATE_MEM,
    CODE_OCCUPANCY,
    CODE_PAGE_SIZE,
    CODE_STORE,
    CODE_HOST_MEM,
    CODE_PINNED_MEM,
};

const spw__option spw__machine_options[] = {
    {"device", CODE_DEVICE, "cpu|cuda[:N]", "where weights, gradients and activations live [cpu]"},
    {"device-mem", CODE_DEVICE_MEM, "SIZE",
     "what the device has; past it, optimizer state gives way [the machine's memory,\n"
     "or the limit of its control group]"},
    {"threads", CODE_THREADS, "N", "that compute [one per core]"},
    {"optim", CODE_OPTIM, "adamw", "the optimizer [adamw; adam, lion, ademamix: not yet]"},
    {"state", CODE_STATE, "32bit|8bit", "how its moments are held [8bit]"},
    {"paging", CODE_PAGING, "WAY",
     "how state moves: auto, copy, mapped, unified, off [auto: copy on a GPU and with\n"
     "--device-mem, else mapped]\n"
     "copy: through a ring of page frames, what fits stays on the device\n"
     "mapped: steps work on the store in place; off: all of it stays on the device\n"
     "unified: CUDA managed memory, which the driver moves"},
    {"state-mem", CODE_STATE_MEM, "SIZE|N%",
     "cap on the state that stays on the device, in bytes or percent of the state [none]"},
    {"occupancy", CODE_OCCUPANCY, "F",
     "share of the device that may be in use at the peak for state to stay [0.90]"},
    {"page-size", CODE_PAGE_SIZE, "SIZE",
     "a power of two from 64KiB to 16MiB [state / 64, within these limits]"},
    {"store", CODE_STORE, "ram|file:PATH", "where state rests [ram]; PATH is made and unlinked"},
    {"host-mem", CODE_HOST_MEM, "SIZE", "cap on what the ram store may take [none]"},
    {"pinned-mem", CODE_PINNED_MEM, "SIZE",
     "on a GPU, cap on pinned host memory; past it pages pass a small pinned ring [none]"},
    {0},
};

void spw__machine_default(spw__machine *machine)
{
    machine->device = "cpu";
    spw_device_config_default(&machine->device_config);
    spw_pager_config_default(&machine->pager);
    spw_optim_config_default(&machine->optim);
}

static int parse_device(spw__machine *machine, const char *value)
{
    bool cuda = strncmp(value, "cuda", 4) == 0;
    const char *number = cuda && value[4] == ':' ? value + 5 : "0";
    bool numbered = *number && strspn(number, "0123456789") == strlen(number);
    if (strcmp(value, "cpu") != 0 && !(cuda && (!value[4] || value[4] == ':') && numbered))
        return spw__cli_usage("--device %s: cpu, cuda or cuda:N is allowed", value);
    machine->device = value;
    return 0;
}

static int parse_optim(const char *value)
{
    static const char *const words[] = {"adamw", "adam", "lion", "ademamix", NULL};
    int index = 0;
    int rc = spw__option_word("optim", value, words, &index);
    if (rc == 0 && index > 0)
        return spw__cli_usage("--optim %s: not yet; adamw is allowed in this version", value);
    return rc;
}

static int parse_state(spw__machine *machine, const char *value)
{
    static const char *const words[] = {"32bit", "8bit", NULL};
    int index = 0;
    int rc = spw__option_word("state", value, words, &index);
    machine->optim.state = index == 0 ? SPW_STATE_32BIT : SPW_STATE_8BIT;
    return rc;
}

/* The words stand in the order of spw_paging. */
static int parse_paging(spw__machine *machine, const char *value)
{
    static const char *const words[] = {"auto", "copy", "mapped", "unified", "off", NULL};
    int index = 0;
    int rc = spw__option_word("paging", value, words, &index);
    machine->pager.paging = (spw_paging)index;
    return rc;
}

static int parse_state_mem(spw__machine *machine, const char *value)
{
    char *end;
    double percent = strtod(value, &end);
    bool digits = *value >= '0' && *value <= '9' && !strchr(value, 'x');
    if (digits && end != value && strcmp(end, "%") == 0 && percent >= 0 && percent <= 100) {
        machine->pager.state_percent = percent;
        machine->pager.state_mem = SPW_ALL_STATE;
        return 0;
    }
    if (spw__parse_size(value, &machine->pager.state_mem) == 0) {
        machine->pager.state_percent = -1;
        return 0;
    }
    return spw__cli_usage("--state-mem %s: a size such as 48MiB, or 0%% to 100%% of the state, is "
                          "allowed",
                          value);
}

static int parse_occupancy(spw__machine *machine, const char *value)
{
    static const spw__real_range range = {0, 1, true, "a share above 0 and at most 1"};
    return spw__option_real("occupancy", value, &range, &machine->pager.occupancy);
}

static int parse_page_size(spw__machine *machine, const char *value)
{
    uint64_t bytes = 0;
    bool parsed = spw__parse_size(value, &bytes) == 0;
    bool power = bytes && (bytes & (bytes - 1)) == 0;
    if (!parsed || !power || bytes < (UINT64_C(64) << 10) || bytes > (UINT64_C(16) << 20))
        return spw__cli_usage("--page-size %s: a power of two from 64KiB to 16MiB is allowed",
                              value);
    machine->pager.page_bytes = bytes;
    return 0;
}

static int parse_store(spw__machine *machine, const char *value)
{
    bool file = strncmp(value, "file:", 5) == 0 && value[5];
    if (!file && strcmp(value, "ram") != 0)
        return spw__cli_usage("--store %s: ram or file:PATH is allowed", value);
    machine->pager.store = value;
    return 0;
}

static int parse_threads(spw__machine *machine, const char *value)
{
    uint64_t threads = 0;
    int rc = spw__option_integer("threads", value, (uint64_t[]){1, 1024}, &threads);
    machine->device_config.threads = (uint32_t)threads;
    return rc;
}

static int parse(spw__machine *machine, enum code code, const char *value)
{
    switch (code) {
    case CODE_DEVICE:
        return parse_device(machine, value);
    case CODE_DEVICE_MEM:
        return spw__option_size("device-mem", value, &machine->device_config.mem);
    case CODE_THREADS:
        return parse_threads(machine, value);
    case CODE_OPTIM:
        return parse_optim(value);
    case CODE_STATE:
        return parse_state(machine, value);
    case CODE_PAGING:
        return parse_paging(machine, value);
    case CODE_STATE_MEM:
        return parse_state_mem(machine, value);
    case CODE_OCCUPANCY:
        return parse_occupancy(machine, value);
    case CODE_PAGE_SIZE:
        return parse_page_size(machine, value);
    case CODE_STORE:
        return parse_store(machine, value);
    case CODE_HOST_MEM:
        return spw__option_size("host-mem", value, &machine->pager.host_mem);
    case CODE_PINNED_MEM:
        return spw__option_size("pinned-mem", value, &machine->pager.pinned_mem);
    }
    return 0;
}

int spw__machine_parse(spw__machine *machine, int code, const char *value)
{
    if (code < CODE_DEVICE || code > CODE_PINNED_MEM)
        return 0;
    return parse(machine, (enum code)code, value) == 0 ? 1 : -1;
}

int spw__machine_check(const spw__machine *machine)
{
    bool on_cpu = strcmp(machine->device, "cpu") == 0;
    if (on_cpu && machine->pager.paging == SPW_PAGING_UNIFIED)
        return spw__cli_usage("--paging unified: needs a GPU; on the cpu device auto, copy, mapped "
                              "or off is allowed");
    bool file = strncmp(machine->pager.store, "file:", 5) == 0;
    if (file && machine->pager.paging == SPW_PAGING_MAPPED)
        return spw__cli_usage("--paging mapped: works on a ram store only; use --paging copy with "
                              "--store %s",
                              machine->pager.store);
    return 0;
}
