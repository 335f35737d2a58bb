/* The options of the programs: the environment and the command line read by their tables. See opts.h. */
#include "program/opts.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program/foreign.h"
#include "program/io/out.h"
#include "program/opt_parts.h"
#include "version.h"

enum { LONG_BASE = 256 };                   /* getopt's codes of long options, above all letters */

static const struct opts_program pfmoe_run = {
    .name = "pfmoe-run",
    .usage = "usage: pfmoe-run [MODEL.gguf | -hf NAME] [options]      chat\n"
             "       pfmoe-run [MODEL.gguf | -hf NAME] -p TEXT | -f FILE   one answer\n"
             "       pfmoe-run --info FILE [--verify]                what a file holds\n"
             "       pfmoe-run pull NAME | rm NAME | list            models by their names on the hub (see --hf)\n\n"
             "Runs a mixture-of-experts (or dense) language model from a GGUF file. With no text given and\n"
             "standard input a terminal it is a chat; /help there lists its commands.",
    .operands = "a text goes after -p",
};

static const struct opts_program *program = &pfmoe_run;      /* the one that runs: set before anything is read */

/* ---- Reading the command line ------------------------------------------------------------------------------------ */

static void act(size_t what)
{
    if (what == ACT_HELP)
        opt_print_help(program);
    else if (what == ACT_VERSION)
        printf("%s %s\n", program->name, PF_VERSION);
    else
        opt_print_man(program);
    out_close();
    exit(EXIT_DONE);
}

static void read_variable(struct settings *s, const struct opt *o, const char *name)
{
    const char *value = getenv(name), *why;
    if (value && *value && !opt_parse(o, s, value, &why))
        die(EXIT_USAGE, "%s: %s", name, why);
}

/* A variable's own name is read last: it wins over its alias. */
static void read_variables(struct settings *s, const struct opt *o)
{
    char alias[80];
    if (!o->env)
        return;
    opt_alias(o->env, alias, sizeof alias);
    if (*alias)
        read_variable(s, o, alias);
    read_variable(s, o, o->env);
}

static void read_environment(struct settings *s)
{
    for (int i = 0; i < opt_n_rows(program); i++)
        if (opt_row(program, i))
            read_variables(s, opt_row(program, i));
}

static const struct opt *by_code(int code)
{
    for (int i = 0; i < opt_n_rows(program); i++)
        if (opt_row(program, i) &&
            (code == LONG_BASE + i || (opt_row(program, i)->letter && code == opt_row(program, i)->letter)))
            return opt_row(program, i);
    return NULL;
}

static void check_together(const struct settings *s)
{
    const struct { const char *flag, *value; } modes[] = {
        { "--info", s->info },         { "--score", s->score },   { "--tokenize", s->tokenize },
        { "--detokenize", s->detokenize },
        { "--splits", s->splits },     { "--render", s->render }, { "--parse", s->parse },
        { "-p", s->prompt },           { "-f", s->file },
    };
    const char *first = NULL;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (modes[i].value && first)
            die(EXIT_USAGE, "%s and %s exclude each other", first, modes[i].flag);
        first = modes[i].value ? modes[i].flag : first;
    }
    if (s->json_schema && s->grammar)
        die(EXIT_USAGE, "--json-schema and --grammar exclude each other");
    if (s->score && !s->logits)
        die(EXIT_USAGE, "--score needs --logits OUT");
    if (!s->score && (s->logits || s->step || s->chunks.n))
        die(EXIT_USAGE, "--logits, --step and --chunk belong to --score");
    if (s->step && s->chunks.n)
        die(EXIT_USAGE, "--step and --chunk exclude each other");
    if (s->verify && !s->info)
        die(EXIT_USAGE, "--verify belongs to --info");
    if (s->plan && first)
        die(EXIT_USAGE, "--plan and %s exclude each other", first);
    if (s->card && !s->plan)
        die(EXIT_USAGE, "--card belongs to --plan");
    if (s->card && s->gpus.n > 1)
        die(EXIT_USAGE, "--card plans for one GPU; --gpus with several numbers is for those of this machine");
    if (s->splits && !s->operand)
        die(EXIT_USAGE, "--splits needs two words: the pre-tokenizer's name and a file");
    if (s->parse && !s->operand)
        die(EXIT_USAGE, "--parse needs two words: the family's name and a file");
    if (s->pieces != UNSET && !s->parse)
        die(EXIT_USAGE, "--pieces belongs to --parse");
    if ((s->tokenize || s->detokenize || s->score) && !s->model)
        die(EXIT_USAGE, "%s needs -m MODEL", first);
}

/* getopt's two lists of the program's options. */
static void list_options(struct option *longs, char *letters)
{
    *letters++ = ':';
    for (int i = 0; i < opt_n_rows(program); i++) {
        const struct opt *o = opt_row(program, i);
        if (!o)
            continue;
        bool has_arg = o->kind != FLAG && o->kind != ACTION;
        *longs++ = (struct option){ o->name, has_arg ? required_argument : no_argument, NULL, LONG_BASE + i };
        if (o->letter)
            *letters++ = o->letter;
        if (o->letter && has_arg)
            *letters++ = ':';
    }
    *longs = (struct option){ 0 };
    *letters = 0;
}

/* pull NAME, rm NAME, list; or the model's file. */
static void read_words(struct settings *s, int argc, char **argv)
{
    static const char *const words[] = { "pull", "list", "rm" };
    const char *word = optind < argc ? argv[optind] : "";
    size_t n = strlen(word);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0) {
            s->models = argv[optind++];
            s->models_name = optind < argc ? argv[optind++] : NULL;
            return;
        }
    if ((n > 5 && strcmp(word + n - 5, ".gguf") == 0) || (n > 0 && access(word, R_OK) == 0))
        s->model = argv[optind++];
}

void opts_read_of(const struct opts_program *p, struct settings *s, int argc, char **argv)
{
    struct option longs[MOST_ROWS + 1];
    char letters[2 * MOST_ROWS + 2];
    const char *why;
    program = p;
    list_options(longs, letters);
    opt_defaults(s);
    read_environment(s);
    opterr = 0;
    foreign_options(argc, argv, longs, letters);
    for (int c; (c = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
        const struct opt *o = by_code(c);
        if (!o)
            die_of_option(c, argv);
        if (o->kind == ACTION)
            act(o->at);
        if (!opt_parse(o, s, optarg, &why))
            die(EXIT_USAGE, "--%s: %s", o->name, why);
    }
    if ((s->splits || s->parse) && optind < argc)
        s->operand = argv[optind++];
    if (program == &pfmoe_run)
        read_words(s, argc, argv);
    for (int i = 0; i < p->n_words && optind < argc; i++)
        ((const char **)(void *)((char *)s + p->words))[i] = argv[optind++];
    if (optind < argc)
        die(EXIT_USAGE, "\"%s\" is not expected; %s", argv[optind], program->operands);
}

void opts_read(struct settings *s, int argc, char **argv)
{
    opts_read_of(&pfmoe_run, s, argc, argv);
    check_together(s);
}
