/* Reading JSON in place, and writing strings of it.
 *
 * A value is a slice of the text that holds it. Why not a tree: a chat template must see the numbers as they are
 * written (1 is not 1.0), and texts may hold U+0000, which C strings do not. json_valid is called once on a whole
 * document; afterwards the other functions may be used on it and on what they return. */
#ifndef PF_PROGRAM_JSON_H
#define PF_PROGRAM_JSON_H

#include "program/io/buf.h"

struct json {
    const char *p;      /* NULL: no value */
    size_t      n;
};

/* Whether text is one JSON value. If not, *where is the offset of the first wrong byte. */
bool json_valid(const char *text, size_t n, size_t *where);

/* The whole document as a value, without the space around it. */
struct json json_value(const char *text, size_t n);

/* The member of an object; no value if v is not an object or has none of that name. */
struct json json_get(struct json v, const char *name);

/* Walks an array: the element after `previous`, whose p is NULL to begin with. No value at the end. */
struct json json_next(struct json array, struct json previous);

/* Walks an object: the member after the one whose value is `previous`, its name (a string's slice) in *name. */
struct json json_next_member(struct json object, struct json previous, struct json *name);

bool json_is(struct json v, char kind);                  /* '"', '{', '[', 't', 'f', 'n'; '0' for a number */
bool json_true(struct json v);
void json_string(struct json v, struct buf *out);        /* appends the bytes of a string, else nothing */
bool json_int(struct json v, int64_t *out);

/* Appends text as a JSON string. With only_ascii bytes that are not UTF-8 become \ufffd each, and so on: the result is
 * ASCII. Without, well-formed UTF-8 stays as it is but for controls (buf.h), which become \u too. */
void json_quote(struct buf *out, const char *text, size_t n, bool only_ascii);

#endif
