/* Promises of the template interpreter beyond right results: hostile templates end soon and with a message, every
 * failing allocation is PF_ENOMEM and leaks nothing, and the public face keeps its contract. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/pf_mem.h"
#include "text/chat_tmpl.h"

static int n_failed;

static void expect(int ok, const char *what, const char *detail)
{
    if (ok)
        return;
    n_failed++;
    printf("FAIL %s: %s\n", what, detail);
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);      /* other programs do not count */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t live(void)
{
    struct pf_mem_stats s;
    pf_mem_stats_get(&s);
    return s.n_live;
}

/* Parses and renders; the result, to be freed, or NULL with the status. */
static pf_status render(const char *tmpl, size_t len, const char *context, char **out, size_t *n)
{
    pf_tmpl *t;
    *out = NULL;
    pf_status st = pf_tmpl_parse(&t, tmpl, len);
    if (st == PF_OK)
        st = pf_tmpl_render(t, context, strlen(context), 0, 0, NULL, out, n);
    pf_tmpl_close(&t);
    return st;
}

/* ---- Hostile templates ---- */

static const char *const hostile[] = {
    "{{ range(10**9) }}",
    "{{ 'a' * 10**9 }}",
    "{{ [0] * 10**9 }}",
    "{{ 10**10**10 }}",
    "{{ 9223372036854775807 + 1 }}",
    "{{ (-9223372036854775807 - 1) // -1 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(x) %}{{ f(x ~ 'aaaa') }}{% endmacro %}{{ f('') }}",
    "{% macro f(n) %}{% for i in range(1000) %}{{ f(n + 1) }}{% endfor %}{% endmacro %}{{ f(0) }}",
    "{% macro a(x=b()) %}{% endmacro %}{% macro b(x=a()) %}{% endmacro %}{{ a() }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(200) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "{% set ns = namespace(l=[1]) %}{% for i in range(200) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson "
    "}}",
    "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}"
    "{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}",
    "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(90) %}{% set ns.l = [ns.l, ns.l] %}"
    "{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l < ns.m }}",
    "{% set ns = namespace(l=(1,)) %}{% for i in range(90) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ {ns.l: 1} }}",
    "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
    "{% set l = [] %}{% set x = l.append(l) %}{{ l }}",
    "{% set l = [] %}{% set x = l.append(l) %}{{ l | tojson }}",
    "{% set l = [] %}{% set m = [] %}{% set x = l.append(m) %}{% set x = m.append(l) %}{{ l == m }}",
    "{% set l = [1] %}{% for x in l %}{% set y = l.append(1) %}{% endfor %}",
    "{% set l = [1] %}{{ l | map('list') }}{% for x in l %}{% set y = l.append([l] * 100) %}{% endfor %}",
    "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s | replace('a', 'aaab') %}{% endfor %}",
    "{% set ns = namespace(s='ab') %}{% for i in range(100) %}{% set ns.s = ns.s | tojson %}{% endfor %}",
    "{% set ns = namespace(s='a\nb') %}{% for i in range(100) %}{% set ns.s = ns.s | indent(10**6, true) %}{% endfor "
    "%}",
    "{% set s = 'a' * 60000000 %}{% for i in range(100000) %}{{ 'b' in s }}{{ s | length }}{% endfor %}",
    "{% set s = 'a' * 60000000 %}{% for i in range(100000) %}{{ s[i] }}{{ s == s }}{{ s.find('b') }}{% endfor %}",
    "{% set s = 'a' * 60000000 %}{% for i in range(100000) %}{{ s.rfind('ab') }}{{ s.rsplit('ab', 1) }}{% endfor %}",
    "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set x = s.strip(s) %}{% endfor %}",
    "{% set s = ' ' * 30000000 %}{% for i in range(100000) %}{% set x = s.strip() %}{% set y = s.isdigit() %}{% endfor "
    "%}",
    "{% set s = ' a' * 30000000 %}{% for i in range(100000) %}{% set x = s.split() %}{% endfor %}",
    "{% set s = 'a' * 60000000 %}{{ s.split('a') }}",
    "{% set s = 'a' * 60000000 %}{% for c in s %}{{ c }}{% endfor %}",
    "{% set s = 'a' * 30000000 %}{% set d = {s: 1} %}{% for i in range(100000) %}{{ d[s] }}{% endfor %}",
    "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set x = s.startswith(s) or s < s %}{% endfor %}",
    "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set x = s.count('b') %}{{ s | int }}{% endfor %}",
    "{% set s = '1' * 30000000 %}{% for i in range(100000) %}{{ s | int }}{{ s | float }}{% endfor %}",
    "{% set s = '9' * 60 %}{% set n = s | int %}{% for i in range(100000) %}{% for i in range(1000) %}{% if n == n %}"
    "{% endif %}{% endfor %}{% endfor %}",
    "{% set s = 'a.' * 10000000 %}{% for i in range(1000) %}{{ [{}] | map(attribute=s) | list }}{% endfor %}",
    "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set x = 'b'.strip(s) %}{% endfor %}",
    "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set x = s.removeprefix(s) %}{% endfor %}",
    "{% set s = 'a' * 30000000 %}{% for i in range(100000) %}{% set x = s.removesuffix(s) %}{% endfor %}",
    "{% set s = ' ' * 30000000 ~ '1' %}{% for i in range(100000) %}{% set x = s | from_json %}{% endfor %}",
    "{% set s = '1' * 30000000 %}{% for i in range(100000) %}{% set x = [[1]] | map(attribute=s) %}{% endfor %}",
    "{{ '%999999999s' % 'a' }}",
    "{{ '%.999999999f' % 1.0 }}",
    "{{ '%-0400.100f' % 1e308 }}",
    "{% for i in range(100000) %}{{ '%400s' % 'a' }}{{ '%300d' % 1 }}{% endfor %}",
    "{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904) }}{{ "
    "range(100000)[::-1][::9223372036854775807] "
    "* 1000000 }}",
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = range(100000) | sort | unique | list %}{% endfor %}",
    "{% for i in range(99999) %}{% set x = range(100000) | join(',') %}{% endfor %}",
    "{{ range(100000) | map('list') }}",
    "{% for i in range(100000) %}{{ strftime_now('%c' * 10000) }}{% endfor %}",
    "{% for i in range(100000) %}{% set x %}{% for j in range(1000) "
    "%}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "{% endfor %}{% endset %}{% endfor %}",
    "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% for d in range(1000) %}"
    "{% for e in range(1000) %}{% for f in range(1000) %}{% for g in range(1000) %}{% for h in range(1000) %}"
    "{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}"
    "{% endfor %}{% endfor %}{% endfor %}{% endfor %}{% endfor %}",
};

