/* Walking the tree: expressions give values, statements print. One frame of variables for each loop body and macro
 * call; `if` has none, and the outermost variables are r->root, by number. break and continue set r->flow, which every
 * body looks at after each statement. */
#include "text/jinja.h"

static pf_status eval(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out);
static pf_status exec_body(struct pf_jrun *r, const struct pf_jnode *n);

/* ---- Variables ---- */

/* Frames are searched one variable after the other; this many of them are a step. */
enum { SLOTS_A_STEP = 16 };

static pf_status look_up(struct pf_jrun *r, int name, struct pf_jval *out)
{
    size_t seen = 0;
    for (const struct pf_jframe *f = r->frame; f; seen += f->n + 1, f = f->up)
        for (size_t i = 0; i < f->n; i++)
            if (f->v[i].name == name) {
                *out = f->v[i].v;
                return pf_jsteps(r, (seen + i) / SLOTS_A_STEP);
            }
    *out = r->root[name];
    if (out->kind == PF_JV_MISSING)
        *out = pf_jundef(r->t->names[name].s);
    return pf_jsteps(r, seen / SLOTS_A_STEP);
}

static pf_status assign(struct pf_jrun *r, int name, const struct pf_jval *v)
{
    struct pf_jframe *f = r->frame;
    if (!f) {
        r->root[name] = *v;
        return PF_OK;
    }
    PF_TRY(pf_jsteps(r, f->n / SLOTS_A_STEP));
    for (size_t i = 0; i < f->n; i++)
        if (f->v[i].name == name) {
            f->v[i].v = *v;
            return PF_OK;
        }
    if (f->n == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 4;
        void *p;
        PF_TRY(pf_jalloc(r, cap * sizeof *f->v, &p));
        if (f->n)
            memcpy(p, f->v, f->n * sizeof *f->v);
        f->v = p;
        f->cap = cap;
    }
    f->v[f->n++] = (struct pf_jslot){ .name = name, .v = *v };
    return PF_OK;
}

static pf_status frame_new(struct pf_jrun *r, struct pf_jframe *up, struct pf_jframe **out)
{
    void *p;
    PF_TRY(pf_jalloc(r, sizeof **out, &p));
    *out = p;
    (*out)->up = up;
    return PF_OK;
}

static pf_status assign_namespace(struct pf_jrun *r, const struct pf_jnode *target, const struct pf_jval *v)
{
    struct pf_jval ns;
    PF_TRY(look_up(r, target->a->name, &ns));
    struct pf_jstr name = r->t->names[target->name].s;
    if (ns.kind != PF_JV_NAMESPACE)
        return pf_jfail(r, "attribute '%.*s' can only be set on a namespace, not on %s", (int)name.n, name.p,
                        pf_jtype(&ns));
    return pf_jdict_set(r, ns.dict, pf_jstring(name.p, name.n), *v);
}

static pf_status assign_target(struct pf_jrun *r, const struct pf_jnode *target, const struct pf_jval *v)
{
    struct pf_jlist *l;
    size_t i = 0;
    if (target->kind == PF_JN_NAME)
        return assign(r, target->name, v);
    if (target->kind == PF_JN_ATTR)
        return assign_namespace(r, target, v);
    PF_TRY(pf_jiter(r, v, &l));
    for (const struct pf_jnode *t = target->a; t; t = t->next, i++)
        if (i < l->n)
            PF_TRY(assign(r, t->name, &l->v[i]));
    return i == l->n ? PF_OK : pf_jfail(r, "%zu values for %zu names", l->n, i);
}

/* ---- Calls ---- */

struct call {
    struct pf_jargs a;
    struct pf_jval one;             /* the only argument of most calls */
};

/* The arguments of a call node, after first (a filter's input, a method's value) if there is one. Not on the C stack:
 * calls nest. */
static pf_status eval_args(struct pf_jrun *r, const struct pf_jnode *arg, const struct pf_jval *first, struct call *c)
{
    size_t n = 1;
    void *v = &c->one, *kw = NULL;
    for (const struct pf_jnode *k = arg; k; k = k->next)
        n++;
    if (arg) {
        PF_TRY(pf_jalloc(r, n * sizeof(struct pf_jval), &v));
        PF_TRY(pf_jalloc(r, n * sizeof(struct pf_jarg_kw), &kw));
    }
    c->a = (struct pf_jargs){ .v = v, .kw = kw };
    if (first)
        c->a.v[c->a.n++] = *first;
    for (; arg; arg = arg->next)
        if (arg->kind == PF_JN_KWARG) {
            struct pf_jarg_kw *named = &c->a.kw[c->a.n_kw++];
            named->name = r->t->names[arg->name].s;
            PF_TRY(eval(r, arg->a, &named->v));
        } else {
            PF_TRY(eval(r, arg, &c->a.v[c->a.n++]));
        }
    return PF_OK;
}

