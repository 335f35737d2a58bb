/* For the tests: reading test vectors, files with one JSON object a line. Anything wrong with them ends the test. */
#ifndef PF_TEST_JSONL_H
#define PF_TEST_JSONL_H

#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#define DIE(...) (printf(__VA_ARGS__), printf("\n"), exit(1))

struct jsonl {
    FILE *f;
    char *line;
    size_t cap;
};

static inline struct jsonl jsonl_open(const char *path)
{
    struct jsonl j = { .f = fopen(path, "re") };
    if (!j.f)
        DIE("cannot open %s", path);
    return j;
}

/* cJSON ends a string at its first NUL. So the reader writes U+10FFFE for \u0000, and this turns it back, in place. */
struct bytes {
    char *p;
    size_t n;
};
static inline struct bytes bytes_of(const cJSON *s)
{
    if (!cJSON_IsString(s))
        DIE("a string is missing");
    struct bytes b = { s->valuestring, strlen(s->valuestring) };
    char *to = b.p;
    for (const char *from = b.p; from < b.p + b.n;) {
        bool is_nul = strncmp(from, "\xF4\x8F\xBF\xBE", 4) == 0;
        *to++ = is_nul ? 0 : *from;
        from += is_nul ? 4 : 1;
    }
    b.n = (size_t)(to - b.p);
    return b;
}

static inline void mark_nuls(struct jsonl *j)
{
    static const char nul[] = "\\u0000", mark[] = "\\uDBFF\\uDFFE";
    struct jsonl out = { .cap = 2 * strlen(j->line) + 1, .f = j->f };
    char *to = out.line = malloc(out.cap);
    for (const char *p = j->line; *p;) {
        if (p[0] == '\\' && p[1] == '\\') {
            *to++ = *p++;
            *to++ = *p++;
        } else if (strncmp(p, nul, 6) == 0) {
            to = stpcpy(to, mark);
            p += 6;
        } else {
            *to++ = *p++;
        }
    }
    *to = 0;
    free(j->line);
    *j = out;
}

/* The next object, to be freed with cJSON_Delete; NULL at the end. */
static inline cJSON *jsonl_next(struct jsonl *j)
{
    if (getline(&j->line, &j->cap, j->f) < 0)
        return NULL;
    mark_nuls(j);
    cJSON *o = cJSON_Parse(j->line);
    if (!o)
        DIE("not JSON: %.100s", j->line);
    return o;
}

static inline void jsonl_close(struct jsonl *j)
{
    fclose(j->f);
    free(j->line);
}

/* The file's name without folder and suffix. */
static inline void stem_of(char *out, size_t cap, const char *path, const char *suffix)
{
    const char *slash = strrchr(path, '/');
    snprintf(out, cap, "%s", slash ? slash + 1 : path);
    char *end = out + strlen(out) - strlen(suffix);
    if (end > out && strcmp(end, suffix) == 0)
        *end = 0;
}

#endif
