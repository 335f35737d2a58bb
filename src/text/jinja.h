/* The inside of the template interpreter: what its files share. The public face is chat_tmpl.h.
 *
 *     text --jinja_lex.c--> tokens --jinja_parse.c--> pf_tmpl (a tree of pf_jnode) --jinja_eval.c--> bytes
 *                                                                |
 *          jinja_ops.c  operators      jinja_value.c  memory, lists, dicts, printing
 *          jinja_builtins.c  filters, tests, functions      jinja_methods.c  methods      jinja_json.c  JSON
 *
 * Ownership: a pf_tmpl's tree lives in its arena and is never written after parsing. A render (pf_jrun) has an arena of
 * its own; every value it makes lives there, in the template or in the context's text, and dies with the render. Values
 * are copied freely; strings are never written once made.
 * Threads: a pf_tmpl may be rendered by many at once, a pf_jrun belongs to one.
 *
 * Bounds, so that no template can hang or exhaust the program: every evaluated node and every element or few bytes
 * looked at is a step; every recursion is counted; arena and output have limits. */
#ifndef PF_JINJA_H
#define PF_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/pf_cancel.h"
#include "base/pf_hash.h"
#include "text/utf8.h"

enum {
    PF_JMAX_TEMPLATE = 256 << 10,   /* bytes of template text */
    PF_JMAX_OUTPUT   = 64 << 20,    /* bytes of result, and of any string under construction */
    PF_JMAX_ARENA    = 256 << 20,   /* bytes of values in one render */
    PF_JMAX_STEPS    = 10000000,
    PF_JMAX_NEST     = 200,         /* nesting of source, of macro calls, of printed values and of JSON */
    PF_JMAX_OPEN     = 2000,        /* tree nodes being evaluated at once: bounds the C stack */
    PF_JMAX_RANGE    = 100000,      /* elements of range() */
    PF_JMAX_ARGS     = 16           /* arguments of a call */
};

/* ---- Memory: blocks of growing size, freed together ---- */

struct pf_jchunk;
struct pf_jarena {
    struct pf_jchunk *chunks;
    char  *at, *end;                /* free part of the newest chunk */
    size_t bytes, limit;
    bool   over;                    /* the limit, not the heap, refused an allocation */
};
void *pf_jarena_alloc(struct pf_jarena *a, size_t bytes);        /* zeroed, aligned for any value; NULL: none left */
char *pf_jarena_text(struct pf_jarena *a, size_t bytes);         /* not aligned */
void  pf_jarena_free(struct pf_jarena *a);
pf_status pf_jarena_fail(const struct pf_jarena *a, int line);   /* the error after a NULL */

/* PF_ETEMPLATE, "template line N: ..."; line 0 stands for the context. */
pf_status pf_jfail_at(int line, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- Values ---- */

enum pf_jkind {
    PF_JV_MISSING,                  /* an argument that was not given; never seen by a template */
    PF_JV_UNDEF,                    /* s: the name that was looked for */
    PF_JV_NONE, PF_JV_BOOL, PF_JV_INT, PF_JV_FLOAT,
    PF_JV_BIG,                      /* an integer beyond 64 bits, kept as its digits in s; counts as a float */
    PF_JV_STR,
    PF_JV_LIST, PF_JV_TUPLE, PF_JV_DICT,
    PF_JV_NAMESPACE,                /* a dict that `set` may write to */
    PF_JV_MACRO, PF_JV_FUNC, PF_JV_BOUND, PF_JV_LOOP
};

struct pf_jstr {
    const char *p;
    size_t n;
};
struct pf_jval {
    enum pf_jkind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct pf_jstr s;
        struct pf_jlist *list;
        struct pf_jdict *dict;
        struct pf_jmacro *macro;
        const struct pf_jfn *fn;
        struct pf_jbound *bound;
        struct pf_jloop *loop;
    };
};
struct pf_jlist {
    struct pf_jval *v;
    size_t n, cap;
};
struct pf_jentry {
    struct pf_jval key, val;
    uint32_t hash;
};
/* Entries in insertion order; past a few of them an open-addressing table of entry numbers + 1. */
struct pf_jdict {
    struct pf_jentry *v;
    size_t n, cap;
    uint32_t *index;
    size_t n_index;                 /* a power of two, or 0 */
};
struct pf_jframe {                  /* the variables of a loop body or macro; the outermost are pf_jrun.root */
    struct pf_jframe *up;           /* NULL: the root is next */
    struct pf_jslot {
        int name;
        struct pf_jval v;
    } *v;
    size_t n, cap;
};
struct pf_jmacro {
    const struct pf_jnode *def;
    struct pf_jframe *frame;        /* where it was defined: what its body sees */
};
struct pf_jbound {                  /* a method and the value it belongs to */
    const struct pf_jfn *fn;
    struct pf_jval self;
};
struct pf_jloop {
    const struct pf_jlist *items;
    size_t at;
};