/* Which of the space-separated names in params is this; -1: none. */
static int param_number(const char *params, struct pf_jstr name)
{
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, " ");
        if (n == name.n && memcmp(params, name.p, n) == 0)
            return i;
        params += n + (params[n] == ' ');
    }
    return -1;
}

static size_t count_params(const char *params)
{
    size_t n = *params != 0;
    for (; *params; params++)
        n += *params == ' ';
    return n;
}

pf_status pf_jcall_fn(struct pf_jrun *r, const struct pf_jfn *fn, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jval v[PF_JMAX_ARGS] = { 0 };
    PF_TRY(pf_jsteps(r, 1));
    if (!fn->params)
        return fn->call(r, a, out);
    size_t n = count_params(fn->params);
    if (a->n > n)
        return pf_jfail(r, "%s() takes at most %zu arguments", fn->name, n);
    for (size_t i = 0; i < a->n; i++)
        v[i] = a->v[i];
    for (size_t i = 0; i < a->n_kw; i++) {
        int at = param_number(fn->params, a->kw[i].name);
        if (at < 0 || v[at].kind != PF_JV_MISSING)
            return pf_jfail(r, "%s() cannot take '%.*s'", fn->name, (int)(a->kw[i].name.n < 60 ? a->kw[i].name.n : 60),
                            a->kw[i].name.p);
        v[at] = a->kw[i].v;
    }
    for (size_t i = 0; i < fn->n_min; i++)
        if (v[i].kind == PF_JV_MISSING)
            return pf_jfail(r, "%s() needs more arguments", fn->name);
    struct pf_jargs bound = { .v = v, .n = n };
    return fn->call(r, &bound, out);
}

/* Sets the parameters in the macro's frame, which is the current one: given ones, defaults, undefined. Equal names are
 * one text of the template's. */
static pf_status bind_macro(struct pf_jrun *r, const struct pf_jnode *def, const struct pf_jargs *a)
{
    size_t i = 0, n_used = 0;
    const struct pf_jname *name = &r->t->names[def->name];
    for (const struct pf_jnode *p = def->a; p; p = p->next, i++) {
        struct pf_jstr param = r->t->names[p->name].s;
        struct pf_jval v = pf_jundef(param);
        const struct pf_jval *given = i < a->n ? &a->v[i] : NULL;
        for (size_t k = 0; k < a->n_kw; k++)
            if (!given && a->kw[k].name.p == param.p) {
                given = &a->kw[k].v;
                n_used++;
            }
        if (!given && p->a)
            PF_TRY(eval(r, p->a, &v));
        PF_TRY(assign(r, p->name, given ? given : &v));
    }
    if (a->n > i || n_used < a->n_kw)
        return pf_jfail(r, "macro %.*s() cannot take these arguments", (int)(name->s.n < 60 ? name->s.n : 60),
                        name->s.p);
    return PF_OK;
}

static pf_status call_macro(struct pf_jrun *r, const struct pf_jmacro *m, const struct pf_jargs *a, struct pf_jval *out)
{
    struct pf_jframe *caller = r->frame, *frame;
    size_t mark = r->n_out;
    if (r->n_macros >= PF_JMAX_NEST)
        return pf_jfail(r, "macros call each other deeper than %d times", (int)PF_JMAX_NEST);
    PF_TRY(frame_new(r, m->frame, &frame));
    r->n_macros++;
    r->n_captures++;
    r->frame = frame;
    PF_TRY(bind_macro(r, m->def, a));
    PF_TRY(exec_body(r, m->def->b));
    r->frame = caller;
    r->n_macros--;
    r->n_captures--;
    return pf_jtake(r, mark, out);
}

static const struct pf_jfn *method_of(const struct pf_jrun *r, const struct pf_jval *v, int name)
{
    const struct pf_jname *known = &r->t->names[name];
    switch (v->kind) {
    case PF_JV_STR:
        return known->fn[PF_JT_STR];
    case PF_JV_DICT:
        return known->fn[PF_JT_DICT];
    case PF_JV_LIST:
    case PF_JV_TUPLE:
        return known->fn[PF_JT_LIST];
    case PF_JV_LOOP:
        return known->fn[PF_JT_LOOP];
    default:
        return NULL;
    }
}