static void check_hostile(const char *tmpl, size_t len, const char *name)
{
    char *out;
    size_t n;
    double start = now_s();
    uint64_t before = live();
    pf_status st = render(tmpl, len, "{}", &out, &n);
    double took = now_s() - start;
    char text[200];
    snprintf(text, sizeof text, "status %d after %.2f s: %.100s", (int)st, took, st < 0 ? pf_last_error() : "");
    expect(st == PF_OK || (st == PF_ETEMPLATE && strncmp(pf_last_error(), "template line ", 14) == 0), name, text);
    expect(took < 20, name, text);
    pf_free(out);
    expect(live() == before, name, "leaks");
    if (took > 0.5)
        printf("slow: %.2f s for %.60s...\n", took, name);
}

/* n times `open`, then `middle`, then n times `close`. */
static void check_nested(const char *open, const char *middle, const char *close, size_t n)
{
    size_t a = strlen(open), m = strlen(middle), b = strlen(close), len = n * (a + b) + m;
    char *text = malloc(len + 1), *p = text;
    for (size_t i = 0; i < n; i++, p += a)
        memcpy(p, open, a);
    memcpy(p, middle, m);
    p += m;
    for (size_t i = 0; i < n; i++, p += b)
        memcpy(p, close, b);
    check_hostile(text, len, open);
    free(text);
}

