/* See job.h. */
#include "serve/job.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "serve/journal.h"

double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void random_id(char *out, size_t n)
{
    static const char letters[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    unsigned char bytes[64] = { 0 };
    if (getrandom(bytes, n < sizeof bytes ? n : sizeof bytes, 0) < 0)
        memset(bytes, (int)time(NULL), sizeof bytes);
    for (size_t i = 0; i + 1 < n; i++)
        out[i] = letters[bytes[i % sizeof bytes] % 36];
    out[n - 1] = 0;
}

struct job *job_new(struct exchange *x, const struct protocol *p)
{
    struct job *j = xrealloc(NULL, 1, sizeof *j);
    *j = (struct job){ .x = x, .protocol = p, .created = (int64_t)time(NULL) };
    exchange_hold(x);
    random_id(j->id, 25);
    return j;
}

struct prompt *job_prompt(const struct job *j, int choice)
{
    return &j->req.prompts[choice / (int)j->req.n];
}

static void free_choice(struct choice *c)
{
    for (size_t i = 0; i < c->n_calls; i++) {
        buf_free(&c->calls[i].name);
        buf_free(&c->calls[i].arguments);
    }
    free(c->calls);
    buf_free(&c->content);
    buf_free(&c->reasoning);
    buf_free(&c->logprobs);
}

void job_free(struct job *j)
{
    for (int i = 0; i < j->n_choices; i++)
        free_choice(&j->choices[i]);
    buf_free(&j->building.text);
    buf_free(&j->building.calls);
    buf_free(&j->building.calls_as_text);
    buf_free(&j->building.tools);
    for (size_t i = 0; i < j->req.n_prompts; i++) {
        buf_free(&j->req.prompts[i].text);
        free(j->req.prompts[i].tok);
    }
    for (size_t i = 0; i < j->req.n_tools; i++) {
        grammar_drop(&j->req.tool_grammars[i]);
        grammar_drop(&j->req.own_grammars[i]);
    }
    grammar_drop(&j->req.grammar);
    arena_free(&j->arena);
    exchange_drop(j->x);
    free(j);
}

/* Clients and proxies give up a connection that is silent for a minute or so, which a prompt may well take. What begins
 * with a colon is a comment to them. */
void job_keep_alive(struct job *j)
{
    static const double SILENT_S = 5;
    const char *comment = j->begun ? ": to be continued\n\n" : ": the answer has not begun yet\n\n";
    double now = now_s();
    if (!j->req.stream)
        return;
    if (exchange_n_put(j->x) == j->n_heard) {
        if (now - (j->heard > 0 ? j->heard : j->since) < SILENT_S)
            return;
        exchange_open(j->x);
        exchange_put(j->x, comment, strlen(comment));
    }
    j->heard = now;
    j->n_heard = exchange_n_put(j->x);
}

void job_fail(struct job *j, const struct trouble *t)
{
    journal_failed(j->x, t);
    if (j->heard > 0 && !j->begun)
        j->protocol->begin(j);
    if ((j->heard > 0 || j->begun) && j->req.stream) {
        j->protocol->broken(j, t);
        exchange_end(j->x);
    } else {
        exchange_error(j->x, t);
    }
}
