/* Promises of the reply parser that goldens do not show: it may be cut anywhere and has told nothing it takes back,
 * hostile text of a megabyte takes linear time in every family, failing allocations leak nothing, and what it says to a
 * sampler.
 *
 *     test_parse [FOLDER]       with the chat templates in FOLDER: their families are known */
#define _GNU_SOURCE
#include <dirent.h>
#include <time.h>

#include "base/pf_mem.h"
#include "check.h"
#include "gathered.h"
#include "reply/families.h"
#include "reply/reply.h"
#include "text/utf8.h"

#define M3 "]<]minimax[>["

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "\"s\": {\"type\": \"string\"}, \"n\": {\"type\": [\"number\", \"null\"]}, \"u\": {\"anyOf\": [{\"type\": "
    "\"string\"}, {\"$ref\": \"#/properties/o\"}]}, \"o\": {\"type\": \"object\"}, \"e\": {\"enum\": [1, true]}}}}},"
    " {\"name\": \"g.h\"}, {\"name\": \"k\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "\"l\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/i\"}}, \"m\": {\"type\": \"array\"}, \"p\": {"
    "\"type\": \"object\"}, \"s\": {\"type\": \"string\"}, \"q\": {\"type\": \"array\", \"items\": {\"type\": "
    "\"integer\"}}}, "
    "\"$defs\": {\"i\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}}}}}]";

static struct pf_reply_opts opts(const char *family, bool in_reasoning)
{
    return (struct pf_reply_opts){ .family = family, .tools_json = tools, .tools_len = sizeof tools - 1,
                                   .in_reasoning = in_reasoning };
}

/* ---- What comes out ---------------------------------------------------------------------------------------------- */

