/* The machine that takes a reply apart, between its files: reply.c has text and markers, call.c and its
 * neighbours what follows a marker of calls.
 *
 *     in:   | told already | kept: may yet turn out to be text | read | not looked at |
 *                          from                                at                     n
 *
 * A call's beginning is tried: `at` runs ahead while `from` stays at its marker. When the name is certain the call is
 * committed: it is told, and from follows at. When it was no call, the marker is text, and what follows it is looked at
 * anew, as text. What the reply ends in is dropped instead where a call was due: if calls are forced, and among calls.
 * Each state looks at a bounded number of bytes behind `at`, so pieces do not matter, and time is linear but for what
 * is tried and given up, which is bounded (TRIED_BYTES in all). */
#ifndef PF_REPLY_IMPL_H
#define PF_REPLY_IMPL_H

#include "base/pf_status.h"
#include "reply/families.h"
#include "reply/literal.h"
#include "reply/tools.h"

enum pf_reply_state {
    PF_AT_TEXT,              /* content, reasoning, or nobody's */
    PF_AT_BEGIN,             /* harmony: in front of everything */
    PF_AT_HEADER,            /* of a message */
    PF_AT_ITEM,              /* in front of a call */
    PF_AT_FIELD,             /* in its type, id or name */
    PF_AT_OBJECT,            /* in {"name": .., "arguments": ..}: `place` says where */
    PF_AT_OPENING,           /* in front of arguments that are an object */
    PF_AT_LITERAL,           /* in them */
    PF_AT_TAGS,              /* in front of a parameter's tag */
    PF_AT_KEY, PF_AT_VALUE_OPEN, PF_AT_TEXT_VALUE, PF_AT_TYPED_VALUE,
    PF_AT_FAULT,             /* behind arguments that made no sense: up to the call's end */
    PF_AT_BEHIND             /* behind a call */
};
enum pf_reply_place {
    PF_IN_KEYS, PF_IN_KEY, PF_IN_COLON, PF_IN_VALUE, PF_IN_OTHER, PF_IN_NAME, PF_IN_ID, PF_IN_STRING, PF_IN_ARGUMENTS,
    PF_IN_NEXT
};
enum pf_match { PF_NO, PF_PARTLY, PF_YES };
enum { PF_REPLY_KEPT = 1 << 20 };             /* bytes kept while a name, or a value's type, is not certain */
enum { PF_NOWHERE = 2 };     /* a channel besides CONTENT and REASONING: what nobody is told */

struct pf_channel {
    struct pf_run space;     /* white space that waits for text behind it */
    bool          any, gap;  /* it has text; something else came since */
};

struct pf_reply {
    const struct pf_family *f;
    struct pf_tools tools;
    bool            with_tools, forced;
    pf_reply_fn    *fn;              /* of the feed that runs */
    void           *ctx;
    pf_status       status;          /* sticky */

    struct pf_run   in;
    size_t          from, at;
    bool            ended;
    char            partial[4];      /* the beginning of a character */
    int             n_partial;

    enum pf_reply_state state;
    int               channel;       /* PF_REPLY_CONTENT, PF_REPLY_REASONING, PF_NOWHERE */
    struct pf_channel channels[2];
    size_t            tried;         /* bytes looked at for nothing */
    struct pf_run     header;        /* harmony */
    size_t            role_end;      /* in header: end of the part in front of its channel */

    /* The call that is tried or read. */
    size_t          marker;          /* bytes of its marker, text if it is none */
    bool            only_offered, bare, in_list, committed, has_arguments, has_name;
    int             n_calls;
    bool            among_calls;     /* no text has come since the last one */
    enum pf_field   field;
    struct pf_run   word;            /* the field, key or value that is read */
    struct pf_run   key;             /* comma, key and colon in front of that value, as JSON */
    char            name[PF_REPLY_MAX_NAME], id[PF_REPLY_MAX_NAME];
    size_t          n_name, n_id;
    struct pf_span  schema;          /* of its parameters */
    struct pf_span  own;             /* of the parameter that is read */
    struct pf_run   out;             /* JSON of its arguments that was not told */
    struct pf_literal literal;
    enum pf_reply_place place;
    size_t          inside;          /* bytes of JSON arguments that were read, and space in front */
    uint64_t        dropped;         /* bytes that were in front of `in` */
    uint64_t        begun_at;        /* where arguments between tags began, counted from the reply's first byte */
    unsigned        types;           /* of the parameter that is read */
    int             n_open;          /* tags open in its value, where values nest */
};