static pf_status eval_attr(struct pf_jrun *r, const struct pf_jnode *n, const struct pf_jval *obj, struct pf_jval *out)
{
    const struct pf_jfn *method = method_of(r, obj, n->name);
    const struct pf_jname *name = &r->t->names[n->name];
    void *p;
    if (!method)
        return pf_jattr(r, obj, name->s, name->hash, out);
    PF_TRY(pf_jalloc(r, sizeof(struct pf_jbound), &p));
    struct pf_jbound *bound = p;
    *bound = (struct pf_jbound){ .fn = method, .self = *obj };
    *out = (struct pf_jval){ .kind = PF_JV_BOUND, .bound = bound };
    return PF_OK;
}

static pf_status call_value(struct pf_jrun *r, const struct pf_jval *f, const struct call *c, struct pf_jval *out)
{
    switch (f->kind) {
    case PF_JV_MACRO:
        return call_macro(r, f->macro, &c->a, out);
    case PF_JV_FUNC:
        return pf_jcall_fn(r, f->fn, &c->a, out);
    case PF_JV_BOUND:
        return pf_jcall_fn(r, f->bound->fn, &c->a, out);
    case PF_JV_UNDEF:
        return pf_jfail(r, "'%.*s' is undefined and cannot be called", (int)(f->s.n < 100 ? f->s.n : 100), f->s.p);
    default:
        return pf_jfail(r, "%s cannot be called", pf_jtype(f));
    }
}

static pf_status eval_call(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    struct call c;
    struct pf_jval f, self;
    const struct pf_jfn *method = NULL;
    if (n->a->kind == PF_JN_ATTR) {
        PF_TRY(eval(r, n->a->a, &self));
        method = method_of(r, &self, n->a->name);
        if (!method)
            PF_TRY(eval_attr(r, n->a, &self, &f));
    } else {
        PF_TRY(eval(r, n->a, &f));
    }
    bool bound = !method && f.kind == PF_JV_BOUND;
    PF_TRY(eval_args(r, n->b, method ? &self : bound ? &f.bound->self : NULL, &c));
    r->line = n->line;
    return method ? pf_jcall_fn(r, method, &c.a, out) : call_value(r, &f, &c, out);
}

static pf_status eval_filter(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    struct call c;
    struct pf_jval input;
    PF_TRY(eval(r, n->a, &input));
    PF_TRY(eval_args(r, n->b, &input, &c));
    r->line = n->line;
    struct pf_jstr name = r->t->names[n->name].s;
    if (!n->fn)
        return pf_jfail(r, "there is no %s '%.*s'", n->kind == PF_JN_TEST ? "test" : "filter",
                        (int)(name.n < 60 ? name.n : 60), name.p);
    return pf_jcall_fn(r, n->fn, &c.a, out);
}

/* ---- Expressions ---- */

static pf_status eval_list(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    struct pf_jlist *l;
    struct pf_jval v;
    PF_TRY(pf_jlist_new(r, 0, &l));
    for (const struct pf_jnode *e = n->a; e; e = e->next) {
        PF_TRY(eval(r, e, &v));
        PF_TRY(pf_jlist_push(r, l, v));
    }
    *out = (struct pf_jval){ .kind = n->kind == PF_JN_LIST ? PF_JV_LIST : PF_JV_TUPLE, .list = l };
    return PF_OK;
}

static pf_status eval_dict(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    struct pf_jdict *d;
    struct pf_jval key, v;
    PF_TRY(pf_jdict_new(r, &d));
    for (const struct pf_jnode *e = n->a; e; e = e->next->next) {
        PF_TRY(eval(r, e, &key));
        PF_TRY(eval(r, e->next, &v));
        PF_TRY(pf_jdict_set(r, d, key, v));
    }
    *out = (struct pf_jval){ .kind = PF_JV_DICT, .dict = d };
    return PF_OK;
}

static pf_status eval_index(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    struct pf_jval obj, at;
    PF_TRY(eval(r, n->a, &obj));
    PF_TRY(eval(r, n->b, &at));
    r->line = n->line;
    return pf_jindex(r, &obj, &at, out);
}

