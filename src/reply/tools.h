/* The tools of a request, as far as a reply is read by them: which names are offered, and of which types a parameter
 * may be. Immutable but for a budget of work: schemas and texts of any size and shape are looked through in bounded
 * time, after which every parameter is a string. */
#ifndef PF_REPLY_TOOLS_H
#define PF_REPLY_TOOLS_H

#include "base/pf_status.h"
#include "reply/bytes.h"

enum {
    PF_TYPE_STRING = 1, PF_TYPE_NUMBER = 2, PF_TYPE_BOOLEAN = 4, PF_TYPE_NULL = 8, PF_TYPE_OBJECT = 16,
    PF_TYPE_ARRAY = 32
};

/* A value inside of JSON that a literal wrote; p NULL: none. */
struct pf_span {
    const char *p;
    size_t      n;
};

struct pf_tools {
    struct pf_run json;
    uint64_t      budget;            /* bytes that may still be looked through */
};

/* PF_EINVAL: json is no JSON array. */
pf_status pf_tools_read(struct pf_tools *t, const char *json, size_t n);
void      pf_tools_free(struct pf_tools *t);

/* The schema of the tool's parameters; *offered: whether there is such a tool. */
struct pf_span pf_tools_find(struct pf_tools *t, const char *name, size_t n, bool *offered);

/* PF_TYPE_ bits that the schema allows for a parameter; a string where it says nothing. */
unsigned pf_tools_types(struct pf_tools *t, struct pf_span schema, const char *param, size_t n);

/* The type that a value, as a literal wrote it, has. */
unsigned pf_type_of(const char *json);

#endif
