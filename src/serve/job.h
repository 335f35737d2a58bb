/* What is to be generated, and what came of it: the middle of the server, which knows neither HTTP nor a protocol's
 * names.
 *
 *     body --protocol->read--> struct request --prompt.c--> tokens --scheduler.c--> deltas --protocol--> the answer
 *
 * A job is used by one thread at a time: the worker that reads it, then the scheduler. It holds its exchange. Each of
 * its choices is made in a slot, several together where there are some. */
#ifndef PF_SERVE_JOB_H
#define PF_SERVE_JOB_H

#include "program/opts.h"
#include "pfmoe.h"
#include "serve/arena.h"
#include "serve/grammars.h"
#include "serve/api/fields.h"
#include "serve/http/http.h"

enum { MOST_N = 16, MOST_CHOICES = 128, MOST_MESSAGES = 65536, MOST_TOP_LOGPROBS = 20 };

/* What the content is held to. */
enum shape { SHAPE_FREE, SHAPE_JSON, SHAPE_GBNF };       /* JSON: of a schema; an empty one: any object */
enum tool_choice { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED, TOOLS_NAMED };

/* What answers go on from. */
struct prompt {
    struct buf  text;                    /* as given or rendered */
    int32_t    *tok;
    size_t      n_tok;
};

/* Strings live in the job's arena, and so does the list of prompts. */
struct request {
    const char *model;
    bool        stream, stream_usage;

    bool        chat;                    /* msgs through the template make the prompt; else it is given */
    struct pf_message *msgs;
    size_t      n_msgs;
    const char **calls_as_text;          /* [n_msgs] tool_calls_json with arguments as strings; NULL: no calls */
    const char *tools_json;
    const char *tools_given, *instructions;      /* as the request had them, where its protocol shows them again */
    enum tool_choice tool_choice;
    const char *tool_name;               /* TOOLS_NAMED */
    bool        one_call;                /* at most one call an answer */
    int         enable_thinking;         /* as in pf_chat_opts */
    const char *reasoning_effort;
    bool        goes_on;                 /* the answer goes on with the last message: continue_last in pf_chat_opts */
    bool        echo;                    /* the prompt's text comes first in the answer */
    const char *suffix;                  /* texts are filled in between the prompt and this; NULL: continued */

    struct prompt *prompts;              /* as read: of a text completion, with the text or the tokens */
    size_t      n_prompts;

    enum shape  shape;
    const char *shape_text;              /* the schema or grammar */
    size_t      n_shape;
    const char *shape_field;             /* that it came in, for errors */
    struct grammar_ref *grammar;         /* holds the content, or all of the reply; NULL: nothing does */
    bool        grammar_is_reply;        /* from its first token on, with reasoning and calls */
    struct grammar_ref **tool_grammars;  /* [n_tools] of arguments as JSON, in the order of tools_json; NULL: they are
                                            free */
    struct grammar_ref **own_grammars;   /* [n_tools] in the family's own form */
    size_t      n_tools;

    int64_t     max_tokens;              /* UNSET: to the end of the context */
    int64_t     n, seed;                 /* n: choices of each prompt; seed UNSET: any */
    double      temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t     top_k;
    struct text_list stops;
    struct pf_logit_bias *bias;
    int         n_bias;
    bool        ignore_eos;
    bool        logprobs;
    int64_t     top_logprobs;            /* 0: of the chosen token alone */
};

struct call {
    char       id[40];
    struct buf name, arguments;
    bool       ended;
};

enum finish { FINISH_NONE, FINISH_STOP, FINISH_STOP_STRING, FINISH_LENGTH, FINISH_CALLS };

struct choice {
    struct buf   content, reasoning;
    struct buf   logprobs;               /* elements in the protocol's form, with commas between */
    size_t       n_logprobs_sent;        /* bytes of it */
    struct call *calls;
    size_t       n_calls;
    const char  *stop_string;            /* the one that ended it */
    enum finish  finish;
};

enum delta_kind { DELTA_CONTENT, DELTA_REASONING, DELTA_CALL, DELTA_ARGUMENTS, DELTA_CALL_END };
struct delta {
    enum delta_kind kind;
    int         choice, call;            /* call: its number, counted from 0 */
    const char *text;                    /* CONTENT, REASONING, ARGUMENTS */
    size_t      n;
};

struct token_logprob {
    int32_t tok;
    double  logprob;
};

struct usage {
    size_t n_prompt, n_cached, n_answer, n_reasoning;
    uint64_t n_drafted, n_accepted;      /* tokens guessed ahead, and those of them that were right */
    double queued_s, prompt_s, answer_s;
};

struct job {
    struct exchange *x;
    const struct protocol *protocol;
    struct arena    arena;
    struct request  req;
    struct { struct buf text, calls, calls_as_text, tools; } building;       /* messages.c's */
    struct choice  *choices;             /* of the first prompt, of the second one, ...; in the arena */
    int             n_choices;           /* 0 until the prompts are made */
    int             n_given, n_ended;    /* choices that a slot got, in their order; that are whole */
    int             n_slots;             /* that have a choice of the job, 1 at least while some are not given */
    bool            yields;              /* slots but one leave it when their choice ends: others wait, or the next
                                            choice is to go on from what another slot has */
    bool            over;                /* answered with an error, or its client has gone: its slots are to leave it */
    double          since, taken, first; /* now_s() of when it was queued, got a slot, had a prompt done (0: not yet) */
    struct usage    usage;
    char            id[32];              /* random, letters and digits */
    int64_t         created;             /* seconds since 1970 */
    bool            begun;               /* protocol->begin was called */
    double          heard;               /* about now_s() of when its stream had something last; 0: nothing yet */
    uint64_t        n_heard;             /* exchange_n_put of then */
    void           *state;               /* the protocol's own, in the arena */
    struct job     *next;                /* in the scheduler's queue */
};

/* How a protocol shows what comes. What a delta tells is in the choice already. begin, delta, choice_end and broken are
 * for streams alone; end also writes the body of an answer in one piece. */
struct protocol {
    const char *call_prefix;                 /* what the ids of its calls begin with */
    bool (*read)(struct job *j, struct reader *r, struct json body);
    void (*begin)(struct job *j);
    void (*delta)(struct job *j, const struct delta *d);
    void (*choice_end)(struct job *j, int choice);
    void (*end)(struct job *j);
    void (*broken)(struct job *j, const struct trouble *t);      /* a failure after begin */
    void (*logprob)(struct job *j, int choice, const struct token_logprob *chosen, const struct token_logprob *top,
                    int n_top);
};

/* What a choice goes on from. */
struct prompt *job_prompt(const struct job *j, int choice);

/* j->x is held. */
struct job *job_new(struct exchange *x, const struct protocol *p);
void job_free(struct job *j);
/* Opens a stream whose answer lets its client wait, and says from time to time that it is still there, also where the
 * answer has begun and waits for its turn. To be called several times in five seconds. */
void job_keep_alive(struct job *j);
/* Answers with an error, or ends the stream with one. */
void job_fail(struct job *j, const struct trouble *t);

double now_s(void);
void   random_id(char *out, size_t n);               /* n - 1 letters and digits, and a 0 byte */

#endif