/* calls: "name#id arguments\n" for each. */
static const struct { const char *family; bool open; const char *text, *reasoning, *content, *calls; } cases[] = {
    { "hermes", false, " \n<think> a </think>\n\nb \n", "a", "b", "" },
    { "hermes", true, "<think>a</think>b", "a", "b", "" },
    { "hermes", false, "</think>b <think> c", "", "b <think> c", "" },
    { "hermes", false, "a<tool_call>{'name': 'f', 'arguments': {'s': 'it\\'s \\d', n: .5}}</tool_call>b<|im_end|>", "",
      "a\nb", "f# {\"s\": \"it's \\\\d\", \"n\": 0.5}\n" },
    { "hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"\\ud83d\\ude00\\ud800x\\u0007\"}}",
      "", "",
      "f# {\"s\": \"\xF0\x9F\x98\x80\xEF\xBF\xBDx\\u0007\"}\n" },
    { "hermes", false, "<tool_call>{\"name\": \"f\"}</tool_call>", "", "", "f# {}\n" },
    { "hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 12, \"s\": nope}}</tool_call> x", "", "x",
      "f# {\"n\": 12}\n" },
    { "hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": {?<tool_call>{\"name\": \"g.h\"}", "", "",
      "f# {}\ng.h# {}\n" },
    { "hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": [007, 1]}}", "", "", "f# {\"n\": []}\n" },
    { "hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": [5., +.5, -0e+1]}}", "", "",
      "f# {\"n\": [5.0, 0.5, -0e+1]}\n" },
    { "qwen3-coder", false, "<tool_call><function=f><parameter=s>a</parameter><tool_call><function=g.h>", "", "",
      "f# {\"s\": \"a\"}\ng.h# {}\n" },
    { "hermes", false, "<tool_call>{\"name\": \"f\", \"arguments\": null, \"id\": \"i\"}</tool_call>", "", "",
      "f#i {}\n" },
    { "hermes", false, "<tool_call>{\"name\": \"not a name\", \"arguments\": {}}</tool_call>", "",
      "<tool_call>{\"name\": \"not a name\", \"arguments\": {}}</tool_call>", "" },
    { "hermes", false, "<tool_call>no<tool_call>{\"name\": \"g.h\", \"arguments\": {}}</tool_call>", "",
      "<tool_call>no",
      "g.h# {}\n" },
    { "hermes", false, "a\xC3(\xE2\x82", "", "a\xEF\xBF\xBD(", "" },
    { "qwen3-coder", false, "<tool_call><function=f><parameter=n> 007 </parameter><parameter=e>True</parameter>"
      "<parameter=u>{'a': [None]}</parameter><parameter=x>1</parameter></function></tool_call>", "", "",
      "f# {\"n\": \" 007 \", \"e\": true, \"u\": {\"a\": [null]}, \"x\": \"1\"}\n" },
    { "qwen3-coder", false, "<function=nobody>\n</function> and <function=f>", "", "<function=nobody>\n</function> and",
      "f# {}\n" },
    { "qwen3-coder", false, "<tool_call><function=f><parameter=s>\na</parameter> b\n</parameter>\n</function>", "", "",
      "f# {\"s\": \"a</parameter> b\"}\n" },
    { "gpt-oss", false, "<|channel|>commentary<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>"
      "commentary to=functions.g.h<|constrain|>json<|message|>{}<|call|><|start|>assistant to=functions.f<|channel|>"
      "analysis<|message|>{\"n\": 1", "a", "", "g.h# {}\nf# {}\n" },
    { "gpt-oss", false, " plain <|return|>", "", "plain", "" },
    { "gpt-oss", false, "<|channel|>final<|mess", "", "", "" },
    { "gpt-oss", true, "a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "a", "b", "" },
    { "glm", false, "<tool_call>f<arg_key>n</arg_key><arg_value>null</arg_value><arg_key>s</arg_key></tool_call>",
      "", "",
      "f# {\"n\": null}\n" },
    { "deepseek-dsml", false, "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"n\" "
      "string=\"false\">[1]</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>", "", "", "f# {\"n\": [1]}\n" },
    { "kimi-k2", false, "<|tool_call_begin|>functions.g.h:7<|tool_call_argument_begin|>{}<|tool_call_end|>", "", "",
      "g.h#functions.g.h:7 {}\n" },
    { "mistral", false, "[TOOL_CALLS]f[CALL_ID]abc[ARGS]{}[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": \"{}\"}]",
      "", "",
      "f#abc {}\nf# {}\n" },
    { "minimax-m3", false, "<mm:think>a</mm:think>b" M3 "<tool_call>\n" M3 "<invoke name=\"f\">" M3 "<s>12" M3 "</s>" M3
      "<n>-1.5" M3 "</n>" M3 "</invoke>\n" M3 "<invoke name=\"g.h\">" M3 "</invoke>\n" M3 "</tool_call>[e~[", "a", "b",
      "f# {\"s\": \"12\", \"n\": -1.5}\ng.h# {}\n" },
    { "minimax-m3", false, M3 "<tool_call>" M3 "<invoke name=\"k\">\n" M3 "<l>" M3 "<item>" M3 "<a> 1" M3 "</a>" M3
      "<b>1" M3 "</b>" M3 "</item>\n" M3 "<item>{'a': 2}" M3 "</item>" M3 "</l>" M3 "<m>" M3 "</m>" M3 "<p>" M3
      "<item>" M3 "<item>x<" M3 "</item>" M3 "</item>" M3 "</p>" M3 "<s>" M3 "</s>" M3 "<q>[1]" M3 "</q>" M3
      "</invoke>" M3 "</tool_call>c", "", "c",
      "k# {\"l\": [{\"a\": 1, \"b\": \"1\"}, {\"a\": 2}], \"m\": [], \"p\": {\"item\": [\"x<\"]}, "
      "\"s\": \"\", \"q\": [1]}\n" },
    { "minimax-m3", true, "</mm:think>" M3 "<tool_call>" M3 "<invoke name=\"k\">" M3 "<u>" M3 "<s>" M3 "<item>y" M3
      "</item>z" M3 "</s>" M3 "</u>" M3 "<s>w]<] " M3 "</invoke>" M3 "</tool_call>", "", "",
      "k# {\"u\": {\"s\": [\"y\"]}, \"s\": \"w]<] \"}\n" },
    { "llama-3", false, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g.h\", \"parameters\": {}}", "", "",
      "f# {}\ng.h# {}\n" },
    { "llama-3", false, "<|python_tag|>print(1)", "", "<|python_tag|>print(1)", "" },
    { "llama-4", false, "[f(s='a', n=-1.5e3), g.h()]", "", "", "f# {\"s\": \"a\", \"n\": -1.5e3}\ng.h# {}\n" },
    { "gemma-4", false, "<|tool_call>call:f{s:<|\"|><|\"<<|\"|>,o:{a:[<|\"|>b<|\"|>]}}<tool_call|>", "", "",
      "f# {\"s\": \"<|\\\"<\", \"o\": {\"a\": [\"b\"]}}\n" },
    { "solar", false,
      "<|tool_calls|><|tool_call:begin|>id1<|tool_call:name|>f<|tool_call:args|>{}<|tool_call:end|>", "",
      "", "f#id1 {}\n" },
    { "hy3-preview", true, "a</think><tool_calls><tool_call>f<tool_sep><arg_key>s</arg_key><arg_value>b</arg_value>"
      "</tool_call></tool_calls>", "a", "", "f# {\"s\": \"b\"}\n" },
    { "generic", false, "[{\"name\": \"f\", \"arguments\": {}}]", "", "", "f# {}\n" },
    { "generic", false, "[1, 2]", "", "[1, 2]", "" },
    { "generic", false, "[THINK]a[/THINK]b", "a", "b", "" },
    { "hermes", false, "<tool_call>{\"name\": \"f\"}</tool_call> and <tool_call>{\"na", "", "and <tool_call>{\"na",
      "f# {}\n" },
    { "generic", false, "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g.h\"", "", "", "f# {}\ng.h# {}\n" },
};
enum { N_CASES = sizeof cases / sizeof *cases };

