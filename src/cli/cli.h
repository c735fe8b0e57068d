/*
 * cli.h - the commands of `spillway`, and how they end.
 *
 * main.c picks a command; each gets argv from its own name on and returns the exit status. Only
 * this folder prints errors: one line on stderr that names the thing and the remedy.
 */
#ifndef SPW_CLI_CLI_H
#define SPW_CLI_CLI_H

enum spw__exit { SPW__EXIT_DONE = 0, SPW__EXIT_FAILED = 1, SPW__EXIT_USAGE = 2 };

int spw__cli_finetune(int argc, char **argv);
int spw__cli_bench(int argc, char **argv);
int spw__cli_ckpt(int argc, char **argv);

/* Print "spillway: ..." on stderr; return SPW__EXIT_USAGE and SPW__EXIT_FAILED. */
int spw__cli_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
int spw__cli_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
