#include "train/runlog.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The step of a whole line of a log; 0 if it is none. */
static uint64_t step_of(const char *line, ssize_t bytes)
{
    json_error_t error;
    if (bytes < 1 || line[bytes - 1] != '\n')
        return 0;
    json_t *object = json_loadb(line, (size_t)bytes, 0, &error);
    json_int_t step = json_integer_value(json_object_get(object, "step"));
    json_decref(object);
    return step > 0 ? (uint64_t)step : 0;
}

/* How far the lines reach that are of the steps up to `after`. */
static uint64_t bytes_to_keep(const char *path, uint64_t after)
{
    char *line = NULL;
    size_t room = 0;
    uint64_t keep = 0;
    FILE *file = fopen(path, "re");
    while (file) {
        ssize_t bytes = getline(&line, &room, file);
        uint64_t step = bytes > 0 ? step_of(line, bytes) : 0;
        if (step == 0 || step > after)
            break;
        keep += (uint64_t)bytes;
    }
    free(line);
    if (file)
        (void)fclose(file);
    return keep;
}

int spw__runlog_open(spw__runlog *log, const char *path, uint64_t after)
{
    struct stat before;
    *log = (spw__runlog){.path = path};
    if (!path)
        return 0;
    log->made = stat(path, &before) < 0;
    if (!log->made && after && S_ISREG(before.st_mode))
        log->keep = bytes_to_keep(path, after);
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
    int fd = fileno(log->file);
    if (!log->written && ftruncate(fd, (off_t)log->keep) < 0 && errno != EINVAL)
        return spw__error_errno(errno, "--log %s: cannot be cut", log->path);
    if (!log->written && log->keep && lseek(fd, (off_t)log->keep, SEEK_SET) < 0)
        return spw__error_errno(errno, "--log %s: cannot be gone on with", log->path);
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

int spw__runlog_sync(spw__runlog *log)
{
    /* Devices and pipes have no disk, and say EINVAL. */
    if (!log->file || fsync(fileno(log->file)) == 0 || errno == EINVAL)
        return 0;
    return spw__error_errno(errno, "--log %s: cannot be synced", log->path);
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