static void test_hostile(void)
{
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++)
        check_hostile(hostile[i], strlen(hostile[i]), hostile[i]);
    check_nested("{% if 1 %}", "x", "{% endif %}", 10000);
    check_nested("{{ ", "1", "", 80000);
    check_nested("{% for i in range(1000) %}", "x", "{% endfor %}", 6000);
    check_nested("{% for i in range(1000) %}", "x", "{% endfor %}", 150);
    check_nested("{{ 1 }}{% elif 1 %}", "x", "", 10000);
    check_nested("{% set x = ", "1", "", 20000);
    check_nested("{#", "", "#}", 60000);
    check_nested("{% raw %}", "", "{% endraw %}", 10000);
    check_nested("{% raw", "", "", 40000);
    check_nested("{% ", "raw", "", 80000);
    check_nested("{%raw%}{%", "", "", 20000);
    check_nested("    ", "{% if 1 %}", "    ", 30000);
    check_nested("{%+", "", "", 80000);
    char text[200000];
    const struct {
        const char *head, *unit, *tail;
    } chains[] = {
        {"{{ 1", " + 1", " }}"},
        {"{{ a", ".b", " }}"},
        {"{{ a", "[0]", " }}"},
        {"{{ a", "()", " }}"},
        {"{{ a", "|trim", " }}"},
        {"{{ ", "not ", "1 }}"},
        {"{{ ", "-", "1 }}"},
        {"{{ ", "(", "1 }}"},
        {"{{ ", "[", "1 }}"},
        {"{{ 1", " is string", " }}"},
        {"{{ 1", " if 1 else 1", " }}"},
        {"{{ 1", " if 1", " }}"},
        {"{{ 1", " == 1", " }}"},
        {"{{ 1", " or 0", " }}"},
        {"{{ 1", " ** 1", " }}"},
        {"{{ 'a'", " 'a'", " }}"},
        {"{{ f(", "f(", " }}"},
        {"{{ 1", ",1", " }}"},
        {"{{ {", "1:1,", "} }}"},
        {"{{ ", "{1:", " }}"},
        {"{{ a[", "a[", " }}"},
        {"{% set a", ",a", " = 1 %}"},
        {"{% set a = 'x'", " ~ 'x'", " %}{{ a }}"},
        {"{% if 1 %}", "{% elif 1 %}", "{% endif %}"},
        {"{{ f(", "a=1,", ") }}"},
        {"{% macro f(", "a=1,", ") %}{% endmacro %}"},
        {"{{ 'a'", "|map('map'", " }}"},
        {"{{ [1]|map(", "'map',", "'x') }}"},
        {"{{ ", "'\\", "' }}"},
        {"{{ 1", "_1", " }}"},
        {"{{ 1.", "1", "e5 }}"},
        {"{{ ", "9", " * 2 }}"},
        {"", "{{ x }}{% set y = 1 %}", ""},
        {"{# ", "a", ""},
    };
    for (size_t i = 0; i < sizeof chains / sizeof *chains; i++) {
        size_t n = 0, unit = strlen(chains[i].unit);
        n += (size_t)snprintf(text, sizeof text, "%s", chains[i].head);
        while (n + unit + 40 < sizeof text) {
            memcpy(text + n, chains[i].unit, unit);
            n += unit;
        }
        n += (size_t)snprintf(text + n, sizeof text - n, "%s", chains[i].tail);
        check_hostile(text, n, chains[i].unit);
    }
}

static void test_context_depth(void)
{
    enum { DEPTH = 100000 };
    char *context = malloc(2 * DEPTH + 20), *out;
    size_t n;
    memcpy(context, "{\"a\":", 5);
    memset(context + 5, '[', DEPTH);
    memset(context + 5 + DEPTH, ']', DEPTH);
    memcpy(context + 5 + 2 * DEPTH, "}", 2);
    pf_status st = render("{{ a }}", 7, context, &out, &n);
    expect(st == PF_ETEMPLATE, "deep context", pf_last_error());
    pf_free(out);
    free(context);
}

/* ---- Failing allocations ---- */

static const char mixed[] =
    "{%- macro show(v, n=1) -%}{{ v | tojson(indent=2) }}{% if n > 0 %}{{ show([v], n - 1) }}{% endif %}{%- endmacro "
    "-%}\n"
    "{% set ns = namespace(t='', l=[]) %}{% for m in messages if m.role != 'x' %}{% set ns.t = ns.t + m.role | upper %}"
    "{{ loop.index }} {{ m.content.split(' ') | join('-') }} {{ m | dictsort }} {{ m.items() | list }}"
    "{% set ns.l = ns.l + [m] %}{% endfor %}{{ ns.t }}{{ show(ns.l) }}{{ '%s %d' % ('a', 3) }}{{ messages[::-1] }}"
    "{% set cap %}{{ strftime_now('%Y-%m-%d') }}{% endset %}{{ cap | title | replace('-', '+') }}{{ 'a' * 70000 }}"
    "{{ range(3000) | sort(reverse=true) | unique | map('string') | select('string') | list | length }}";
