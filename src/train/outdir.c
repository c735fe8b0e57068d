#include "train/outdir.h"

#include "base/error.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a run leaves; either of them there means somebody's work. */
static const char *const results[] = {"adapter_model.safetensors", "model.safetensors",
                                      "model.safetensors.index.json"};

/* Which of them is there; NULL: none, or SPW_EHOSTMEM in *rc. */
static const char *find_result(const char *path, int *rc)
{
    *rc = 0;
    for (size_t i = 0; i < sizeof results / sizeof *results; i++) {
        char *file = spw__path_join(path, results[i]);
        if (!file) {
            *rc = SPW_EHOSTMEM;
            return NULL;
        }
        bool there = access(file, F_OK) == 0;
        free(file);
        if (there)
            return results[i];
    }
    return NULL;
}

bool spw__outdir_has_result(const char *path)
{
    int rc;
    return find_result(path, &rc) != NULL;
}

static int refuse_result(const char *path)
{
    int rc;
    const char *found = find_result(path, &rc);
    if (!found)
        return rc;
    return spw__error(SPW_EEXIST,
                      "--out %s: holds a result already (%s): remove it or name another folder",
                      path, found);
}

static int make_folder(spw__outdir *out)
{
    struct stat there;
    if (mkdir(out->path, 0777) == 0) {
        out->made = true;
        return 0;
    }
    if (errno != EEXIST)
        return spw__error_errno(errno,
                                "--out %s: the folder cannot be made; the one it lies in must "
                                "exist and be writable",
                                out->path);
    if (stat(out->path, &there) < 0 || !S_ISDIR(there.st_mode))
        return spw__error(SPW_EEXIST, "--out %s: is a file; name a folder", out->path);
    return refuse_result(out->path);
}

/* Takes away what was made to prove that it can be: a run that is killed leaves nothing. */
static void take_back(spw__outdir *out)
{
    (void)rmdir(out->staging);
    if (out->made && rmdir(out->path) == 0)
        out->made = false;
}

int spw__outdir_begin(spw__outdir *out, const char *path)
{
    char name[32];
    (void)snprintf(name, sizeof name, ".partial-%ld", (long)getpid());
    *out = (spw__outdir){.path = path};
    if (!(out->staging = spw__path_join(path, name)))
        return SPW_EHOSTMEM;
    int rc = spw__outdir_stage(out); /* not access(): root is told yes on a read-only disk */
    if (rc == 0)
        take_back(out);
    else
        spw__outdir_abandon(out);
    return rc;
}

int spw__outdir_stage(spw__outdir *out)
{
    int rc = make_folder(out);
    if (rc < 0 || mkdir(out->staging, 0777) == 0 || errno == EEXIST)
        return rc;
    return spw__error_errno(errno, "--out %s: cannot be written; name a folder that can",
                            out->path);
}

typedef int each_file(const char *from, const char *to);

/* action(staging/NAME, path/NAME) for every file; the first error, all are visited. */
static int for_each_file(const spw__outdir *out, each_file *action)
{
    DIR *folder = opendir(out->staging);
    int rc = 0;
    if (!folder)
        return errno;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *from = spw__path_join(out->staging, entry->d_name);
        char *to = spw__path_join(out->path, entry->d_name);
        int error = !from || !to ? ENOMEM : action(from, to) < 0 ? errno : 0;
        rc = rc ? rc : error;
        free(from);
        free(to);
    }
    (void)closedir(folder);
    return rc;
}

static bool is_result(const char *path)
{
    const char *name = strrchr(path, '/') + 1;
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (strcmp(name, results[i]) == 0)
            return true;
    return false;
}

static int move_companion(const char *from, const char *to)
{
    return is_result(from) ? 0 : rename(from, to);
}

static int move(const char *from, const char *to)
{
    return rename(from, to);
}

static int drop(const char *from, const char *to)
{
    (void)to;
    return unlink(from);
}

static void sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fsync(fd);
    (void)close(fd);
}

int spw__outdir_commit(spw__outdir *out)
{
    int error = for_each_file(out, move_companion);
    if (error == 0)
        error = for_each_file(out, move);
    if (error == 0 && rmdir(out->staging) < 0)
        error = errno;
    int rc = error ? spw__error_errno(error, "--out %s: cannot move the result in", out->path) : 0;
    if (rc == 0) {
        sync_folder(out->path);
        out->made = false;
    }
    spw__outdir_abandon(out);
    return rc;
}

void spw__outdir_abandon(spw__outdir *out)
{
    if (out->staging) {
        (void)for_each_file(out, drop);
        (void)rmdir(out->staging);
    }
    if (out->made)
        (void)rmdir(out->path);
    free(out->staging);
    *out = (spw__outdir){.path = NULL};
}
