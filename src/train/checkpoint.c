#include "train/checkpoint.h"

#include "base/crc32c.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/json.h"
#include "train/folders.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char staging_name[] = ".checkpoint";
static const char prefix[] = "checkpoint-";
static const uint64_t max_document_bytes = 16 << 20;

/* ----------------------------------------------------------------------------------- folders -- */

static char *path_of(const char *out, uint64_t step)
{
    char name[40];
    (void)snprintf(name, sizeof name, "%s%" PRIu64, prefix, step);
    return spw__path_join(out, name);
}

/* N of "checkpoint-N", in the only way of writing it; 0 if it is none. */
static uint64_t number_of(const char *name)
{
    char *end;
    size_t length = sizeof prefix - 1;
    if (strncmp(name, prefix, length) != 0 || name[length] < '1' || name[length] > '9')
        return 0;
    errno = 0;
    uint64_t number = strtoull(name + length, &end, 10);
    return *end || errno ? 0 : number;
}

typedef struct numbers {
    uint64_t *list;
    size_t n, capacity;
} numbers;

static int take_number(void *context, const char *name)
{
    numbers *found = context;
    uint64_t number = number_of(name);
    if (!number)
        return 0;
    int rc = spw__grow(&found->list, &found->capacity, found->n + 1, sizeof *found->list);
    if (rc == 0)
        found->list[found->n++] = number;
    return rc;
}

static int descending(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x < y) - (x > y);
}

static int list_numbers(const char *out, numbers *found)
{
    *found = (numbers){.n = 0};
    int rc = spw__folder_each(out, take_number, found);
    if (rc == 0 && found->n)
        qsort(found->list, found->n, sizeof *found->list, descending);
    return rc;
}

bool spw__checkpoint_any(const char *out)
{
    numbers found;
    bool any = list_numbers(out, &found) == 0 && found.n > 0;
    free(found.list);
    return any;
}

/* The document goes first: without it the rest is no checkpoint. */
static void remove_checkpoint(const char *path)
{
    char *document = spw__path_join(path, SPW__CHECKPOINT_DOCUMENT);
    if (document)
        (void)unlink(document);
    free(document);
    spw__folder_remove(path);
}

void spw__checkpoint_retire(const char *out, uint64_t newest, uint64_t before)
{
    numbers found;
    (void)list_numbers(out, &found);
    for (size_t i = 0; i < found.n; i++) {
        char *path = path_of(out, found.list[i]);
        if (path && found.list[i] != newest && found.list[i] != before)
            remove_checkpoint(path);
        free(path);
    }
    free(found.list);
}

static int sweep_one(void *context, const char *name)
{
    const char *out = context;
    if (strcmp(name, staging_name) != 0 && strncmp(name, ".partial-", 9) != 0)
        return 0;
    char *path = spw__path_join(out, name);
    if (path)
        spw__folder_remove(path);
    free(path);
    return 0;
}

void spw__checkpoint_sweep(const char *out)
{
    (void)spw__folder_each(out, sweep_one, (void *)(uintptr_t)out);
}

/* -------------------------------------------------------------------------------- the document --
 */

static void set_crc(json_t *object, uint32_t crc)
{
    char digits[16];
    (void)snprintf(digits, sizeof digits, "%08" PRIx32, crc);
    (void)json_object_set_new(object, "crc32c", json_string(digits));
}

