#include "train/runlog.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int spw__runlog_open(spw__runlog *log, const char *path)
{
    struct stat before;
    *log = (spw__runlog){.path = path};
    if (!path)
        return 0;
    log->made = stat(path, &before) < 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd >= 0)
        log->file = fdopen(fd, "w");
    if (log->file)
        return 0;
    int rc = spw__error_errno(errno, "--log %s: cannot be written", path);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

/* JSON has no NaN: null there, "nan" in loss_hex. */
static void set_real(json_t *object, const char *key, double value)
{
    (void)json_object_set_new(object, key, isfinite(value) ? json_real(value) : json_null());
}

static void set_integer(json_t *object, const char *key, uint64_t value)
{
    (void)json_object_set_new(object, key, json_integer((json_int_t)value));
}

static char *line_of(const spw__step_record *record)
{
    char hex[40];
    json_t *object = json_object();
    (void)snprintf(hex, sizeof hex, "%a", record->loss);
    set_integer(object, "step", record->step);
    set_real(object, "loss", record->loss);
    (void)json_object_set_new(object, "loss_hex", json_string(hex));
    set_integer(object, "tokens", record->tokens);
    set_real(object, "lr", record->lr);
    set_real(object, "grad_norm", record->grad_norm);
    set_real(object, "ms", record->ms);
    set_integer(object, "device_bytes", record->device_bytes);
    set_integer(object, "resident_bytes", record->resident_bytes);
    set_integer(object, "bytes_in", record->bytes_in);
    set_integer(object, "bytes_out", record->bytes_out);
    set_integer(object, "bytes_cleaned", record->bytes_cleaned);
    set_integer(object, "reclaims", record->reclaims);
    char *line = json_dumps(object, 0);
    json_decref(object);
    return line;
}

/* The first line cuts away what an earlier run left; devices and pipes cannot be cut. */
static int cut(spw__runlog *log)
{
    if (!log->written && ftruncate(fileno(log->file), 0) < 0 && errno != EINVAL)
        return spw__error_errno(errno, "--log %s: cannot be cut", log->path);
    log->written = true;
    return 0;
}

int spw__runlog_write(spw__runlog *log, const spw__step_record *record)
{
    if (!log->file)
        return 0;
    int rc = cut(log);
    if (rc < 0)
        return rc;
    char *line = line_of(record);
    if (!line)
        return spw__error(SPW_EHOSTMEM, "--log %s: no memory for a line", log->path);
    if (fprintf(log->file, "%s\n", line) < 0 || fflush(log->file) != 0)
        rc = spw__error_errno(errno,
                              "--log %s: cannot write step %llu; free space there, or leave "
                              "out --log",
                              log->path, (unsigned long long)record->step);
    free(line);
    return rc;
}

void spw__runlog_close(spw__runlog *log)
{
    if (!log->file)
        return;
    (void)fclose(log->file);
    if (log->made && !log->written)
        (void)unlink(log->path);
    log->file = NULL;
}
