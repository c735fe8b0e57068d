#include "format/json.h"

#include "base/error.h"
#include "base/file.h"

#include <stdlib.h>
#include <string.h>

int spw__json_parse(const char *text, size_t bytes, const char *where, bool unique,
                    json_t **document)
{
    json_error_t error;
    size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY | (unique ? JSON_REJECT_DUPLICATES : 0);
    *document = json_loadb(text, bytes, flags, &error);
    /* transformers writes model_max_length 1e30 digit by digit, past what an integer here holds:
     * such a document is read with its integers as doubles. */
    if (!*document && json_error_code(&error) == json_error_numeric_overflow)
        *document = json_loadb(text, bytes, flags | JSON_DECODE_INT_AS_REAL, &error);
    if (*document)
        return 0;
    if (bytes && !memchr(text, '\n', bytes - 1)) /* a line of a file: `where` names it */
        return spw__error(SPW_EFORMAT, "%s: not JSON: column %d (byte %d): %s", where, error.column,
                          error.position, error.text);
    return spw__error(SPW_EFORMAT, "%s: not JSON: line %d, column %d (byte %d): %s", where,
                      error.line, error.column, error.position, error.text);
}

int spw__json_load(const char *path, uint64_t max_bytes, json_t **document)
{
    char *text;
    size_t bytes;
    int rc = spw__file_read(path, max_bytes, &text, &bytes);
    if (rc < 0)
        return rc;
    rc = spw__json_parse(text, bytes, path, false, document);
    free(text);
    if (rc == 0 && !json_is_object(*document)) {
        json_decref(*document);
        *document = NULL;
        rc = spw__error(SPW_EFORMAT, "%s: its root is not an object", path);
    }
    return rc;
}

/* The value of a key; NULL and *rc tell an absent one from a wrong one. */
static const json_t *get(const json_t *object, const char *key, const char *where, bool required,
                         int *rc)
{
    const json_t *value = json_object_get(object, key);
    *rc = 0;
    if (value && !json_is_null(value))
        return value;
    if (required)
        *rc = spw__error(SPW_EFORMAT, "%s: lacks \"%s\"", where, key);
    return NULL;
}

static int wrong(const char *where, const char *key, const char *wanted)
{
    return spw__error(SPW_EFORMAT, "%s: \"%s\" is not %s", where, key, wanted);
}

int spw__json_get_integer(const json_t *object, const char *key, const char *where, bool required,
                          int64_t *value)
{
    int rc;
    const json_t *found = get(object, key, where, required, &rc);
    if (!found)
        return rc;
    if (!json_is_integer(found))
        return wrong(where, key, "an integer");
    *value = json_integer_value(found);
    return 0;
}

int spw__json_get_real(const json_t *object, const char *key, const char *where, bool required,
                       double *value)
{
    int rc;
    const json_t *found = get(object, key, where, required, &rc);
    if (!found)
        return rc;
    if (!json_is_number(found))
        return wrong(where, key, "a number");
    *value = json_number_value(found);
    return 0;
}

int spw__json_get_bool(const json_t *object, const char *key, const char *where, bool required,
                       bool *value)
{
    int rc;
    const json_t *found = get(object, key, where, required, &rc);
    if (!found)
        return rc;
    if (!json_is_boolean(found))
        return wrong(where, key, "true or false");
    *value = json_is_true(found);
    return 0;
}

int spw__json_get_string(const json_t *object, const char *key, const char *where, bool required,
                         const char **value)
{
    int rc;
    const json_t *found = get(object, key, where, required, &rc);
    if (!found)
        return rc;
    if (!json_is_string(found))
        return wrong(where, key, "a string");
    *value = json_string_value(found);
    return 0;
}
