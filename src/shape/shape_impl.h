/* What the files of this room share. Functions that take `from` and return a state put something between the two;
 * errors are sticky in the rules (grammar/rules.h). */
#ifndef PF_SHAPE_IMPL_H
#define PF_SHAPE_IMPL_H

#include "reply/families.h"
#include "reply/tools.h"
#include "shape/shape.h"

/* Texts of a form stand as they are written, but for these bytes. */
enum {
    PF_HOLE_NAME      = 1,           /* the tool's, or the parameter's */
    PF_HOLE_ARGUMENTS = 2,           /* the tool's, or the parameter's value */
    PF_HOLE_IS_TEXT   = 3,           /* true or false: whether the value is a string */
    PF_HOLE_COUNT     = 4,           /* a number of a few digits */
    PF_HOLE_ID        = 5,           /* ten small letters and digits */
    PF_HOLE_OWN       = 6            /* the tool's arguments in the family's own notation */
};

/* How a family writes calls. */
struct pf_form {
    const char *family;
    const char *needs;               /* NULL, or a token without which the vocabulary is of another form */
    const char *begin, *call, *between, *end;        /* between NULL: a reply holds one call */
    const char *param;               /* between tags: a parameter; NULL: arguments are one object */
    const char *value_end;           /* what ends a parameter's value, a part of param; no white space around it */
};

struct pf_shape {
    struct pf_rules *r;
    const pf_vocab  *v;
    const struct pf_reply_shape *o;
    const struct pf_family *family;
    const struct pf_form   *form;
    struct pf_tools tools;
};

/* The row of a family; the last one of the table where it has none. */
const struct pf_form *pf_form_of(const struct pf_family *f, const pf_vocab *v);

/* Bytes of the token that text begins with and that is none of ordinary text; 0: there is none. */
size_t  pf_shape_mark(const pf_vocab *v, const char *text, size_t n);
int32_t pf_shape_text(struct pf_shape *s, int32_t from, const char *text, size_t n);
/* Any text up to `close`, whose first occurrence ends it. */
int32_t pf_shape_until(struct pf_shape *s, int32_t from, const char *close);
/* A text in which white space, where a line ends, may be more or none: models write it in their own way. */
int32_t pf_shape_loose(struct pf_shape *s, int32_t from, const char *text, size_t n);
/* White space, if any; of a line's end, if that. */
int32_t pf_shape_space(struct pf_shape *s, int32_t from);
int32_t pf_shape_newline(struct pf_shape *s, int32_t from);
/* Arguments, as JSON or in the family's own notation, any object where the schema is one that cannot be kept to; the
 * value of a schema, or of its property, any where that is. */
pf_status pf_shape_object(struct pf_shape *s, struct pf_span schema, bool own, int32_t *from);
pf_status pf_shape_value(struct pf_shape *s, struct pf_span schema, int32_t *from);
pf_status pf_shape_property(struct pf_shape *s, struct pf_span schema, struct pf_span name, int32_t *from);
/* Arguments between tags. */
pf_status pf_shape_params(struct pf_shape *s, struct pf_span schema, int32_t *from);
/* Whether tags can say all that the schema asks for: it names the properties, and there are no others. */
bool      pf_shape_params_suit(struct pf_shape *s, struct pf_span schema);

#endif
