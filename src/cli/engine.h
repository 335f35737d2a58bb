/* A model, a session and a sampler, set up as the settings say, and the two things done with them: turning a
 * conversation into a prompt, and answering it. */
#ifndef PF_CLI_ENGINE_H
#define PF_CLI_ENGINE_H

#include "program/opts.h"
#include "pfmoe.h"
#include "cli/reply.h"

struct tokens {
    int32_t *p;
    size_t   n, cap;
};

enum ending { END_OF_ANSWER, END_STOP_STRING, END_LENGTH, END_CONTEXT, END_INTERRUPTED };

struct outcome {
    enum ending ending;
    size_t n_prompt, n_reused, n_answer;
    double prompt_seconds, answer_seconds;
    double first_seconds;                /* from the beginning until the first token was chosen */
};

struct engine {
    struct settings  *s;
    pf_model         *m;
    pf_session       *session;
    struct pf_sampler sampler;
    uint64_t          seed;              /* the one in use */
    const char       *template_name;     /* chosen instead of the model's, or NULL */
    char             *template_text;
    bool              has_template;
    pf_grammar       *grammar;           /* what answers are held to, or NULL */
    struct reply      reply;             /* the last answer */
    struct outcome    sum;               /* of all answers, but for its ending */
    size_t            n_answers;
};

/* Opens everything but reads no weights: what can be refused without them is to be refused before load_weights.
 * Failing ends the program. s must outlive the engine. */
void engine_open(struct engine *e, struct settings *s, show_fn *show, void *ctx);
void engine_close(struct engine *e);

/* Opens a closed engine with s's model for a chat, its weights read, without --template, --grammar and --json-schema.
 * NULL, or why it cannot: then everything is closed. */
const char *engine_change(struct engine *e, struct settings *s, show_fn *show, void *ctx);

/* Takes over the sampling settings; from_seed starts the random numbers again too. */
void engine_sampling(struct engine *e, bool from_seed);

/* The prompt's text and tokens for these messages, or for a text as it is. A prompt that the context cannot hold gives
 * PF_ECONTEXT or, where only tokenizing shows it, a tok->n above the context's length. */
pf_status engine_chat_prompt(struct engine *e, const struct pf_message *msgs, size_t n, struct buf *text,
                             struct tokens *tok);
pf_status engine_raw_prompt(struct engine *e, const struct buf *text, struct tokens *tok);

/* Answers (text: the conversation's prompt, NULL where a text is completed): what comes is shown as it comes and left
 * in e->reply. After a failure too, what came is there. */
pf_status engine_answer(struct engine *e, const struct buf *text, const struct tokens *tok, struct outcome *o);

/* n a second; 0 where there was no time. */
double per_second(size_t n, double seconds);

#endif
