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

/* The schema of a property, which the schema names or allows, or of a list's elements (name NULL); p NULL: none. Both
 * look behind $ref in root, which schema is inside of. The types of a schema; 0 where it says nothing. */
struct pf_span pf_tools_property(struct pf_tools *t, struct pf_span root, struct pf_span schema, const char *name,
                                 size_t n);
unsigned       pf_tools_types_of(struct pf_tools *t, struct pf_span root, struct pf_span schema);

/* Values within the tools: the element behind `last` of a list (p NULL to begin with, and at the end); the member
 * behind *value of an object, its key with quotes (false: there is none); a member by its name; whether the schema
 * names a property, given with quotes, among those required. */
struct pf_span pf_tools_next(struct pf_tools *t, struct pf_span list, struct pf_span last);
bool           pf_tools_next_member(struct pf_tools *t, struct pf_span object, struct pf_span *key,
                                    struct pf_span *value);
struct pf_span pf_tools_get(struct pf_tools *t, struct pf_span object, const char *name);
bool           pf_tools_requires(struct pf_tools *t, struct pf_span schema, struct pf_span property);

/* What the schema, which is inside of root, refers to by $ref, if it does; else itself. p NULL: it leads nowhere. */
struct pf_span pf_tools_follow(struct pf_tools *t, struct pf_span root, struct pf_span schema);

/* The tool behind `last`; its name with quotes and the schema of its parameters, p NULL where it has none. */
struct pf_span pf_tools_next_tool(struct pf_tools *t, struct pf_span last, struct pf_span *name,
                                  struct pf_span *schema);

/* The type that a value, as a literal wrote it, has. */
unsigned pf_type_of(const char *json);

#endif