static const char mixed_context[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"one two\\n three\", \"a\": 1, "
                                    "\"b\": 2.5, \"c\": null, \"d\": [true],"
                                    " \"e\": {}, \"f\": 1, \"g\": 2, \"h\": 3, \"i\": 4, \"j\": 5}, {\"role\": "
                                    "\"assistant\", \"content\": \"\\u00e9\"}]}";

static void test_failing_allocations(void)
{
    char *out = NULL;
    size_t n, len = sizeof mixed - 1;
    pf_status st = render(mixed, len, mixed_context, &out, &n);
    expect(st == PF_OK, "the mixed template renders", pf_last_error());
    pf_free(out);
    uint64_t before = live();
    int i = 1;
    for (st = PF_ENOMEM; st == PF_ENOMEM; i++) {
        pf_mem_fail_nth((uint64_t)i);
        st = render(mixed, len, mixed_context, &out, &n);
        pf_mem_fail_nth(0);
        expect(st == PF_OK || st == PF_ENOMEM, "a failing allocation", pf_last_error());
        expect(st == PF_OK || out == NULL, "a failing allocation", "gives a result");
        pf_free(out);
        expect(live() == before, "a failing allocation", "leaks");
    }
    expect(i > 8, "failing allocations", "were hardly any");
    printf("%d allocations failed in turn\n", i - 2);
}

/* ---- The public face ---- */

static void test_public(void)
{
    static const char tmpl[] = "{{ a }}!";
    char buf[8] = "zzzzzzz";
    size_t need = 99, len;
    pf_status st = pf_template_render(tmpl, 8, "{\"a\": \"hello\"}", 14, 0, buf, 6, &need);
    expect(st == PF_OK && need == 6 && memcmp(buf, "hello!z", 7) == 0, "pf_template_render", buf);
    st = pf_template_render(tmpl, 8, "{\"a\": \"longer\"}", 15, 0, buf, 6, &need);
    expect(st == PF_ESPACE && need == 7 && memcmp(buf, "hello!z", 7) == 0, "pf_template_render, short", buf);
    st = pf_template_render(tmpl, 8, "{\"a\": \"longer\"}", 15, 0, NULL, 0, &need);
    expect(st == PF_ESPACE && need == 7, "pf_template_render, no buffer", "");
    st = pf_template_render("", 0, "{}", 2, 0, NULL, 0, &need);
    expect(st == PF_OK && need == 0, "pf_template_render, empty", pf_last_error());
    st = pf_template_render(tmpl, 8, "[]", 2, 0, buf, 8, &need);
    expect(st == PF_ETEMPLATE && strstr(pf_last_error(), "context: a list"), "a context that is no object",
           pf_last_error());
    st = pf_template_render(tmpl, 8, "{\"a\": tru}", 10, 0, buf, 8, &need);
    expect(st == PF_ETEMPLATE && strstr(pf_last_error(), "context: JSON at offset 6"), "a bad context",
           pf_last_error());
    st = pf_template_render("a\n{{ b", 6, "{}", 2, 0, buf, 8, &need);
    expect(st == PF_ETEMPLATE && strstr(pf_last_error(), "template line 2:"), "the line of an error", pf_last_error());
    st = pf_template_render("{{ raise_exception('50%s off') }}", 33, "{}", 2, 0, buf, 8, &need);
    expect(st == PF_ETEMPLATE && strcmp(pf_last_error(), "50%s off") == 0, "raise_exception", pf_last_error());
    expect(pf_tmpl_builtin("no such", &len) == NULL, "an unknown built-in", "");
    pf_tmpl *none = NULL;
    pf_tmpl_close(&none);
}

/* Each built-in renders a conversation; the ends of two that everybody knows. */
static void test_builtins(void)
{
    static const char context[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"Sys\"}, {\"role\": \"user\", "
                                  "\"content\": \"Q1\"}, {\"role\": \"assistant\", \"content\": \"A1\"}, {\"role\": "
                                  "\"user\", \"content\": \"Q2\"}], "
                                  "\"add_generation_prompt\": true, \"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";
    static const struct {
        const char *name, *want;
    } known[] = {
        {"chatml",
         "<|im_start|>system\nSys<|im_end|>\n<|im_start|>user\nQ1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
         "<|im_start|>user\nQ2<|im_end|>\n<|im_start|>assistant\n"},
        {"llama2", "<s>[INST] <<SYS>>\nSys\n<</SYS>>\n\nQ1 [/INST] A1 </s><s>[INST] Q2 [/INST]"},
        {"mistral", "<s>[INST] Sys\n\nQ1 [/INST] A1</s>[INST] Q2 [/INST]"},
        {"gemma", "<s><start_of_turn>user\nSys\n\nQ1<end_of_turn>\n<start_of_turn>model\nA1<end_of_turn>\n"
                  "<start_of_turn>user\nQ2<end_of_turn>\n<start_of_turn>model\n"},
        {"deepseek", "<s>Sys<｜User｜>Q1<｜Assistant｜>A1<｜end▁of▁sentence｜><｜User｜>Q2<｜Assistant｜>"},
        {"plain", "System: Sys\nUser: Q1\nAssistant: A1\nUser: Q2\nAssistant:"},
    };
    for (int i = 0; pf_chat_builtin(i); i++) {
        const char *name = pf_chat_builtin(i);
        char *out;
        size_t len, n;
        const char *text = pf_tmpl_builtin(name, &len);
        pf_status st = render(text, len, context, &out, &n);
        expect(st == PF_OK, name, pf_last_error());
        for (size_t k = 0; st == PF_OK && k < sizeof known / sizeof *known; k++)
            if (strcmp(known[k].name, name) == 0)
                expect(n == strlen(known[k].want) && memcmp(out, known[k].want, n) == 0, name,
                       "renders something else");
        pf_free(out);
    }
}

/* More names than a search one after the other may go over unseen, in a loop that looks for one outside of them; names
 * as long as a template holds, of an attribute and of a macro's parameters. */
static void test_hostile_names(void)
{
    enum { MANY = 12000, LONG = 100000, CAP = 256 << 10 };
    char *text = malloc(CAP), *name = malloc(LONG + 1);
    if (!text || !name)
        abort();
    size_t n = (size_t)sprintf(text, "{%% set out = 1 %%}{%% for i in range(1) %%}");
    for (int i = 0; i < MANY; i++)
        n += (size_t)sprintf(text + n, "{%%set v%x=1%%}", i);
    n += (size_t)sprintf(text + n, "{%% for i in range(100000) %%}"
                         "{%% if out and out and out and out and out and out %%}"
                         "{%% endif %%}{%% endfor %%}{%% endfor %%}");
    check_hostile(text, n, "many variables");
    memset(name, 'a', LONG);
    name[LONG] = 0;
    n = (size_t)sprintf(text, "{%% set d = {'%s': 1} %%}{%% for i in range(100000) %%}{%% for i in range(1000) %%}"
                        "{%% set x = d.%s %%}{%% endfor %%}{%% endfor %%}", name, name);
    check_hostile(text, n, "a long attribute");
    name[7000] = 0;
    n = (size_t)sprintf(text, "{%% macro f(");
    for (int i = 0; i < 16; i++)
        n += (size_t)sprintf(text + n, "%s%s%x", i ? ", " : "", name, i);
    n += (size_t)sprintf(text + n, ") %%}{%% endmacro %%}{%% for i in range(100000) %%}{%% for i in range(1000) %%}"
                         "{%% set x = f(");
    for (int i = 0; i < 16; i++)
        n += (size_t)sprintf(text + n, "%s%s%x=1", i ? ", " : "", name, 15 - i);
    n += (size_t)sprintf(text + n, ") %%}{%% endfor %%}{%% endfor %%}");
    check_hostile(text, n, "long parameters");
    free(text);
    free(name);
}

/* A render that may print so many bytes ends soon after them, and is not stopped by what it puts together and does not
 * print. */
static void test_bounded_output(void)
{
    static const struct {
        const char *tmpl;
        bool fits;                   /* 1000 bytes */
    } cases[] = {
        { "{% for i in range(100) %}0123456789{% endfor %}", true },
        { "{% for i in range(100) %}0123456789{% endfor %}x", false },
        { "{% for i in range(100000) %}{% for i in range(1000) %}0123456789{% endfor %}{% endfor %}", false },
        { "{% set s %}{% for i in range(1000) %}0123456789{% endfor %}{% endset %}{{ s[:10] }}", true },
        { "{% macro f() %}{% for i in range(1000) %}0123456789{% endfor %}{% endmacro %}{{ f() | length }}", true },
        { "{% macro f() %}{% for i in range(1000) %}0123456789{% endfor %}{% endmacro %}{{ f() }}", false },
        { "{% filter length %}{% for i in range(1000) %}0123456789{% endfor %}{% endfilter %}", true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pf_tmpl *t;
        char *out;
        size_t n;
        pf_status st = pf_tmpl_parse(&t, cases[i].tmpl, strlen(cases[i].tmpl));
        expect(st == PF_OK, cases[i].tmpl, pf_last_error());
        st = pf_tmpl_render(t, "{}", 2, 0, 1000, NULL, &out, &n);
        expect(st == (cases[i].fits ? PF_OK : PF_ECONTEXT), cases[i].tmpl, pf_last_error());
        pf_free(out);
        pf_tmpl_close(&t);
    }
}

int main(void)
{
    test_public();
    test_bounded_output();
    test_hostile_names();
    test_builtins();
    test_failing_allocations();
    test_context_depth();
    test_hostile();
    expect(live() == 0, "the end", "memory is left");
    printf(n_failed ? "%d failed\n" : "all passed\n", n_failed);
    return n_failed ? 1 : 0;
}