static inline struct pf_jval pf_jnone(void)
{
    return (struct pf_jval){ .kind = PF_JV_NONE };
}
static inline struct pf_jval pf_jbool(bool b)
{
    return (struct pf_jval){ .kind = PF_JV_BOOL, .b = b };
}
static inline struct pf_jval pf_jint(int64_t i)
{
    return (struct pf_jval){ .kind = PF_JV_INT, .i = i };
}
static inline struct pf_jval pf_jfloat(double f)
{
    return (struct pf_jval){ .kind = PF_JV_FLOAT, .f = f };
}
static inline struct pf_jval pf_jstring(const char *p, size_t n)
{
    return (struct pf_jval){ .kind = PF_JV_STR, .s = { p, n } };
}
static inline struct pf_jval pf_jlistval(struct pf_jlist *l)
{
    return (struct pf_jval){ .kind = PF_JV_LIST, .list = l };
}
static inline struct pf_jval pf_jundef(struct pf_jstr name)
{
    return (struct pf_jval){ .kind = PF_JV_UNDEF, .s = name };
}
static inline bool pf_jis_list(const struct pf_jval *v)
{
    return v->kind == PF_JV_LIST || v->kind == PF_JV_TUPLE;
}
static inline bool pf_jis_num(const struct pf_jval *v)
{
    return v->kind == PF_JV_BOOL || v->kind == PF_JV_INT || v->kind == PF_JV_FLOAT || v->kind == PF_JV_BIG;
}
static inline bool pf_jis_int(const struct pf_jval *v)
{
    return v->kind == PF_JV_INT || v->kind == PF_JV_BOOL;
}
static inline int64_t pf_jint_of(const struct pf_jval *v)
{
    return v->kind == PF_JV_BOOL ? v->b : v->i;
}
static inline bool pf_jstr_is(struct pf_jstr s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

/* ---- Functions: filters, tests, methods and globals are rows of tables ---- */

struct pf_jargs {
    struct pf_jval *v;              /* v[0] is a filter's or test's input, or a method's value */
    size_t n;
    struct pf_jarg_kw {
        struct pf_jstr name;
        struct pf_jval v;
    } *kw;
    size_t n_kw;
};
struct pf_jrun;
struct pf_jfn {
    const char *name;
    const char *params;             /* names separated by spaces: v[i] is set for each, or MISSING. NULL: as called */
    size_t n_min;                   /* how many parameters must be given */
    pf_status (*call)(struct pf_jrun *r, const struct pf_jargs *a, struct pf_jval *out);
};
enum pf_jtable { PF_JT_FILTER, PF_JT_TEST, PF_JT_GLOBAL, PF_JT_STR, PF_JT_DICT, PF_JT_LIST, PF_JT_LOOP, PF_JT_N };
const struct pf_jfn *pf_jfn_find(enum pf_jtable table, struct pf_jstr name);      /* NULL: no such row */
extern const struct pf_jfn pf_jfilters[], pf_jtests[], pf_jglobals[];       /* they end with a NULL name */
extern const struct pf_jfn pf_jstr_methods[], pf_jdict_methods[], pf_jlist_methods[], pf_jloop_methods[];

/* ---- The tree ---- */

enum pf_jnode_kind {
    /* expressions */
    PF_JN_CONST,        /* val */
    PF_JN_NAME,         /* name */
    PF_JN_LIST,         /* a: elements, a chain */
    PF_JN_TUPLE,        /* a: elements */
    PF_JN_DICT,         /* a: key, value, key, value, ... */
    PF_JN_ATTR,         /* a.name */
    PF_JN_INDEX,        /* a[b] */
    PF_JN_SLICE,        /* a[b:c:d], each of b, c, d may be NULL */
    PF_JN_CALL,         /* a(b ...): b is a chain of values and KWARGs */
    PF_JN_FILTER,       /* a|name(b ...) */
    PF_JN_TEST,         /* a is name(b ...) */
    PF_JN_KWARG,        /* name=a, in a chain of arguments or of a macro's parameters (a NULL: no default) */
    PF_JN_NOT, PF_JN_NEG, PF_JN_POS,    /* a */
    PF_JN_AND, PF_JN_OR,                /* a, b */
    PF_JN_BINARY,       /* a op b */
    PF_JN_COMPARE,      /* a op b op c ...: b is a chain of COMPARE nodes with op and a */
    PF_JN_COND,         /* b if a else c; c may be NULL */
    PF_JN_CAPTURE,      /* the output of the statements b, as a string */
    /* statements */
    PF_JN_TEXT,         /* val */
    PF_JN_PRINT,        /* a */
    PF_JN_IF,           /* if a: b; c: else, or (flag) one IF, an elif */
    PF_JN_FOR,          /* for a in b if c: d; else: e; name: "loop" */
    PF_JN_SET,          /* a = b; a: NAME, ATTR of a NAME, or TUPLE of NAMEs */
    PF_JN_MACRO,        /* name, a: parameters (KWARG), b: body */
    PF_JN_BREAK, PF_JN_CONTINUE,
    PF_JN_BLOCK         /* b: statements */
};
#define PF_JOP(c, d) ((unsigned)(c) | (unsigned)(d) << 8)   /* an operator is its one or two characters */
#define PF_JOP_NOT_IN PF_JOP('!', 'i')
#define PF_JOP_IN PF_JOP('i', 'n')

struct pf_jnode {
    enum pf_jnode_kind kind;
    unsigned op;
    bool flag;
    int line, name;
    struct pf_jnode *next, *a, *b, *c, *d, *e;
    struct pf_jval val;
    const struct pf_jfn *fn;        /* FILTER, TEST: NULL when there is none of that name, an error when it runs */
};
struct pf_jname {                   /* a name in the template, with its hash and functions found at parsing */
    struct pf_jstr s;
    uint32_t hash;                  /* the hash of s as a dict key */
    const struct pf_jfn *fn[PF_JT_N];
};
struct pf_tmpl {
    struct pf_hash_key hash_key;    /* of names and of the dicts of all renders */
    struct pf_jarena arena;
    struct pf_jnode *body;
    struct pf_jname *names;
    size_t n_names;
};

/* ---- Lexer ---- */

enum pf_jtok_kind {
    PF_JTOK_TEXT, PF_JTOK_VAR, PF_JTOK_VAR_END, PF_JTOK_BLOCK, PF_JTOK_BLOCK_END,
    PF_JTOK_NAME, PF_JTOK_STR, PF_JTOK_INT, PF_JTOK_FLOAT, PF_JTOK_OP, PF_JTOK_END
};
struct pf_jtok {
    enum pf_jtok_kind kind;
    unsigned op;
    int line;
    struct pf_jstr s;               /* STR: between the quotes, escapes as written */
};
/* text must have LF line ends. The tokens live in `arena` and point into text; the last is END. */
pf_status pf_jlex(struct pf_jarena *arena, const char *text, size_t len, struct pf_jtok **out);

pf_status pf_jparse(struct pf_tmpl *t, const char *text, size_t len);

/* ---- A render ---- */

struct pf_jrun {
    const struct pf_tmpl *t;
    struct pf_jarena arena;
    struct pf_jval *root;           /* top-level variables, by name number; MISSING where unset */
    struct pf_jframe *frame;        /* NULL at top level */
    char  *out;                     /* the result; strings under construction live at its end */
    size_t n_out, out_cap;
    size_t max_printed;             /* of n_out, while no string is under construction */
    uint64_t steps, ask_at;         /* asked whether to go on when steps come there */
    const struct pf_cancel *cancel;
    int    n_open, n_macros, line;
    int    n_captures;              /* macros and blocks whose output becomes a string */
    enum { PF_JFLOW_NONE, PF_JFLOW_BREAK, PF_JFLOW_CONTINUE } flow;
    int64_t now;                    /* see pf_tmpl_render */
};
pf_status pf_jrun_body(struct pf_jrun *r);
pf_status pf_jcall_fn(struct pf_jrun *r, const struct pf_jfn *fn, const struct pf_jargs *a, struct pf_jval *out);

pf_status pf_jfail(const struct pf_jrun *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
pf_status pf_jsteps(struct pf_jrun *r, uint64_t n);               /* PF_ETEMPLATE when there were too many */

/* Building a string: remember r->n_out, put, take. */
pf_status pf_jput(struct pf_jrun *r, const char *p, size_t n);
pf_status pf_jputs(struct pf_jrun *r, const char *s);
pf_status pf_jtake(struct pf_jrun *r, size_t mark, struct pf_jval *out);

pf_status pf_jalloc(struct pf_jrun *r, size_t bytes, void **out); /* zeroed */
pf_status pf_jlist_new(struct pf_jrun *r, size_t cap, struct pf_jlist **out);
pf_status pf_jlist_push(struct pf_jrun *r, struct pf_jlist *l, struct pf_jval v);
pf_status pf_jdict_new(struct pf_jrun *r, struct pf_jdict **out);
pf_status pf_jdict_set(struct pf_jrun *r, struct pf_jdict *d, struct pf_jval key, struct pf_jval val);
pf_status pf_jdict_find(struct pf_jrun *r, const struct pf_jdict *d, const struct pf_jval *key, struct pf_jval **out);
struct pf_jval *pf_jdict_str(const struct pf_jdict *d, struct pf_jstr key, uint32_t hash);   /* NULL: not there */
uint32_t pf_jhash_str(const struct pf_tmpl *t, struct pf_jstr s);

/* The values that `for` iterates: a list's or tuple's elements, a dict's keys, a string's characters. */
pf_status pf_jiter(struct pf_jrun *r, const struct pf_jval *v, struct pf_jlist **out);
pf_status pf_jpair(struct pf_jrun *r, struct pf_jval a, struct pf_jval b, struct pf_jval *out);

bool        pf_jtruth(const struct pf_jval *v);
const char *pf_jtype(const struct pf_jval *v);                    /* name of the type, for messages */
/* An argument that must be an integer; absent stands for one that was not given. */
pf_status   pf_jwant_int(const struct pf_jrun *r, const struct pf_jval *v, const char *what, int64_t absent,
                         int64_t *out);
double      pf_jdouble(const struct pf_jval *v);                  /* v must be a number */
pf_status   pf_jequal(struct pf_jrun *r, const struct pf_jval *a, const struct pf_jval *b, bool *eq);
pf_status   pf_jorder(struct pf_jrun *r, const struct pf_jval *a, const struct pf_jval *b, int *cmp);
pf_status   pf_jprint(struct pf_jrun *r, const struct pf_jval *v);                 /* str(v) to the output */
pf_status   pf_jrepr(struct pf_jrun *r, const struct pf_jval *v, int depth);       /* repr(v) */
pf_status   pf_jtext(struct pf_jrun *r, const struct pf_jval *v, struct pf_jval *out);   /* str(v) as a value */

/* Numbers as text, whatever the process's locale. */
enum { PF_JFLOAT_BYTES = 32 };
size_t pf_jfloat_text(double f, char buf[PF_JFLOAT_BYTES]);       /* Python's repr */
/* A decimal number of the form 1, 1.5, 1e3, with an optional sign; all of s or false. */
bool   pf_jnum_parse(struct pf_jstr s, struct pf_jval *out);

/* Characters are those of text/utf8.h. */
static inline size_t pf_ju8_len(const char *p, const char *end)                   /* bytes of the one at p < end */
{
    uint32_t c;
    return pf_utf8_next(p, (size_t)(end - p), &c);
}
static inline uint32_t pf_ju8_decode(const char *p, size_t n)                     /* the one at p, n > 0 bytes left */
{
    uint32_t c;
    pf_utf8_next(p, n, &c);
    return c;
}
size_t pf_ju8_count(struct pf_jstr s);
bool pf_jspace(uint32_t c);                                       /* a character that str.strip() removes */
enum { PF_JSTRIP_LEFT = 1, PF_JSTRIP_RIGHT = 2 };
struct pf_jstr pf_jstrip(struct pf_jstr s, const struct pf_jstr *chars, int sides);   /* chars NULL: white space */
pf_status pf_jcase(struct pf_jrun *r, struct pf_jstr s, bool upper, struct pf_jval *out);

/* ---- Operators ---- */

pf_status pf_jbinary(struct pf_jrun *r, unsigned op, const struct pf_jval *a, const struct pf_jval *b,
                     struct pf_jval *out);
pf_status pf_jcompare(struct pf_jrun *r, unsigned op, const struct pf_jval *a, const struct pf_jval *b, bool *out);
pf_status pf_jconcat(struct pf_jrun *r, struct pf_jstr a, struct pf_jstr b, struct pf_jval *out);
pf_status pf_jindex(struct pf_jrun *r, const struct pf_jval *v, const struct pf_jval *at, struct pf_jval *out);
pf_status pf_jslice(struct pf_jrun *r, const struct pf_jval *v, const struct pf_jval part[3], struct pf_jval *out);
/* An attribute that is a plain name: the key of a dict, a field of a loop; methods are the caller's business. */
pf_status pf_jattr(struct pf_jrun *r, const struct pf_jval *v, struct pf_jstr name, uint32_t hash, struct pf_jval *out);
/* 'a.b.0': the path that attribute= arguments of filters take. */
pf_status pf_jattr_path(struct pf_jrun *r, const struct pf_jval *v, const struct pf_jval *path, struct pf_jval *out);

/* ---- JSON ---- */

/* Strings may point into p. */
pf_status pf_jjson_read(struct pf_jrun *r, const char *p, size_t n, struct pf_jval *out);

struct pf_jjson_style {
    bool ascii, sort_keys, indented;
    int64_t indent;
    struct pf_jstr comma, colon;
};
pf_status pf_jjson_write(struct pf_jrun *r, const struct pf_jval *v, const struct pf_jjson_style *s, int depth);

#endif