/* Of the document without its own checksum, whatever spaces its file has. */
static int document_crc(const json_t *document, uint32_t *crc)
{
    json_t *bare = json_copy((json_t *)(uintptr_t)document);
    (void)json_object_del(bare, "crc32c");
    char *text = json_dumps(bare, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(bare);
    if (!text)
        return spw__error(SPW_EHOSTMEM, "out of host memory for a checkpoint's document");
    *crc = spw__crc32c(0, text, strlen(text));
    free(text);
    return 0;
}

static int crc_of_entry(const json_t *entry, const char *where, uint32_t *crc)
{
    const char *digits;
    char *end = NULL;
    int rc = spw__json_get_string(entry, "crc32c", where, true, &digits);
    if (rc < 0)
        return rc;
    *crc = (uint32_t)strtoul(digits, &end, 16);
    return strlen(digits) == 8 && !*end
               ? 0
               : spw__error(SPW_EFORMAT, "%s: crc32c is no checksum", where);
}

static int check_document(const json_t *document, const char *path, uint64_t step)
{
    int64_t version = 0, said = 0;
    uint32_t crc, wanted;
    int rc = crc_of_entry(document, path, &wanted);
    if (rc == 0)
        rc = document_crc(document, &crc);
    if (rc == 0 && crc != wanted)
        rc = spw__error(SPW_EFORMAT, "%s: damaged: its checksum is %08" PRIx32 ", not %08" PRIx32,
                        path, crc, wanted);
    if (rc == 0)
        rc = spw__json_get_integer(document, "version", path, true, &version);
    if (rc == 0 && version != 1)
        rc = spw__error(SPW_ENOTSUP, "%s: version %" PRId64 "; this one reads 1", path, version);
    if (rc == 0)
        rc = spw__json_get_integer(document, "step", path, true, &said);
    if (rc == 0 && (uint64_t)said != step)
        rc = spw__error(SPW_EFORMAT, "%s: is of step %" PRId64 ", its folder of %" PRIu64, path,
                        said, step);
    return rc;
}

static int check_file(const char *folder, const char *name, const json_t *entry)
{
    int64_t bytes = 0;
    uint64_t found = 0;
    uint32_t crc = 0, wanted = 0;
    char *path = spw__path_join(folder, name);
    int rc = path ? spw__json_get_integer(entry, "bytes", path, true, &bytes) : SPW_EHOSTMEM;
    if (rc == 0)
        rc = crc_of_entry(entry, path, &wanted);
    if (rc == 0)
        rc = spw__folder_checksum(path, &found, &crc);
    if (rc == 0 && found != (uint64_t)bytes)
        rc = spw__error(SPW_EFORMAT, "%s: has %" PRIu64 " bytes, not %" PRId64, path, found, bytes);
    if (rc == 0 && crc != wanted)
        rc = spw__error(SPW_EFORMAT, "%s: damaged: its checksum is %08" PRIx32 ", not %08" PRIx32,
                        path, crc, wanted);
    free(path);
    return rc;
}

static int check_files(const char *folder, const char *document_path, json_t *document)
{
    const char *name;
    json_t *entry, *files = json_object_get(document, "files");
    if (!json_object_get(files, SPW__CHECKPOINT_OPTIMIZER))
        return spw__error(SPW_EFORMAT, "%s: names no %s", document_path, SPW__CHECKPOINT_OPTIMIZER);
    json_object_foreach(files, name, entry)
    {
        int rc = check_file(folder, name, entry);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int open_checkpoint(const char *out, uint64_t step, spw__checkpoint *checkpoint)
{
    *checkpoint = (spw__checkpoint){.path = path_of(out, step), .step = step};
    char *document =
        checkpoint->path ? spw__path_join(checkpoint->path, SPW__CHECKPOINT_DOCUMENT) : NULL;
    int rc = document ? spw__json_load(document, max_document_bytes, &checkpoint->document)
                      : SPW_EHOSTMEM;
    if (rc == 0)
        rc = check_document(checkpoint->document, document, step);
    if (rc == 0)
        rc = check_files(checkpoint->path, document, checkpoint->document);
    free(document);
    if (rc < 0)
        spw__checkpoint_free(checkpoint);
    return rc;
}

int spw__checkpoint_find(const char *out, spw__progress *progress, spw__checkpoint *found)
{
    numbers there;
    *found = (spw__checkpoint){.path = NULL};
    int rc = list_numbers(out, &there);
    for (size_t i = 0; rc == 0 && !found->path && i < there.n; i++) {
        rc = open_checkpoint(out, there.list[i], found);
        if (rc < 0 && rc != SPW_EHOSTMEM) {
            spw__progress_say(progress, "checkpoint-%" PRIu64 " is left out: %s", there.list[i],
                              spw_last_error());
            rc = 0;
        }
    }
    free(there.list);
    return rc;
}

void spw__checkpoint_free(spw__checkpoint *checkpoint)
{
    json_decref(checkpoint->document);
    free(checkpoint->path);
    *checkpoint = (spw__checkpoint){.path = NULL};
}

/* ---------------------------------------------------------------------------------- writing -- */

int spw__checkpoint_begin(const char *out, char **staging)
{
    *staging = spw__path_join(out, staging_name);
    if (!*staging)
        return SPW_EHOSTMEM;
    int rc = 0;
    if (mkdir(out, 0777) < 0 && errno != EEXIST)
        rc = spw__error_errno(errno, "--out %s: the folder cannot be made", out);
    spw__folder_remove(*staging);
    if (rc == 0 && mkdir(*staging, 0777) < 0)
        rc = spw__error_errno(errno, "%s: cannot be made", *staging);
    if (rc == 0)
        return 0;
    free(*staging);
    *staging = NULL;
    return rc;
}

typedef struct listing {
    const char *folder;
    json_t *files;
} listing;

static int list_file(void *context, const char *name)
{
    listing *list = context;
    uint64_t bytes;
    uint32_t crc;
    char *path = spw__path_join(list->folder, name);
    int rc = path ? spw__folder_checksum(path, &bytes, &crc) : SPW_EHOSTMEM;
    free(path);
    if (rc < 0)
        return rc;
    json_t *entry = json_pack("{s:I}", "bytes", (json_int_t)bytes);
    set_crc(entry, crc);
    (void)json_object_set_new(list->files, name, entry);
    return 0;
}

static int write_document(const char *staging, uint64_t step, json_t *document)
{
    uint32_t crc;
    listing list = {staging, json_object()};
    int rc = spw__folder_each(staging, list_file, &list);
    (void)json_object_set_new(document, "version", json_integer(1));
    (void)json_object_set_new(document, "step", json_integer((json_int_t)step));
    (void)json_object_set_new(document, "files", list.files);
    if (rc == 0)
        rc = document_crc(document, &crc);
    if (rc < 0)
        return rc;
    set_crc(document, crc);
    char *text = json_dumps(document, JSON_INDENT(2));
    char *path = spw__path_join(staging, SPW__CHECKPOINT_DOCUMENT);
    rc = text && path ? spw__file_put(path, text, strlen(text)) : SPW_EHOSTMEM;
    free(text);
    free(path);
    return rc;
}

static int put_in_place(const char *out, const char *staging, uint64_t step)
{
    char *path = path_of(out, step);
    if (!path)
        return SPW_EHOSTMEM;
    remove_checkpoint(path);
    int rc = spw__folder_sync(staging);
    if (rc == 0 && rename(staging, path) < 0)
        rc = spw__error_errno(errno, "%s: cannot rename into place", path);
    if (rc == 0)
        rc = spw__folder_sync(out);
    free(path);
    return rc;
}

int spw__checkpoint_commit(const char *out, char *staging, uint64_t step, json_t *document)
{
    int rc = write_document(staging, step, document);
    if (rc == 0)
        rc = put_in_place(out, staging, step);
    if (rc < 0)
        spw__folder_remove(staging);
    free(staging);
    return rc;
}

void spw__checkpoint_abandon(char *staging)
{
    if (staging)
        spw__folder_remove(staging);
    free(staging);
}
