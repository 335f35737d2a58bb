/* See grammars.h. A list from the latest used to the oldest, found by the text of what was asked for. Two workers that
 * ask for the same at once compile it twice, and one of the two is kept. */
#include "serve/grammars.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/io/buf.h"

/* In the list: grammars, bytes of their texts, and of what they are compiled to, which may be many times the text. */
enum { MOST = 512, MOST_TEXT_BYTES = 16 << 20, MOST_COMPILED_BYTES = 256 << 20 };

struct grammar_ref {
    struct buf  key;
    pf_status   status;
    char        why[400];                        /* status < 0 */
    pf_grammar *grammar;
    int         holders;                         /* the list among them */
    struct grammar_ref *next;
};

static struct {
    pthread_mutex_t lock;                        /* of all fields, and of holders and next of what is listed */
    struct grammar_ref *first;
} all = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* With the lock. */
static void drop(struct grammar_ref *g)
{
    if (--g->holders > 0)
        return;
    pf_grammar_close(&g->grammar);
    buf_free(&g->key);
    free(g);
}

/* With the lock: what there is of this key, held, the list's first from now on; NULL: nothing. */
static struct grammar_ref *find(const struct buf *key)
{
    for (struct grammar_ref **at = &all.first; *at; at = &(*at)->next) {
        struct grammar_ref *g = *at;
        if (g->key.n != key->n || memcmp(g->key.p, key->p, key->n) != 0)
            continue;
        *at = g->next;
        g->next = all.first;
        all.first = g;
        g->holders++;
        return g;
    }
    return NULL;
}

/* With the lock: forgets what is past the bounds, but never the first. */
static void trim(void)
{
    size_t n = 0, text_bytes = 0, compiled_bytes = 0;
    struct grammar_ref **at = &all.first;
    for (; *at; at = &(*at)->next) {
        n++;
        text_bytes += (*at)->key.n;
        compiled_bytes += (*at)->grammar ? pf_grammar_bytes((*at)->grammar) : 0;
        if (n > 1 && (n > MOST || text_bytes > MOST_TEXT_BYTES || compiled_bytes > MOST_COMPILED_BYTES))
            break;
    }
    while (*at) {
        struct grammar_ref *g = *at;
        *at = g->next;
        drop(g);
    }
}

/* What is kept of this key, or what compile makes of it. */
struct ask {
    const pf_model *m;
    pf_status (*compile)(pf_grammar **out, const struct ask *a);
    const char *text;
    size_t n;
    const struct pf_reply_shape *shape;
};

static struct grammar_ref *get(const struct ask *a, struct buf *key)
{
    pthread_mutex_lock(&all.lock);
    struct grammar_ref *g = find(key);
    pthread_mutex_unlock(&all.lock);
    if (g) {
        buf_free(key);
        return g;
    }
    g = xrealloc(NULL, 1, sizeof *g);
    *g = (struct grammar_ref){ .key = *key, .holders = 1 };
    g->status = a->compile(&g->grammar, a);
    snprintf(g->why, sizeof g->why, "%s", g->status < 0 ? pf_last_error() : "");
    if (g->status == PF_ENOMEM)
        return g;                                /* the next one may find memory */
    pthread_mutex_lock(&all.lock);
    struct grammar_ref *twin = find(&g->key);
    if (twin) {
        drop(g);
        g = twin;
    } else {
        g->holders++;
        g->next = all.first;
        all.first = g;
        trim();
    }
    pthread_mutex_unlock(&all.lock);
    return g;
}

static pf_status compile_schema(pf_grammar **out, const struct ask *a)
{
    return pf_grammar_json_schema(out, a->m, a->text, a->n);
}

static pf_status compile_gbnf(pf_grammar **out, const struct ask *a)
{
    return pf_grammar_gbnf(out, a->m, a->text, a->n);
}

static pf_status compile_reply(pf_grammar **out, const struct ask *a)
{
    return pf_grammar_reply(out, a->m, a->shape);
}

struct grammar_ref *grammars_schema(const pf_model *m, const char *text, size_t n)
{
    struct buf key = { 0 };
    buf_puts(&key, "S");
    buf_add(&key, text, n);
    return get(&(struct ask){ .m = m, .compile = compile_schema, .text = text, .n = n }, &key);
}

struct grammar_ref *grammars_gbnf(const pf_model *m, const char *text, size_t n)
{
    struct buf key = { 0 };
    buf_puts(&key, "G");
    buf_add(&key, text, n);
    return get(&(struct ask){ .m = m, .compile = compile_gbnf, .text = text, .n = n }, &key);
}

struct grammar_ref *grammars_reply(const pf_model *m, const struct pf_reply_shape *o)
{
    struct buf key = { 0 };
    buf_printf(&key, "R %s %u %d %zu %d %zu %s\n", o->family, o->flags, o->schema != NULL, o->schema_len,
               o->tools_json != NULL, o->tools_len, o->tool ? o->tool : "");
    if (o->schema)
        buf_add(&key, o->schema, o->schema_len);
    if (o->tools_json)
        buf_add(&key, o->tools_json, o->tools_len);
    return get(&(struct ask){ .m = m, .compile = compile_reply, .shape = o }, &key);
}

const pf_grammar *grammar_of(const struct grammar_ref *g)
{
    return g->grammar;
}

pf_status grammar_status(const struct grammar_ref *g, const char **why)
{
    *why = g->why;
    return g->status;
}

void grammar_drop(struct grammar_ref **g)
{
    if (!*g)
        return;
    pthread_mutex_lock(&all.lock);
    drop(*g);
    pthread_mutex_unlock(&all.lock);
    *g = NULL;
}

void grammars_forget(void)
{
    pthread_mutex_lock(&all.lock);
    while (all.first) {
        struct grammar_ref *g = all.first;
        all.first = g->next;
        drop(g);
    }
    pthread_mutex_unlock(&all.lock);
}
