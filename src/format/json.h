/*
 * json.h - JSON by jansson, with errors that name the file, the place and the key.
 *
 * A document is a json_t of jansson: free it with json_decref. The getters take the object, the key
 * and `where` ("DIR/config.json"), which begins their messages. Any thread, each its own document.
 */
#ifndef SPW_FORMAT_JSON_H
#define SPW_FORMAT_JSON_H

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parses `bytes` of UTF-8 text; SPW_EFORMAT "WHERE: not JSON: line L, column C (byte B): ...", less
 * the line where the text is only one. With `unique` a key that stands twice in an object is an
 * error. */
int spw__json_parse(const char *text, size_t bytes, const char *where, bool unique,
                    json_t **document);

/* Reads and parses a whole file of at most `max_bytes`; its root must be an object. */
int spw__json_load(const char *path, uint64_t max_bytes, json_t **document);

/* Getters: 0, or SPW_EFORMAT naming `where`, the key and what was wanted. The value of an absent
 * (or null) key is left as it is when `required` is false. */
int spw__json_get_integer(const json_t *object, const char *key, const char *where, bool required,
                          int64_t *value);
int spw__json_get_real(const json_t *object, const char *key, const char *where, bool required,
                       double *value);
int spw__json_get_bool(const json_t *object, const char *key, const char *where, bool required,
                       bool *value);
/* The string belongs to the document. */
int spw__json_get_string(const json_t *object, const char *key, const char *where, bool required,
                         const char **value);

#endif
