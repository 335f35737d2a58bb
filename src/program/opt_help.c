/* The table of options as text: --help, and the list in the manual page (--help-man). */
#include "program/opt_parts.h"

#include <stdio.h>
#include <string.h>

static void flag_text(const struct opt *o, char *out, size_t cap)
{
    char letter[8] = "    ";
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(out, cap, "%s--%s%s%s", letter, o->name, o->arg ? " " : "", o->arg ? o->arg : "");
}

void opt_add_wrapped(struct buf *out, const char *text, int indent, int width)
{
    int column = indent;
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, " ");
        if (column + n > width && column > indent) {
            buf_printf(out, "\n%*s", indent, "");
            column = indent;
        }
        buf_printf(out, "%s%.*s", column > indent ? " " : "", n, p);
        column += n + (column > indent);
        p += n;
        p += strspn(p, " ");
    }
    buf_puts(out, "\n");
}

void opt_print_group(const struct opts_program *p, int g)
{
    enum { INDENT = 28, WIDTH = 100 };
    bool titled = false;
    for (int i = 0; i < opt_n_rows(p); i++) {
        const struct opt *o = opt_row(p, i);
        char flag[80], help[512];
        if (!o || o->group != g)
            continue;
        if (!titled)
            printf("\n%s:\n", opt_group_titles[g]);
        titled = true;
        flag_text(o, flag, sizeof flag);
        snprintf(help, sizeof help, "%s%s%s%s", o->help, o->env ? " [" : "", o->env ? o->env : "", o->env ? "]" : "");
        if (strlen(flag) > INDENT - 4)
            printf("  %s\n%*s", flag, INDENT, "");
        else
            printf("  %-*s", INDENT - 2, flag);
        struct buf wrapped = { 0 };
        opt_add_wrapped(&wrapped, help, INDENT, WIDTH);
        fputs(wrapped.p, stdout);
        buf_free(&wrapped);
    }
}

void opt_print_help(const struct opts_program *p)
{
    puts(p->usage);
    for (int g = GROUP_WHAT; g < GROUP_HIDDEN; g++)
        opt_print_group(p, g);
    if (p->more) {
        p->more();
        return;
    }
    puts("\nA name in brackets is an environment variable that sets the same; the flag wins. PFMOE_POSTFETCH_ and\n"
         "PFMOE_EXPERT_TRACE_ may be written with LLAMA_ in the place of PFMOE_ too.\n"
         "Sampling that nobody sets is what the model's file recommends, else temp 0.8, top-k 40, top-p 0.95, "
         "min-p 0.05.\n"
         "Exit status: 0 done, 1 failed, 2 wrong usage.");
}

static void print_roff(const char *text)
{
    for (const char *p = text; *p; p++)
        if (*p == '-' || *p == '\\')
            printf(*p == '-' ? "\\-" : "\\e");
        else
            putchar(*p);
}

/* The manual page's list of options. */
static void print_variables(const struct opt *o)
{
    char alias[80];
    if (!o->env)
        return;
    opt_alias(o->env, alias, sizeof alias);
    printf("Environment variable: \\fB%s\\fR", o->env);
    printf(*alias ? " or \\fB%s\\fR.\n" : ".\n", alias);
}

void opt_print_man(const struct opts_program *p)
{
    for (int g = GROUP_WHAT; g < GROUP_HIDDEN; g++) {
        bool titled = false;
        for (int i = 0; i < opt_n_rows(p); i++) {
            const struct opt *o = opt_row(p, i);
            if (!o || o->group != g)
                continue;
            if (!titled)
                printf(".SS %s\n", opt_group_titles[g]);
            titled = true;
            printf(".TP\n");
            if (o->letter)
                printf("\\fB\\-%c\\fR, ", o->letter);
            printf("\\fB\\-\\-");
            print_roff(o->name);
            printf("\\fR");
            if (o->arg)
                printf(" \\fI%s\\fR", o->arg);
            putchar('\n');
            print_roff(o->help);
            printf(".\n");
            print_variables(o);
        }
    }
}
