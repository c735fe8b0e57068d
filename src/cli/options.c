#include "cli/options.h"

#include "base/sizes.h"
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CODE_HELP = 2000, HELP_COLUMN = 28 };

void spw__options_init(spw__options *options, const char *command, const spw__option_group *groups,
                       int argc, char **argv)
{
    *options = (spw__options){.command = command, .groups = groups, .argc = argc, .argv = argv};
    for (const spw__option_group *g = groups; g->title; g++)
        for (const spw__option *o = g->options; o->name && options->n < SPW__OPTIONS_MAX; o++)
            options->table[options->n++] = (struct option){
                o->name, o->argument ? required_argument : no_argument, NULL, o->code};
    options->table[options->n++] = (struct option){"help", no_argument, NULL, CODE_HELP};
    optind = 0; /* glibc: start afresh */
    opterr = 0;
}

static int next_argument(spw__options *options)
{
    if (optind >= options->argc)
        return SPW__OPTIONS_END;
    (void)spw__cli_usage("%s: does not belong here; see spillway %s --help", options->argv[optind],
                         options->command);
    return SPW__OPTIONS_BAD;
}

/* getopt leaves in optopt a short option's letter, a known option's code, or 0. */
static int refuse(const spw__options *options, int answer)
{
    const char *given = options->argv[optind - 1];
    const char letter[] = {'-', (char)optopt, 0};
    const char *why = "unknown option";
    if (optopt > 0 && optopt < 256)
        given = letter;
    else if (answer == ':')
        why = "needs a value";
    else if (optopt)
        why = "takes no value";
    (void)spw__cli_usage("%s: %s; see spillway %s --help", given, why, options->command);
    return SPW__OPTIONS_BAD;
}

int spw__options_next(spw__options *options, int *code, const char **value)
{
    /* '+': stop at the first word that is no option, in the order given; ':' tells a missing value
     * from an unknown option. */
    int answer = getopt_long(options->argc, options->argv, "+:h", options->table, NULL);
    if (answer == -1)
        return next_argument(options);
    if (answer == CODE_HELP || answer == 'h')
        return SPW__OPTIONS_HELP;
    if (answer == '?' || answer == ':')
        return refuse(options, answer);
    *code = answer;
    *value = optarg;
    return SPW__OPTION;
}

static void print_option(const spw__option *o)
{
    int column =
        printf("  --%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
    if (column >= HELP_COLUMN) {
        printf("\n");
        column = 0;
    }
    for (const char *line = o->help; line; column = 0) {
        const char *end = strchr(line, '\n');
        int length = end ? (int)(end - line) : (int)strlen(line);
        printf("%*s%.*s\n", HELP_COLUMN - column, "", length, line);
        line = end ? end + 1 : NULL;
    }
}

void spw__options_help(const spw__option_group *groups)
{
    for (const spw__option_group *g = groups; g->title; g++) {
        printf("\n%s:\n", g->title);
        for (const spw__option *o = g->options; o->name; o++)
            print_option(o);
    }
    printf("\nSizes are whole bytes or take KiB, MiB, GiB.\n");
}

int spw__option_integer(const char *name, const char *value, const uint64_t range[2],
                        uint64_t *result)
{
    char *end = NULL;
    errno = 0;
    unsigned long long number = isdigit((unsigned char)*value) ? strtoull(value, &end, 10) : 0;
    if (end && !*end && errno == 0 && number >= range[0] && number <= range[1]) {
        *result = number;
        return 0;
    }
    return spw__cli_usage("--%s %s: a whole number from %" PRIu64 " to %" PRIu64 " is allowed",
                          name, value, range[0], range[1]);
}

int spw__option_real(const char *name, const char *value, const spw__real_range *range,
                     double *result)
{
    char *end = NULL;
    double number = strtod(value, &end);
    bool parsed = end != value && !*end && isfinite(number) && !isspace((unsigned char)*value);
    if (parsed && number <= range->high &&
        (range->above_low ? number > range->low : number >= range->low)) {
        *result = number;
        return 0;
    }
    return spw__cli_usage("--%s %s: %s is allowed", name, value, range->in_words);
}

int spw__option_size(const char *name, const char *value, uint64_t *bytes)
{
    if (spw__parse_size(value, bytes) == 0 && *bytes > 0)
        return 0;
    return spw__cli_usage("--%s %s: a size above 0 such as 48MiB is allowed (bytes, KiB, MiB, GiB)",
                          name, value);
}

int spw__option_word(const char *name, const char *value, const char *const *words, int *result)
{
    char list[256] = "";
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], value) == 0) {
            *result = i;
            return 0;
        }
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    }
    return spw__cli_usage("--%s %s: one of %s is allowed", name, value, list);
}