static void test_cases(void)
{
    unsigned random = 1;
    for (int i = 0; i < N_CASES; i++) {
        struct pf_reply_opts o = opts(cases[i].family, cases[i].open);
        struct gathered g = { 0 }, pieces = { 0 };
        size_t n = strlen(cases[i].text);
        CHECK(gather_reply(&g, &o, cases[i].text, n, n, NULL) == PF_OK && !g.wrong, "case %d: %s", i, g.wrong);
        CHECK(piece_is(&g.reasoning, cases[i].reasoning), "case %d: \"%.*s\"", i, (int)g.reasoning.n, g.reasoning.p);
        CHECK(piece_is(&g.content, cases[i].content), "case %d: \"%.*s\"", i, (int)g.content.n, g.content.p);
        CHECK(piece_is(&g.calls, cases[i].calls), "case %d: \"%.*s\"", i, (int)g.calls.n, g.calls.p);
        for (size_t longest = 1; longest < 8; longest++) {
            CHECK(gather_reply(&pieces, &o, cases[i].text, n, longest, &random) == PF_OK && !pieces.wrong &&
                  gathered_equals(&pieces, &g), "case %d in pieces of %zu at most: %s", i, longest, pieces.wrong);
            gathered_free(&pieces);
        }
        gathered_free(&g);
    }
}

/* Without tools a call's text is content. */
static void test_without_tools(void)
{
    static const char text[] = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
    struct pf_reply_opts o = { .family = "hermes" };
    struct gathered g = { 0 };
    CHECK(gather_reply(&g, &o, text, sizeof text - 1, 1, NULL) == PF_OK && !g.wrong, "%s", g.wrong);
    CHECK(piece_is(&g.content, text) && g.calls.n == 0, "%.*s", (int)g.content.n, g.content.p);
    gathered_free(&g);
}

/* ---- Cut anywhere ------------------------------------------------------------------------------------------------ */

static bool begins_with(const struct piece *whole, const struct piece *begin)
{
    return begin->n <= whole->n && (begin->n == 0 || memcmp(whole->p, begin->p, begin->n) == 0);
}

/* What was told of the first n bytes is a beginning of what is told of all; ended there, it is still in order. */
static void test_cuts(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct pf_reply_opts o = opts(cases[i].family, cases[i].open);
        size_t len = strlen(cases[i].text);
        struct gathered whole = { 0 };
        gather_reply(&whole, &o, cases[i].text, len, len, NULL);
        for (size_t n = 0; n < len; n++) {
            struct gathered told = { 0 }, ended = { 0 };
            pf_reply *r;
            pf_status st = pf_reply_open(&r, &o);
            CHECK(st == PF_OK && pf_reply_feed(r, cases[i].text, n, gather, &told) == PF_OK, "case %d", i);
            pf_reply_close(&r);
            CHECK(!told.wrong && begins_with(&whole.content, &told.content) &&
                  begins_with(&whole.reasoning, &told.reasoning) && begins_with(&whole.calls, &told.calls),
                  "case %d, byte %zu", i, n);
            CHECK(gather_reply(&ended, &o, cases[i].text, n, n, NULL) == PF_OK && !ended.wrong, "case %d, byte %zu: %s",
                  i, n, ended.wrong);
            gathered_free(&told);
            gathered_free(&ended);
        }
        gathered_free(&whole);
    }
}

