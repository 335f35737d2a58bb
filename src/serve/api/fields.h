/* Reading a request's JSON by tables: one row a field, with its type and its range.
 *
 *     { "temperature": 0.5, ... }  --  { "temperature", FIELD_REAL, offset, 0, 2 }  -->  struct
 *
 * A field that no row names is ignored, null counts as a field that is not there, and the first wrong one ends the
 * reading: its path ("messages[2].content") and one sentence are left in the reader. The JSON must have passed
 * json_valid (program/json.h). Work is in proportion to the text. */
#ifndef PF_SERVE_FIELDS_H
#define PF_SERVE_FIELDS_H

#include <stdbool.h>
#include <stddef.h>

#include "program/json.h"
#include "serve/arena.h"

struct reader {
    struct arena *arena;             /* texts that are read live here */
    char   path[192];                /* where the reading is; after a failure, the field that is wrong */
    char   why[256];                 /* the sentence */
};

enum field_kind {
    FIELD_BOOL,                      /* bool */
    FIELD_WHOLE,                     /* int64_t in [min, max] */
    FIELD_REAL,                      /* double in [min, max] */
    FIELD_TEXT,                      /* const char *, at most max bytes long unless max is 0 */
    FIELD_RAW,                       /* struct json, any value */
    FIELD_BY                         /* fn reads it; `to` is the struct + at */
};

typedef bool field_fn(struct reader *r, struct json v, void *to);

struct field {
    const char     *name;            /* NULL ends a table */
    enum field_kind kind;
    size_t          at;
    double          min, max;
    field_fn       *fn;
};

bool read_fields(struct reader *r, struct json object, const struct field *table, void *to);
/* Calls fn for each element of an array of at most `most`; `to` is handed on. */
bool read_elements(struct reader *r, struct json array, size_t most, field_fn *fn, void *to);

/* The number that v is; false: it is none, or none that is finite. */
bool read_real(struct json v, double *out);

/* The text of a string as a C string in the arena: what such a string cannot hold becomes U+FFFD. *n may be NULL. */
const char *read_text(struct reader *r, struct json string, size_t *n);

/* Leaves the sentence for the field that is being read; for one of its members, read_fail_at. Returns false. */
bool read_fail(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool read_fail_at(struct reader *r, const char *member, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* As read_fail_at(r, "type", ...), of a part of a content that is no text. */
bool read_wrong_kind(struct reader *r, const char *kind);

#endif
