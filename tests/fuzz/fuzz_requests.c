/* The body of a request, by every path that takes one: the first byte says which, the rest is the body. Handlers run as
 * in the server; connections, prompts and the scheduler are stand-ins, so that nothing but the reading is tried. A
 * request that is read must hold JSON where templates and parsers take it for JSON. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "serve/server.h"

struct exchange {
    struct buf body, answer;
    const struct route *route;
    int holders, status;
};

static struct serve_settings settings;
static struct server server = { .s = &settings, .model_name = "fuzz" };

/* ---- Connections ------------------------------------------------------------------------------------------------- */

const struct buf *exchange_body(const struct exchange *x)
{
    return &x->body;
}

const struct route *exchange_route(const struct exchange *x)
{
    return x->route;
}

void *exchange_ctx(const struct exchange *x)
{
    (void)x;
    return &server;
}

const char *exchange_rest(const struct exchange *x)
{
    (void)x;
    return "";
}

const struct client *exchange_client(const struct exchange *x)
{
    static const struct client nobody;
    (void)x;
    return &nobody;
}

void exchange_answer(struct exchange *x, int status, const char *type, const char *text, size_t n)
{
    size_t where;
    (void)type;
    if (x->status || !json_valid(text, n, &where))
        abort();                     /* two answers, or one that is no JSON */
    x->status = status;
}

void exchange_error(struct exchange *x, const struct trouble *t)
{
    struct buf text = { 0 };
    x->route->error(&text, t);
    exchange_answer(x, t->status, "application/json", buf_text(&text), text.n);
    buf_free(&text);
}

void exchange_open(struct exchange *x)
{
    (void)x;
}

void exchange_put(struct exchange *x, const char *text, size_t n)
{
    (void)x, (void)text, (void)n;
}

uint64_t exchange_n_put(struct exchange *x)
{
    (void)x;
    return 0;
}

void exchange_end(struct exchange *x)
{
    (void)x;
}

bool exchange_gone(struct exchange *x)
{
    (void)x;
    return false;
}

void exchange_hold(struct exchange *x)
{
    x->holders++;
}

void exchange_drop(struct exchange *x)
{
    x->holders--;
}

/* ---- What comes after the reading -------------------------------------------------------------------------------- */

static void must_be_json(const char *text)
{
    size_t where;
    if (text && !json_valid(text, strlen(text), &where))
        abort();
}

bool prompt_make(struct job *j, const struct prompt_opts *o, struct trouble *t)
{
    const struct request *q = &j->req;
    (void)o;
    must_be_json(q->tools_json);
    for (size_t i = 0; i < q->n_msgs; i++) {
        must_be_json(q->msgs[i].tool_calls_json);
        if (!q->msgs[i].role || !q->msgs[i].content)
            abort();
    }
    *t = (struct trouble){ .status = 400, .why = "refused" };
    return q->n_msgs % 2;
}

pf_status prompt_tokenize(const pf_model *m, const char *text, size_t n, unsigned flags, int32_t **tok, size_t *n_tok)
{
    (void)m, (void)text, (void)n, (void)flags;
    *tok = NULL;
    *n_tok = 0;
    return PF_OK;
}

bool sched_ill(struct sched *s, struct buf *why)
{
    (void)s, (void)why;
    return false;
}

void sched_add(struct sched *s, struct job *j)
{
    (void)s;
    exchange_answer(j->x, 200, "application/json", "{}", 2);
    job_free(j);
}

/* ---- Bodies ------------------------------------------------------------------------------------------------------ */

static const struct route *route_of(uint8_t which)
{
    static const char *const paths[] = { "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
                                         "/v1/messages/count_tokens", "/tokenize", "/v1/responses/input_tokens" };
    const struct route *r = routes;
    while (strcmp(r->path, paths[which % 7]) != 0)
        r++;
    return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct exchange x = { 0 };
    if (n == 0)
        return 0;
    x.route = route_of(data[0]);
    buf_add(&x.body, data + 1, n - 1);
    x.route->handle(&x);
    if (x.holders != 0 || x.status == 0)
        abort();                     /* nobody may be left without an answer */
    buf_free(&x.body);
    return 0;
}