/* Whether text stands at `at`; *len: its length there. PF_PARTLY: the bytes end first. */
enum pf_match pf_reply_match(const struct pf_reply *r, size_t at, const char *text, size_t *len);
void pf_reply_tell(struct pf_reply *r, enum pf_reply_kind kind, const char *text, size_t n);

/* ---- call.c ------------------------------------------------------------------------------------------------------ */

/* One step in the other states. False: more bytes are needed. */
bool pf_call_step(struct pf_reply *r);
/* A call comes behind a marker of n bytes at `from`; state: PF_AT_ITEM or PF_AT_FIELD. */
void pf_call_try(struct pf_reply *r, size_t n, enum pf_reply_state state, bool only_offered);
/* Takes over a name or id of n bytes; false: it cannot be one. */
bool pf_call_take(const char *s, size_t n, char *to, size_t *n_to);
/* The call named in r->name begins; false: no such tool, and only those offered count. */
bool pf_call_commit(struct pf_reply *r);
/* Arguments come, of the family's kind. */
void pf_call_arguments(struct pf_reply *r, enum pf_arguments kind);
/* Tells what of the arguments is written. */
void pf_call_tell(struct pf_reply *r);
/* No more bytes come, and none helped. False: nothing changed. */
bool pf_call_cut(struct pf_reply *r);

/* Three ways out; all return true. It was no call, its marker is text; the call is whole; what follows makes no sense,
 * so that its arguments end here. */
bool pf_call_give_up(struct pf_reply *r);
bool pf_call_end(struct pf_reply *r, enum pf_reply_state next);
bool pf_call_fault(struct pf_reply *r);

/* Whether one of n texts stands at `at`, *len bytes long: the first that does, or may yet. */
enum pf_match pf_call_match(const struct pf_reply *r, const char *const *texts, int n, size_t *len);
enum pf_match pf_call_match_end(const struct pf_reply *r, size_t *len);          /* the family's ends */
/* Whether what begins a call stands at `at`. */
enum pf_match pf_call_match_next(const struct pf_reply *r);
/* r->word, or what stands between quotes in it where the family has them. */
struct pf_span pf_call_between_quotes(const struct pf_reply *r);

/* ---- call_json.c, call_tags.c: steps in their states ------------------------------------------------------------- */

bool pf_call_step_opening(struct pf_reply *r);
bool pf_call_step_literal(struct pf_reply *r);
bool pf_call_step_object(struct pf_reply *r);
/* Whether the member whose key was read holds a call's arguments. */
bool pf_call_wants_arguments(const struct pf_reply *r);

bool pf_call_step_tags(struct pf_reply *r);
bool pf_call_step_key(struct pf_reply *r);
bool pf_call_step_value_open(struct pf_reply *r);
bool pf_call_step_value(struct pf_reply *r);
/* n bytes of a value behind r->out: as JSON if all of them read as one of the types, else as a text. */
void pf_call_write_value(struct pf_reply *r, const char *s, size_t n, unsigned types);

/* call_nested.c: r->word, the value of the parameter whose schema is `own` (p NULL: none), as JSON behind r->out. */
void pf_call_write_nested(struct pf_reply *r, struct pf_span own);

/* ---- Bytes not looked at ----------------------------------------------------------------------------------------- */

static inline bool pf_reply_is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static inline size_t pf_reply_left(const struct pf_reply *r)
{
    return r->in.n - r->at;
}

static inline const char *pf_reply_here(const struct pf_reply *r)
{
    return r->in.p + r->at;
}

/* Leaves n bytes behind; what belongs to a committed call is not wanted any more. */
static inline void pf_reply_pass(struct pf_reply *r, size_t n)
{
    r->at += n;
    if (r->committed || r->state == PF_AT_BEHIND)
        r->from = r->at;
}

static inline bool pf_reply_skip_space(struct pf_reply *r)
{
    size_t n = 0;
    while (n < pf_reply_left(r) && pf_reply_is_space(pf_reply_here(r)[n]))
        n++;
    pf_reply_pass(r, n);
    return pf_reply_left(r) > 0;
}

#endif