static pf_status eval_slice(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    struct pf_jval obj, part[3] = { 0 };
    const struct pf_jnode *const parts[3] = { n->b, n->c, n->d };
    PF_TRY(eval(r, n->a, &obj));
    for (int i = 0; i < 3; i++)
        if (parts[i])
            PF_TRY(eval(r, parts[i], &part[i]));
    r->line = n->line;
    return pf_jslice(r, &obj, part, out);
}

static pf_status eval_binary(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    struct pf_jval a, b;
    PF_TRY(eval(r, n->a, &a));
    PF_TRY(eval(r, n->b, &b));
    r->line = n->line;
    return pf_jbinary(r, n->op, &a, &b, out);
}

static pf_status eval_compare(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    struct pf_jval a, b;
    bool is = true;
    PF_TRY(eval(r, n->a, &a));
    for (const struct pf_jnode *c = n->b; c && is; c = c->next) {
        PF_TRY(eval(r, c->a, &b));
        r->line = n->line;
        PF_TRY(pf_jcompare(r, c->op, &a, &b, &is));
        a = b;
    }
    *out = pf_jbool(is);
    return PF_OK;
}

/* `a and b`, `a or b`: the operand that decides. */
static pf_status eval_logic(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    PF_TRY(eval(r, n->a, out));
    return pf_jtruth(out) == (n->kind == PF_JN_AND) ? eval(r, n->b, out) : PF_OK;
}

static pf_status eval_cond(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    PF_TRY(eval(r, n->a, out));
    if (pf_jtruth(out))
        return eval(r, n->b, out);
    *out = pf_jundef((struct pf_jstr){ "the missing else", 16 });
    return n->c ? eval(r, n->c, out) : PF_OK;
}

static pf_status eval_sign(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    static const struct pf_jval zero = { .kind = PF_JV_INT };
    struct pf_jval v;
    PF_TRY(eval(r, n->a, &v));
    r->line = n->line;
    if (v.kind == PF_JV_FLOAT) {
        *out = pf_jfloat(n->kind == PF_JN_NEG ? -v.f : v.f);
        return PF_OK;
    }
    return pf_jbinary(r, n->kind == PF_JN_NEG ? '-' : '+', &zero, &v, out);
}

static pf_status eval_capture(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    size_t mark = r->n_out;
    r->n_captures++;
    PF_TRY(exec_body(r, n->b));
    r->n_captures--;
    return pf_jtake(r, mark, out);
}

static pf_status eval_kind(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    struct pf_jval v;
    switch (n->kind) {
    case PF_JN_CONST:
        *out = n->val;
        return PF_OK;
    case PF_JN_NAME:
        return look_up(r, n->name, out);
    case PF_JN_LIST:
    case PF_JN_TUPLE:
        return eval_list(r, n, out);
    case PF_JN_DICT:
        return eval_dict(r, n, out);
    case PF_JN_ATTR:
        PF_TRY(eval(r, n->a, &v));
        r->line = n->line;
        return eval_attr(r, n, &v, out);
    case PF_JN_INDEX:
        return eval_index(r, n, out);
    case PF_JN_SLICE:
        return eval_slice(r, n, out);
    case PF_JN_CALL:
        return eval_call(r, n, out);
    case PF_JN_FILTER:
    case PF_JN_TEST:
        return eval_filter(r, n, out);
    case PF_JN_NOT:
        PF_TRY(eval(r, n->a, &v));
        *out = pf_jbool(!pf_jtruth(&v));
        return PF_OK;
    case PF_JN_NEG:
    case PF_JN_POS:
        return eval_sign(r, n, out);
    case PF_JN_AND:
    case PF_JN_OR:
        return eval_logic(r, n, out);
    case PF_JN_BINARY:
        return eval_binary(r, n, out);
    case PF_JN_COMPARE:
        return eval_compare(r, n, out);
    case PF_JN_COND:
        return eval_cond(r, n, out);
    default:
        return eval_capture(r, n, out);
    }
}

static pf_status step_in(struct pf_jrun *r, const struct pf_jnode *n)
{
    r->line = n->line;
    if (++r->n_open > PF_JMAX_OPEN)
        return pf_jfail(r, "the template is nested too deep");
    return pf_jsteps(r, 1);
}

static pf_status eval(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jval *out)
{
    PF_TRY(step_in(r, n));
    PF_TRY(eval_kind(r, n, out));
    r->n_open--;
    return PF_OK;
}

/* ---- Statements ---- */

