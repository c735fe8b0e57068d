/*
 * options.h - options of a command: one table says their names, arguments and help, and is what
 * getopt_long parses and what --help prints.
 *
 * The options that say where and how the optimizer runs (device, pager, optimizer) are shared by
 * every command that runs one: spw__machine. All parse functions print a usage error that names
 * the option, its value and what is allowed. One thread; the values point into argv.
 *
 *     spw__options options;
 *     const spw__option_group groups[] = {{"What", own}, {"Where", spw__machine_options}, {0}};
 *     spw__options_init(&options, "bench step", groups, argc, argv);
 *     while ((status = spw__options_next(&options, &code, &value)) == SPW__OPTION)
 *         ...                                        // code is of `own`, or spw__machine_parse
 *     // SPW__OPTIONS_END: all read; SPW__OPTIONS_HELP: --help was printed, exit 0; else exit 2
 */
#ifndef SPW_CLI_OPTIONS_H
#define SPW_CLI_OPTIONS_H

#include <spillway/spillway.h>

#include <getopt.h>
#include <stdbool.h>

typedef struct spw__option {
    const char *name;     /* without the dashes; NULL ends a table */
    int code;             /* 256..999 a command's own, from 1000 the machine's */
    const char *argument; /* as help shows it ("SIZE"); NULL: takes none */
    const char *help;     /* with the default in brackets; "\n" continues on a new line */
} spw__option;

typedef struct spw__option_group {
    const char *title; /* NULL ends the list */
    const spw__option *options;
} spw__option_group;

enum { SPW__OPTIONS_MAX = 64 };

typedef struct spw__options {
    const char *command; /* "finetune" */
    const spw__option_group *groups;
    int argc;
    char **argv; /* argv[0] is the command's name */
    int n;
    struct option table[SPW__OPTIONS_MAX + 2];
} spw__options;

enum spw__options_status {
    SPW__OPTION = 1,        /* *code and *value are set */
    SPW__OPTIONS_END = 0,   /* all read */
    SPW__OPTIONS_HELP = -1, /* --help: print it */
    SPW__OPTIONS_BAD = -2,  /* usage error, printed */
};

void spw__options_init(spw__options *options, const char *command, const spw__option_group *groups,
                       int argc, char **argv);
int spw__options_next(spw__options *options, int *code, const char **value);

/* Every option with its help on stdout. */
void spw__options_help(const spw__option_group *groups);

/* A value to a number, size or word: 0, or SPW__EXIT_USAGE after printing what is allowed. */
int spw__option_integer(const char *name, const char *value, const uint64_t range[2],
                        uint64_t *result);

typedef struct spw__real_range {
    double low, high;     /* allowed */
    bool above_low;       /* low itself is not */
    const char *in_words; /* "a number above 0" */
} spw__real_range;

int spw__option_real(const char *name, const char *value, const spw__real_range *range,
                     double *result);
int spw__option_size(const char *name, const char *value, uint64_t *bytes);

/* `words` ends with NULL; *result is the index of the one that equals `value`. */
int spw__option_word(const char *name, const char *value, const char *const *words, int *result);

/* Where and how the optimizer runs. */
typedef struct spw__machine {
    const char *device; /* "cpu", "cuda", "cuda:N" */
    spw_device_config device_config;
    spw_pager_config pager;
    spw_optim_config optim;
} spw__machine;

/* --device --device-mem --threads --optim --state --paging --state-mem --occupancy --page-size
 * --store --host-mem */
extern const spw__option spw__machine_options[];

/* What --optim takes, in the order of spw_rule; NULL ends it. */
extern const char *const spw__rule_words[];

void spw__machine_default(spw__machine *machine);

/* Takes one option if its code is the machine's: 1 taken, 0 not one of these, -1 a usage error
 * (printed). */
int spw__machine_parse(spw__machine *machine, int code, const char *value);

/* After parsing: 0, or the exit status after printing why this machine cannot be had (a GPU is
 * SPW__EXIT_FAILED, options that contradict each other SPW__EXIT_USAGE). */
int spw__machine_check(const spw__machine *machine);

#endif