/* ---- Cut before a call's name is whole --------------------------------------------------------------------------- */

/* Two calls of each family, up to the second one's name. */
static const struct { const char *family, *calls; } named[] = {
    { "hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g.h" },
    { "qwen3-coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g.h" },
    { "qwen3.5", "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g.h" },
    { "nemotron-3", "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<TOOLCALL>\n[{\"name\": \"g.h" },
    { "seed-oss", "<seed:tool_call>\n<function="
      "f>\n</function>\n</seed:tool_call>\n<seed:tool_call>\n<function=g.h" },
    { "gpt-oss", "<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant to=functions.g.h" },
    { "glm", "<tool_call>f</tool_call>\n<tool_call>g.h" },
    { "ling", "<tool_call>f\n</tool_call>\n<tool_call>{\"name\": \"g.h" },
    { "deepseek-v3", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
      "f\n```json\n{}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g.h" },
    { "deepseek-v3.1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
      "f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g.h" },
    { "deepseek-dsml", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\""
      "f\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g.h" },
    { "kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions."
      "f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.g.h" },
    { "minimax-m2", "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>\n<invoke name=\"g.h" },
    { "minimax-m3", M3 "<tool_call>\n" M3 "<invoke name=\"f\">\n" M3 "</invoke>\n" M3 "<invoke name=\"g.h" },
    { "llama-3", "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g.h" },
    { "llama-4", "[f(), g.h" },
    { "mistral", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g.h" },
    { "granite", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g.h" },
    { "ernie-4.5", "<tool_call>\n{\"name\": \""
      "f\", \"arguments\": {}}\n</tool_call>\n\n<tool_call>\n{\"name\": \"g.h" },
    { "hunyuan", "<tool_calls:opensource>\n<tool_call:opensource>"
      "f<tool_sep:opensource>\n</tool_call:opensource>\n<tool_call:opensource>g.h" },
    { "hy3-preview", "<tool_calls>\n<tool_call>f<tool_sep>\n</tool_call>\n<tool_call>g.h" },
    { "gemma-4", "<|tool_call>call:f{}<tool_call|><|tool_call>call:g.h" },
    { "lfm2", "<|tool_call_start|>[f(), g.h" },
    { "solar", "<|tool_calls|><|tool_call:begin|>id<|tool_call:name|>"
      "f<|tool_call:args|>{}<|tool_call:end|><|tool_call:begin|>id<|tool_call:name|>g.h" },
    { "generic", "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g.h" },
};
enum { N_NAMED = sizeof named / sizeof *named };

/* Of the first n bytes, whole and in random pieces, a beginning of a call is content if no call is in front of it, and
 * none is forced. Harmony's headers never are. */
static void check_cut_name(const char *family, const char *text, size_t n, bool forced)
{
    static unsigned random = 1;
    struct pf_reply_opts o = opts(family, false);
    struct gathered whole = { 0 }, pieces = { 0 };
    o.forced = forced;
    CHECK(gather_reply(&whole, &o, text, n, n, NULL) == PF_OK && !whole.wrong, "%s, byte %zu: %s", family, n,
          whole.wrong);
    CHECK(gather_reply(&pieces, &o, text, n, 6, &random) == PF_OK && !pieces.wrong && gathered_equals(&whole, &pieces),
          "%s, byte %zu in pieces: %s", family, n, pieces.wrong);
    bool is_text = !forced && whole.n_calls == 0 && strcmp(family, "gpt-oss") != 0;
    size_t n_text = is_text ? pf_utf8_complete(text, n) : 0;
    while (n_text && strchr(" \n", text[n_text - 1]))
        n_text--;
    CHECK(whole.content.n == n_text && (n_text == 0 || memcmp(whole.content.p, text, n_text) == 0) &&
          whole.reasoning.n == 0 && whole.n_calls < 2, "%s, byte %zu: content \"%.*s\", calls %.*s", family, n,
          (int)whole.content.n, whole.content.p, (int)whole.calls.n, whole.calls.p);
    gathered_free(&whole);
    gathered_free(&pieces);
}

static void test_cut_names(void)
{
    for (int i = 0; i < N_NAMED; i++) {
        size_t len = strlen(named[i].calls);
        struct gathered g = { 0 };
        struct pf_reply_opts o = opts(named[i].family, false);
        for (size_t n = 0; n <= len; n++) {
            check_cut_name(named[i].family, named[i].calls, n, false);
            check_cut_name(named[i].family, named[i].calls, n, true);
        }
        CHECK(gather_reply(&g, &o, named[i].calls, len, len, NULL) == PF_OK && g.n_calls == 1, "%s", named[i].family);
        gathered_free(&g);
    }
    for (int i = 0; pf_family_at(i); i++)
        CHECK(i < N_NAMED && strcmp(named[i].family, pf_family_at(i)->name) == 0, "%s", pf_family_at(i)->name);
}

/* A forced call that is cut within the reasoning, or in its marker, leaves the reasoning as it was. */
static void test_cut_in_thought(void)
{
    static const char text[] = "a < b <tool_call>\n<function=f";
    for (size_t n = 6; n < sizeof text; n++) {
        struct pf_reply_opts o = opts("qwen3.5", true);
        struct gathered g = { 0 };
        o.forced = true;
        CHECK(gather_reply(&g, &o, text, n, n, NULL) == PF_OK && piece_is(&g.reasoning, "a < b") && g.content.n == 0 &&
              g.n_calls == 0, "byte %zu: \"%.*s\"", n, (int)g.reasoning.n, g.reasoning.p);
        gathered_free(&g);
    }
}

/* Where the prompt ends in the content, white space in front is text, and so is what would begin a header or a call
 * only at a reply's beginning. */
static void test_gone_on_with(void)
{
    static const struct { const char *family, *text, *content; } texts[] = {
        { "hermes", " miles.", " miles." },
        { "hermes", "\n\nto=be", "\n\nto=be" },
        { "gpt-oss", " miles.", " miles." },
        { "gpt-oss", "to=be<|return|>", "to=be" },
        { "llama-3", "{\"name\": \"get_weather\"} is no call", "{\"name\": \"get_weather\"} is no call" },
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct pf_reply_opts o = opts(texts[i].family, false);
        struct gathered g = { 0 };
        o.in_content = true;
        CHECK(gather_reply(&g, &o, texts[i].text, strlen(texts[i].text), 1, NULL) == PF_OK && g.n_calls == 0 &&
              piece_is(&g.content, texts[i].content), "%s: \"%.*s\"", texts[i].text, (int)g.content.n, g.content.p);
        gathered_free(&g);
    }
}

/* ---- Hostile text ------------------------------------------------------------------------------------------------ */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

enum { HOSTILE_BYTES = 1 << 20, LESS = 1 << 16 };

/* A head, then a unit again and again up to so many bytes. Pieces of a few bytes, as tokens come. */
static void hostile(const char *family, const char *head, const char *unit, size_t bytes)
{
    static char text[HOSTILE_BYTES];
    struct pf_reply_opts o = opts(family, false);
    struct gathered g = { 0 };
    size_t n = strlen(head), len = strlen(unit);
    memcpy(text, head, n);
    for (; len && n + len <= bytes; n += len)
        memcpy(text + n, unit, len);
    double start = now_s();
    CHECK(gather_reply(&g, &o, text, n, 3, NULL) == PF_OK && !g.wrong, "%s: %s: %s", family, unit, g.wrong);
    double took = now_s() - start;
    CHECK(took < 0.4 + (double)bytes * 3e-6, "%s: \"%s\" and again \"%s\" took %.1f s", family, head, unit, took);
    gathered_free(&g);
}

static void test_hostile(void)
{
    static const char *const units[] = { " ", "<", "{", "[", "\\\"", "{\"name\": ", "{\"a\":", "\n</parameter>" };
    for (int i = 0; pf_family_at(i); i++) {
        const struct pf_family *f = pf_family_at(i);
        for (const struct pf_mark *m = f->marks; m->text; m++) {
            char twice[200];
            hostile(f->name, "", m->text, LESS);
            snprintf(twice, sizeof twice, "%s{\"name\": \"f\", \"arguments\": {\"s\": \"", m->text);
            hostile(f->name, m->kind == PF_MARK_BLOCK ? twice : "", "a", LESS);
            hostile(f->name, "", m->kind == PF_MARK_BLOCK ? twice : " ", LESS);
        }
        for (size_t u = 0; u < sizeof units / sizeof *units; u++)
            hostile(f->name, f->marks[0].text, units[u], LESS);
    }
}

static void test_hostile_calls(void)
{
    static const struct { const char *family, *head, *unit; } texts[] = {
        { "hermes", "<tool_call>{\"arguments\": {\"s\": \"", "x" },
        { "hermes", "<tool_call>{\"arguments\": \"", "{" },
        { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": ", "[" },
        { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": ", "1" },
        { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"", "k" },
        { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {", "\"k\": [{}], " },
        { "hermes", "<tool_call>", " " },
        { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {?", "<tool_cal" },
        { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"", "k" },
        { "hermes", "", "<tool_call>{\"k\": '<tool_call>{\"k\": " },
        { "qwen3-coder", "<function=f><parameter=s>", "\n</parameter> " },
        { "qwen3-coder", "<function=f><parameter=s>", "\n</parameter" },
        { "qwen3-coder", "<function=f><parameter=n>", "1" },
        { "qwen3-coder", "<function=f>", "<parameter=n>1</parameter>" },
        { "qwen3-coder", "", "<function=f></function>" },
        { "qwen3-coder", "<function=f>", "<parameter" },
        { "glm", "<tool_call>f<arg_key>", "k" },
        { "gpt-oss", "", " " },
        { "gpt-oss", "", "<|channel|>" },
        { "gpt-oss", "<|channel|>", "to=functions.f " },
        { "mistral", "", "[TOOL_CALLS]f" },
        { "gemma-4", "<|tool_call>call:f{s:<|\"|>", "<|\"" },
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        hostile(texts[i].family, texts[i].head, texts[i].unit, HOSTILE_BYTES);
}

/* Tools that are larger than any, and refer to one another: looking through them ends. */
static void test_hostile_tools(void)
{
    enum { DEPTH = 400, N = 1 << 20 };
    struct piece json = { 0 };
    piece_puts(&json, "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"anyOf\": [");
    for (int i = 0; i < 3000; i++)
        piece_puts(&json, "{\"$ref\": \"#/properties/s\"}, ");
    piece_puts(&json, "{}]}}}}]");
    static const char text[] = "<function=f><parameter=s>1</parameter></function>";
    struct pf_reply_opts o = { .family = "qwen3-coder", .tools_json = json.p, .tools_len = json.n };
    struct gathered g = { 0 };
    double start = now_s();
    CHECK(gather_reply(&g, &o, text, sizeof text - 1, 1, NULL) == PF_OK && !g.wrong, "%s", g.wrong);
    CHECK(piece_is(&g.calls, "f# {\"s\": \"1\"}\n") && now_s() - start < 3, "%.*s", (int)g.calls.n, g.calls.p);
    gathered_free(&g);
    free(json.p);
}

/* ---- Arguments that are refused, allocations that fail ----------------------------------------------------------- */

static void test_refusals(void)
{
    static const char *const wrong[] = { "", "{}", "[", "[] x", "nope", "[\"a\": 1]" };
    pf_reply *r = NULL;
    struct pf_reply_opts o = { .family = "no such family" };
    CHECK(pf_reply_open(&r, &o) == PF_EINVAL && !r && strstr(pf_last_error(), "no such family"), "%s", pf_last_error());
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        o = (struct pf_reply_opts){ .tools_json = wrong[i], .tools_len = strlen(wrong[i]) };
        CHECK(pf_reply_open(&r, &o) == PF_EINVAL && !r, "%s", wrong[i]);
    }
    o = (struct pf_reply_opts){ 0 };
    struct gathered g = { 0 };
    CHECK(pf_reply_open(&r, &o) == PF_OK && pf_reply_end(r, gather, &g) == PF_OK, "an empty reply");
    CHECK(pf_reply_feed(r, "a", 1, gather, &g) == PF_EINVAL, "a reply goes on behind its end");
    pf_reply_close(&r);
    pf_reply_close(&r);
    gathered_free(&g);
}

static uint64_t live(void)
{
    struct pf_mem_stats s;
    pf_mem_stats_get(&s);
    return s.n_live;
}

static void test_failing_allocations(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct pf_reply_opts o = opts(cases[i].family, cases[i].open);
        size_t len = strlen(cases[i].text);
        struct gathered whole = { 0 };
        pf_status st = PF_ENOMEM;
        gather_reply(&whole, &o, cases[i].text, len, len, NULL);
        for (uint64_t n = 1; st == PF_ENOMEM && n < 1000; n++) {
            struct gathered g = { 0 };
            pf_mem_fail_nth(n);
            st = gather_reply(&g, &o, cases[i].text, len, 5, NULL);
            pf_mem_fail_nth(0);
            CHECK(live() == 0 && (st == PF_ENOMEM || gathered_equals(&g, &whole)), "case %d, allocation %d", i, (int)n);
            CHECK(begins_with(&whole.content, &g.content) && begins_with(&whole.calls, &g.calls),
                  "case %d, allocation %d: \"%.*s\"", i, (int)n, (int)g.calls.n, g.calls.p);
            gathered_free(&g);
        }
        CHECK(st == PF_OK, "case %d: %s", i, pf_strstatus(st));
        gathered_free(&whole);
    }
}

/* ---- For the sampler --------------------------------------------------------------------------------------------- */

/* inside: -1: the text does not end in arguments that can be held; else how many of its bytes are in them. */
static const struct { const char *family, *text; int inside; } ends[] = {
    { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\"", -1 },
    { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\":", 0 },
    { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a", 4 },
    { "hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}", -1 },
    { "hermes", "<tool_call>{\"arguments\": {", -1 },
    { "llama-3", "{\"name\": \"f\", \"parameters\": ", 1 },
    { "kimi-k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>", 0 },
    { "mistral", "[TOOL_CALLS]f[ARGS]{\"s\":", 5 },
    { "gpt-oss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>", 0 },
    { "deepseek-v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n", -1 },
    { "deepseek-v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{", 2 },
    { "gemma-4", "<|tool_call>call:f", -1 },
    { "gemma-4", "<|tool_call>call:f{", 1 },
    { "gemma-4", "<|tool_call>call:f{s:<|\"|>x", 9 },
    { "gemma-4", "<|tool_call>call:f{s:<|\"|>x<|\"|>}", -1 },
    { "lfm2", "<|tool_call_start|>[f", -1 },
    { "lfm2", "<|tool_call_start|>[f(", 0 },
    { "lfm2", "<|tool_call_start|>[f(s=\"x", 4 },
    { "lfm2", "<|tool_call_start|>[f(s=\"x\")", -1 },
    { "lfm2", "<|tool_call_start|>[{\"name\": \"f\", \"arguments\":", 0 },
    { "llama-4", "[f(s=1, ", 5 },
    { "qwen3-coder", "<function=f", -1 },
    { "qwen3-coder", "<function=f>", 0 },
    { "qwen3-coder", "<tool_call>\n<function=f>\n<parameter=s>\nxé", 18 },
    { "qwen3-coder", "<function=f>\n<parameter=s>\nx\n</parameter>\n</function>", -1 },
    { "glm", "<tool_call>f\n", -1 },
    { "glm", "<tool_call>f\n<arg_key>", 9 },
    { "minimax-m2", "<minimax:tool_call>\n<invoke name=\"f\">\n<p", 3 },
};

static void test_in_json(void)
{
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct pf_reply_opts o = opts(ends[i].family, false);
        struct gathered g = { 0 };
        struct pf_reply_arguments in = { 0 };
        pf_reply *r;
        CHECK(pf_reply_open(&r, &o) == PF_OK, "%s", pf_last_error());
        pf_reply_feed(r, ends[i].text, strlen(ends[i].text), gather, &g);
        bool yes = pf_reply_in_arguments(r, &in);
        CHECK(yes ? (int)in.n_inside == ends[i].inside && in.n_name == 1 && in.name[0] == 'f' : ends[i].inside < 0,
              "%s: %d, %zu", ends[i].text, yes, in.n_inside);
        bool json = strchr(ends[i].text, '{') && strchr(ends[i].text, '"') && strstr(ends[i].text, "\"f\"");
        CHECK(!yes || !json || !in.own_form, "%s", ends[i].text);
        pf_reply_close(&r);
        gathered_free(&g);
    }
}

/* ---- Families ---------------------------------------------------------------------------------------------------- */

static void test_open_prompts(void)
{
    CHECK(pf_reply_is_open("hermes", "<|im_start|>assistant\n<think>\n", 30), "a prompt with <think>");
    CHECK(!pf_reply_is_open("hermes", "<think>\n\n</think>\n\n", 19), "a prompt with </think>");
    CHECK(!pf_reply_is_open("hermes", "", 0) && !pf_reply_is_open("no such family", "<think>", 7), "no prompt");
    CHECK(pf_reply_is_open("gemma-4", "<|channel>thought\n", 18), "Gemma's channel");
}

static void test_marks(void)
{
    static const struct { const char *family, *token; bool is; } tokens[] = {
        { "gpt-oss", "<|constrain|>", true }, { "gpt-oss", "<|endoftext|>", false }, { "hermes", "<think>", true },
        { "deepseek-dsml", "\xEF\xBD\x9C" "DSML\xEF\xBD\x9C", true }, { "gemma-4", "<|\"|>", true },
        { "gemma-4", "<|channel>", true }, { "mistral", "[CALL_ID]", true }, { "hermes", "<s>", false },
        { "kimi-k2", "<|tool_call_argument_begin|>", true }, { "hermes", "", false },
    };
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        struct pf_reply_opts o = { .family = tokens[i].family };
        pf_reply *r;
        CHECK(pf_reply_open(&r, &o) == PF_OK, "%s", pf_last_error());
        CHECK(pf_reply_is_mark(r, tokens[i].token, strlen(tokens[i].token)) == tokens[i].is, "%s", tokens[i].token);
        pf_reply_close(&r);
    }
}

static const struct { const char *file, *family; } of_templates[] = {
    { "chatml", "generic" },          { "deepseek-r1-distill", "deepseek-v3" }, { "deepseek-v3", "deepseek-v3" },
    { "deepseek-v3.1", "deepseek-v3.1" }, { "deepseek-v3.2", "deepseek-dsml" }, { "gemma-4", "gemma-4" },
    { "glm-4.5", "glm" },             { "glm-4.6", "glm" },                     { "glm-4.7-flash", "glm" },
    { "gpt-oss", "gpt-oss" },         { "granite-4.0", "hermes" },              { "kimi-k2-0711", "kimi-k2" },
    { "kimi-k2", "kimi-k2" },         { "kimi-k2-thinking", "kimi-k2" },        { "lfm2-8b-a1b", "lfm2" },
    { "llama-3.1", "llama-3" },       { "llama-3", "generic" },                 { "minimax-m2", "minimax-m2" },
    { "mistral-nemo", "mistral" },    { "mistral-small-3.2", "mistral" },       { "mixtral-v0.1", "generic" },
    { "nemotron-3-nano", "qwen3.5" }, { "phi-3.5", "generic" },                 { "qwen2.5", "hermes" },
    { "qwen3-coder", "qwen3-coder" }, { "qwen3.5", "qwen3.5" },                 { "qwen3.8", "qwen3.5" },
    { "qwen3", "hermes" },            { "solar-open", "solar" },                { "step-3.5-flash", "qwen3.5" },
};

static void test_templates(const char *folder)
{
    static char text[1 << 19];
    for (size_t i = 0; i < sizeof of_templates / sizeof *of_templates; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s.jinja", folder, of_templates[i].file);
        FILE *f = fopen(path, "re");
        size_t n = f ? fread(text, 1, sizeof text, f) : 0;
        const char *family = pf_reply_family_of(text, n);
        CHECK(!f || strcmp(family, of_templates[i].family) == 0, "%s: %s", of_templates[i].file, family);
        if (f)
            fclose(f);
    }
}

int main(int argc, char **argv)
{
    test_cases();
    test_without_tools();
    test_cuts();
    test_cut_names();
    test_cut_in_thought();
    test_failing_allocations();
    test_refusals();
    test_in_json();
    test_open_prompts();
    test_gone_on_with();
    test_marks();
    if (argc > 1)
        test_templates(argv[1]);
    test_hostile_tools();
    test_hostile_calls();
    test_hostile();
    return check_status();
}
