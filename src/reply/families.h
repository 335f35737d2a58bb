/* How each family of models writes its replies: one row a family. reply.c is the machine that these rows drive. */
#ifndef PF_REPLY_FAMILIES_H
#define PF_REPLY_FAMILIES_H

#include <stdbool.h>
#include <stddef.h>

/* What a marker in the text does. */
enum pf_mark_kind {
    PF_MARK_DROP,            /* nothing: it is left out */
    PF_MARK_THINK,           /* reasoning begins */
    PF_MARK_ANSWER,          /* reasoning ends */
    PF_MARK_BLOCK,           /* calls come */
    PF_MARK_HEAD,            /* a call comes, its name (or id) first */
    PF_MARK_HEADER           /* harmony: a message's header comes, or the message ends */
};
enum {
    PF_MARK_AT_START   = 1,  /* only where no text has come yet */
    PF_MARK_ANYWHERE   = 2,  /* ANSWER: left out in content too, not only at its start */
    PF_MARK_IN_THOUGHT = 4,  /* BLOCK, HEAD: also in reasoning, which it ends */
    PF_MARK_OFFERED    = 8   /* BLOCK, HEAD: only with the name of a tool that was offered */
};
/* Texts may hold one part between \1 and \2 that the model may leave out. */
struct pf_mark {
    const char       *text;
    enum pf_mark_kind kind;
    unsigned          flags;
};

/* What stands between a call's head and its arguments: fields, each ended by a text that says what comes next. */
enum pf_field { PF_FIELD_TYPE, PF_FIELD_NAME, PF_FIELD_ID, PF_FIELD_ARGUMENTS };
struct pf_field_end {
    enum pf_field in;
    const char   *text;
    enum pf_field next;
    bool          stays;     /* the text belongs to what comes next */
};

enum pf_arguments { PF_ARGUMENTS_JSON, PF_ARGUMENTS_TAGS, PF_ARGUMENTS_PYTHON, PF_ARGUMENTS_GEMMA };

enum {
    PF_FORM_OBJECTS  = 1,    /* calls as {"name": .., "arguments": ..}, one or a list of them */
    PF_FORM_PYTHON   = 2,    /* calls as a list [f(a=1), g()] */
    PF_FORM_NAKED    = 4,    /* in a block a name may come without a head */
    PF_FORM_BARE     = 8,    /* a reply that begins with an object or a list of calls needs no marker */
    PF_FORM_QUOTED   = 16,   /* names and keys stand in quotes, attributes behind them */
    PF_FORM_NEWLINES = 32,   /* one newline on each side of a value is not the value's */
    PF_FORM_ID_NAMES = 64,   /* the name field is an id, "functions.NAME:0" */
    PF_FORM_HARMONY  = 128,
    PF_FORM_NESTED   = 256   /* TAGS: an object in a value is its members' tags, a list is <item> tags; what ends a
                                value is the beginning of the tag that ends it */
};

struct pf_family {
    const char           *name, *aliases;    /* the aliases are separated by a space; NULL: none */
    const struct pf_mark *marks;             /* up to one without text */
    unsigned              form;
    const char           *head;              /* in a block, in front of a call's first field */
    enum pf_field         first;
    struct pf_field_end   fields[4];
    enum pf_arguments     arguments;
    const char           *fences[2];         /* JSON: may stand around the object */
    const char           *key_open, *key_end, *value_open, *value_end;           /* TAGS */
    const char           *ends[4];           /* end a call or a block of them */
};

/* NULL: i is past the last. */
const struct pf_family *pf_family_at(int i);
/* NULL: there is none of that name. */
const struct pf_family *pf_family_find(const char *name);
/* Whether n bytes are a part of one of its texts. */
bool pf_family_has(const struct pf_family *f, const char *s, size_t n);
/* By what a chat template says. */
const struct pf_family *pf_family_of_template(const char *text, size_t n);

#endif
