/* What the routes share: one server a program. Read-only once requests are taken. */
#ifndef PF_SERVE_SERVER_H
#define PF_SERVE_SERVER_H

#include "serve/http/http.h"
#include "serve/job.h"
#include "serve/options.h"
#include "serve/prompt.h"
#include "serve/scheduler.h"

struct server {
    const struct serve_settings *s;
    pf_model          *m;
    const char        *model_name;       /* the file's name without its folder and ending */
    struct prompt_opts prompt;
    struct request     defaults;         /* what a request that says nothing asks for */
    struct sched      *sched;
    int64_t            cache_mb;         /* for conversations that have no slot */
    int64_t            started;          /* seconds since 1970 */
    atomic_bool        loaded;           /* a signal ends the server in order, no longer at once */
};

/* All paths; ends with a method of NULL. */
extern const struct route routes[];

/* Reads the exchange's body by protocol p, makes the prompt and hands the job to the scheduler, or answers with what is
 * wrong. On a worker. */
void generate(struct exchange *x, const struct protocol *p);
/* The body as JSON; false: the exchange is answered. */
bool json_body(struct exchange *x, struct json *body);
/* Answers with the field at which the reader ended. */
void answer_wrong_field(struct exchange *x, const struct reader *r);

#endif