static pf_status exec_if(struct pf_jrun *r, const struct pf_jnode *n)
{
    struct pf_jval v;
    for (;; n = n->c) {
        PF_TRY(eval(r, n->a, &v));
        if (pf_jtruth(&v))
            return exec_body(r, n->b);
        if (!n->flag)
            return exec_body(r, n->c);
    }
}

/* The elements for which the loop's condition holds. */
static pf_status filter_items(struct pf_jrun *r, const struct pf_jnode *n, struct pf_jlist **items)
{
    struct pf_jlist *kept;
    struct pf_jval v;
    PF_TRY(pf_jlist_new(r, 0, &kept));
    for (size_t i = 0; i < (*items)->n; i++) {
        r->frame->n = 0;
        PF_TRY(assign_target(r, n->a, &(*items)->v[i]));
        PF_TRY(eval(r, n->c, &v));
        if (pf_jtruth(&v))
            PF_TRY(pf_jlist_push(r, kept, (*items)->v[i]));
    }
    *items = kept;
    return PF_OK;
}

static pf_status run_loop(struct pf_jrun *r, const struct pf_jnode *n, const struct pf_jlist *items)
{
    void *p;
    PF_TRY(pf_jalloc(r, sizeof(struct pf_jloop), &p));
    struct pf_jloop *loop = p;
    loop->items = items;
    struct pf_jval loop_val = { .kind = PF_JV_LOOP, .loop = loop };
    for (loop->at = 0; loop->at < items->n; loop->at++) {
        r->frame->n = 0;
        PF_TRY(assign(r, n->name, &loop_val));
        PF_TRY(assign_target(r, n->a, &items->v[loop->at]));
        PF_TRY(pf_jsteps(r, 1));
        PF_TRY(exec_body(r, n->d));
        bool leave = r->flow == PF_JFLOW_BREAK;
        r->flow = PF_JFLOW_NONE;
        if (leave)
            break;
    }
    return PF_OK;
}

static pf_status exec_for(struct pf_jrun *r, const struct pf_jnode *n)
{
    struct pf_jframe *outer = r->frame, *frame;
    struct pf_jlist *items;
    struct pf_jval v;
    PF_TRY(eval(r, n->b, &v));
    PF_TRY(pf_jiter(r, &v, &items));
    PF_TRY(frame_new(r, outer, &frame));
    r->frame = frame;
    if (n->c)
        PF_TRY(filter_items(r, n, &items));
    PF_TRY(run_loop(r, n, items));
    r->frame = outer;
    return items->n ? PF_OK : exec_body(r, n->e);
}

static pf_status exec_macro(struct pf_jrun *r, const struct pf_jnode *n)
{
    void *p;
    PF_TRY(pf_jalloc(r, sizeof(struct pf_jmacro), &p));
    struct pf_jmacro *m = p;
    *m = (struct pf_jmacro){ .def = n, .frame = r->frame };
    struct pf_jval v = { .kind = PF_JV_MACRO, .macro = m };
    return assign(r, n->name, &v);
}

static pf_status exec_kind(struct pf_jrun *r, const struct pf_jnode *n)
{
    struct pf_jval v;
    switch (n->kind) {
    case PF_JN_TEXT:
        return pf_jput(r, n->val.s.p, n->val.s.n);
    case PF_JN_PRINT:
        PF_TRY(eval(r, n->a, &v));
        return pf_jprint(r, &v);
    case PF_JN_IF:
        return exec_if(r, n);
    case PF_JN_FOR:
        return exec_for(r, n);
    case PF_JN_SET:
        PF_TRY(eval(r, n->b, &v));
        return assign_target(r, n->a, &v);
    case PF_JN_MACRO:
        return exec_macro(r, n);
    case PF_JN_BLOCK:
        return exec_body(r, n->b);
    default:
        r->flow = n->kind == PF_JN_BREAK ? PF_JFLOW_BREAK : PF_JFLOW_CONTINUE;
        return PF_OK;
    }
}

static pf_status exec_body(struct pf_jrun *r, const struct pf_jnode *n)
{
    for (; n && r->flow == PF_JFLOW_NONE; n = n->next) {
        PF_TRY(step_in(r, n));
        PF_TRY(exec_kind(r, n));
        r->n_open--;
        if (r->n_out > r->max_printed && !r->n_captures)
            return pf_fail(PF_ECONTEXT, "the chat template prints more than %zu bytes", r->max_printed);
    }
    return PF_OK;
}

pf_status pf_jrun_body(struct pf_jrun *r)
{
    return exec_body(r, r->t->body);
}
