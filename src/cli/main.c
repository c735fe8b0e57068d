/* `spillway`: picks a command. */
#include "cli/cli.h"

#include <spillway/spillway.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} command;

static const command commands[] = {
    {"finetune", spw__cli_finetune, "fine-tune a model with a paged optimizer"},
    {"bench", spw__cli_bench, "measure what an optimizer step reaches on this machine"},
    {"ckpt", spw__cli_ckpt, "inspect, verify or convert an optimizer's checkpoint"},
};

enum { N_COMMANDS = sizeof commands / sizeof *commands };

static int complain(int status, const char *format, va_list arguments)
{
    (void)fflush(stdout);
    (void)fputs("spillway: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    (void)fputc('\n', stderr);
    return status;
}

int spw__cli_usage(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int status = complain(SPW__EXIT_USAGE, format, arguments);
    va_end(arguments);
    return status;
}

int spw__cli_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int status = complain(SPW__EXIT_FAILED, format, arguments);
    va_end(arguments);
    return status;
}

static int print_usage(FILE *screen, int status)
{
    (void)fprintf(screen, "usage: spillway COMMAND [options]\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        (void)fprintf(screen, "  %-10s %s\n", commands[i].name, commands[i].help);
    (void)fprintf(screen, "\n`spillway COMMAND --help` lists a command's options; "
                          "`spillway --version` says which this is.\n");
    return status;
}

static int unknown(const char *name)
{
    char list[128] = "";
    for (int i = 0; i < N_COMMANDS; i++) {
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", commands[i].name);
    }
    return spw__cli_usage("%s: unknown command; there are %s", name, list);
}

/* Output that did not reach its file is a failure, whatever the command thought. */
static int finish(int status)
{
    if (fflush(stdout) != 0 && status == SPW__EXIT_DONE)
        return spw__cli_fail("standard output: cannot be written");
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return print_usage(stderr, SPW__EXIT_USAGE);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return finish(print_usage(stdout, SPW__EXIT_DONE));
    if (strcmp(argv[1], "--version") == 0) {
        printf("spillway %s\n", spw_version());
        return finish(SPW__EXIT_DONE);
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return finish(commands[i].run(argc - 1, argv + 1));
    return unknown(argv[1]);
}
