/* pfmoe-run: talks to a model, in a chat or once, and shows what the library does with a file for checking.
 *
 *     settings (opts) -> one mode: chat (repl), one answer (oneshot), a file's summary (info), checks (check, render)
 *
 * Sees nothing of pfmoe but pfmoe.h. */
#include <unistd.h>

#include "cli/modes.h"
#include "hub/hub.h"
#include "program/load.h"
#include "program/stack.h"
#include "program/io/term.h"

static int run(const struct settings *s)
{
    if (s->models)
        return mode_models(s->models, s->models_name);
    if (s->info)
        return mode_info(s);
    if (s->plan)
        return mode_plan(s);
    if (load_follows(s))
        return load_follow(s);
    if (s->score)
        return mode_score(s);
    if (s->tokenize)
        return mode_tokenize(s);
    if (s->detokenize)
        return mode_detokenize(s);
    if (s->splits)
        return mode_splits(s);
    if (s->render)
        return mode_render(s);
    if (s->parse)
        return mode_parse(s);
    bool once = s->prompt || s->file || !isatty(STDIN_FILENO);
    if (s->json && !once)
        die(EXIT_USAGE, "--json belongs to one answer: give a text with -p, -f or on standard input");
    if (s->load && once)
        die(EXIT_USAGE, "--load belongs to a chat, at a terminal and without -p and -f");
    return once ? mode_oneshot(s) : mode_chat(s);
}

static int start(int argc, char **argv)
{
    struct settings s;
    term_init();
    opts_read(&s, argc, argv);
    load_check(&s);
    if (s.hf)
        s.model = hub_need(s.hf);
    int status = run(&s);
    out_close();
    return status;
}

int main(int argc, char **argv)
{
    return stack_run(start, argc, argv);
}
