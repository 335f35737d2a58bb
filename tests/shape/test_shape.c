/* Replies that grammars of src/shape allow: outputs of random tokens are read by the family's parser, and must hold the
 * calls and the content that they were made to hold. For every family, on a vocabulary whose marks are tokens of their
 * own and on one that spells them. */
#include "../grammar/json_vocab.h"
#include "../reply/gathered.h"
#include "check.h"
#include "reply/families.h"
#include "shape/shape_impl.h"

static const char *const marks[] = {
    "<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>", "<think:opensource>", "<|think|>",
    "</think:opensource>", "<|channel>", "<channel|>", "<tool_call>", "</tool_call>", "<|channel|>", "<|message|>",
    "<|start|>", "<|end|>", "<|constrain|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
    "｜DSML｜", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<|tool_calls_section_end|>", "<minimax:tool_call>", "</minimax:tool_call>", "[TOOL_CALLS]",
    "[ARGS]", "<tool_calls:opensource>", "<tool_call:opensource>", "<tool_sep:opensource>", "<arg_key:opensource>",
    "</arg_key:opensource>", "<arg_value:opensource>", "</arg_value:opensource>", "</tool_call:opensource>",
    "</tool_calls:opensource>", "<|tool_call>", "<tool_call|>", "<|tool_call_start|>", "<|tool_call_end|>",
    "<|tool_calls|>", "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>",
    "<seed:tool_call>", "</seed:tool_call>", "]<]minimax[>[", "<mm:think>", "</mm:think>", "<|\"|>",
};
enum { N_MARKS = sizeof marks / sizeof *marks };

#define WEATHER "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, \"days\": {\"type\": " \
    "\"integer\"}, \"unit\": {\"$ref\": \"#/$defs/unit\"}, \"deep\": {\"$ref\": \"#/$defs/deep\"}, " \
    "\"list\": {\"type\": \"array\", \"items\": {\"type\": \"object\", \"properties\": {\"t\": {\"type\": " \
    "\"boolean\"}, \"n\": {\"type\": \"array\", \"items\": {\"type\": \"integer\"}}}, \"additionalProperties\": " \
    "false}}}, " \
    "\"required\": [\"city\", \"unit\", \"deep\"], \"additionalProperties\": false, \"$defs\": {\"unit\": {\"enum\": " \
    "[\"c\", \"f\"]}, \"deep\": {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"boolean\"}}, " \
    "\"required\": [\"x\"], \"additionalProperties\": false}}}"
#define NEWS "{\"properties\": {\"about\": {\"type\": [\"integer\", \"null\"]}}}"
static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": " WEATHER "}}, "
    "{\"type\": \"function\", \"function\": {\"name\": \"weather_news\", \"parameters\": " NEWS "}}, "
    "{\"type\": \"function\", \"function\": {\"name\": \"nothing\"}}]";
/* What notations of their own write in other ways than JSON. */
#define TRIP "{\"type\": \"object\", \"properties\": {\"no id\": {\"type\": \"string\", \"pattern\": " \
    "\"^<[a-z|\\\"]{1,3}\"}, \"tags\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"minLength\": 1, " \
    "\"maxLength\": 3}}, \"fixed\": {\"const\": {\"a b\": [1, \"x\", null, true]}}, \"any\": {}}, \"required\": " \
    "[\"no id\", \"fixed\"], \"additionalProperties\": {\"type\": [\"boolean\", \"null\"]}}"
static const char trips[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"trip\", \"parameters\": " TRIP "}}]";
static const struct { const char *name, *schema; } offered[] = {
    { "weather", WEATHER }, { "weather_news", "{\"type\": \"object\"}" }, { "nothing", "{\"type\": \"object\"}" },
    { "trip", TRIP }
};
enum { N_OFFERED = sizeof offered / sizeof *offered };

static pf_vocab *open_marks_vocab(bool with_marks)
{
    struct gguf f = { 0 };
    pf_vocab *v = NULL;
    int n_marks = with_marks ? N_MARKS : 0;
    put_str(&f, "tokenizer.ggml.model", "gpt2");
    put_str(&f, "tokenizer.ggml.pre", "gpt-2");
    put_array(&f, "tokenizer.ggml.tokens", PF_GGUF_STRING, (uint64_t)(257 + n_marks));
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        put_mapped_text(&f, &byte, 1, 0);
    }
    for (int i = 0; i < n_marks; i++)
        put_text(&f, marks[i], strlen(marks[i]));
    put_text(&f, "<|the end|>", 11);
    put_array(&f, "tokenizer.ggml.token_type", PF_GGUF_I32, (uint64_t)(257 + n_marks));
    for (int i = 0; i < 257 + n_marks; i++)
        put_u32(&f, i < 256 ? 1 : i < 256 + n_marks && i % 2 ? 4 : 3);
    put_array(&f, "tokenizer.ggml.merges", PF_GGUF_STRING, 1);
    put_text(&f, "r u", 3);
    put_int(&f, "tokenizer.ggml.eos_token_id", 256 + n_marks);
    CHECK(open_vocab(&f, &v) == PF_OK && v, "%s", pf_last_error());
    gguf_free(&f);
    return v;
}

/* ---- Walks ------------------------------------------------------------------------------------------------------- */

struct walk {
    const struct pf_tokens *t;
    const struct pf_family *family;
    pf_matcher *mt;
    uint64_t state;
    struct piece text;               /* as the model's text is fed to a parser: marks spelt out */
};

static void say(struct walk *w, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)bytes[i] != PF_TOKEN_MARK)
            piece_add(&w->text, bytes + i, 1);
}

/* Goes on by a text, its marks as tokens; false: it may not follow. */
static bool try_text(struct walk *w, const char *text)
{
    struct piece coded = { 0 };
    size_t n = strlen(text), len;
    for (size_t i = 0; i < n; i += len) {
        char first = (char)PF_TOKEN_MARK;
        len = pf_shape_mark(w->t->vocab, text + i, n - i);
        piece_add(&coded, &first, len > 0);
        len = len ? len : 1;
        piece_add(&coded, text + i, len);
    }
    bool ok = n && pf_matcher_take_text(w->mt, coded.p, coded.n) == PF_OK;
    if (ok)
        say(w, coded.p, coded.n);
    free(coded.p);
    return ok;
}

/* What ends a text that could go on for ever. */
static bool close_something(struct walk *w)
{
    const struct pf_form *form = pf_form_of(w->family, w->t->vocab);
    static const char *const ends[] = { "\"", "}", "]", ")", "<|\"|>", "<|end|><|start|>assistant" };
    enum { N_ENDS = sizeof ends / sizeof *ends };
    if (form->value_end && try_text(w, form->value_end))
        return true;
    for (const struct pf_mark *m = w->family->marks; m->text; m++)
        if (m->kind == PF_MARK_ANSWER && try_text(w, m->text))
            return true;
    size_t first = next_number(&w->state) % N_ENDS;
    for (size_t i = 0; i < N_ENDS; i++)
        if (try_text(w, ends[(first + i) % N_ENDS]))
            return true;
    return false;
}

/* A random output; false: it found no end. */
static bool walk(struct walk *w, const pf_grammar *g)
{
    bool ended = false;
    CHECK(pf_matcher_open(&w->mt, g) == PF_OK, "%s", pf_last_error());
    for (int i = 0; i < 4000 && !ended; i++) {
        const uint64_t *mask;
        size_t n;
        if (pf_matcher_must_end(w->mt) || (pf_matcher_may_end(w->mt) && next_number(&w->state) % 3 == 0)) {
            ended = true;
            break;
        }
        if (next_number(&w->state) % 6 == 0 && close_something(w))
            continue;
        CHECK(pf_matcher_mask(w->mt, &mask) == PF_OK, "%s", pf_last_error());
        int32_t tok = any_token(mask, (int32_t)w->t->n_vocab, &w->state);
        if (tok < 0 || pf_vocab_is_end(w->t->vocab, tok))
            continue;
        CHECK(pf_matcher_take(w->mt, tok) == PF_OK, "%s", pf_last_error());
        const char *text = pf_tokens_text(w->t, tok, &n);
        say(w, text, n);
    }
    pf_matcher_close(&w->mt);
    return ended;
}

/* ---- What the parser says ---------------------------------------------------------------------------------------- */

static bool fits(const struct pf_tokens *t, const char *schema, const char *text, size_t n)
{
    pf_grammar *g = NULL;
    pf_matcher *mt = NULL;
    bool ok = pf_grammar_compile(&g, t, pf_schema_rules, schema, strlen(schema)) == PF_OK &&
              pf_matcher_open(&mt, g) == PF_OK && pf_matcher_take_text(mt, text, n) == PF_OK && pf_matcher_may_end(mt);
    pf_matcher_close(&mt);
    pf_grammar_close(&g);
    return ok;
}

/* Whether each line "name#id arguments" is a call of an offered tool, by its schema; `only`: of this one. */
static bool calls_fit(const struct pf_tokens *t, const struct gathered *g, const char *only)
{
    const char *p = g->calls.p, *end = p + g->calls.n;
    while (p < end) {
        const char *line = memchr(p, '\n', (size_t)(end - p)), *hash = memchr(p, '#', (size_t)(line - p));
        const char *space = memchr(hash, ' ', (size_t)(line - hash)), *schema = NULL;
        for (size_t i = 0; i < N_OFFERED; i++)
            if (strlen(offered[i].name) == (size_t)(hash - p) && memcmp(offered[i].name, p, (size_t)(hash - p)) == 0 &&
                (!only || strcmp(only, offered[i].name) == 0))
                schema = offered[i].schema;
        if (!schema || !fits(t, schema, space + 1, (size_t)(line - space - 1)))
            return false;
        p = line + 1;
    }
    return true;
}

/* ---- Cases ------------------------------------------------------------------------------------------------------- */

struct counts {
    int walks, ended, several, contents, reasonings;
};

static void check_output(const struct walk *w, const struct pf_reply_shape *o, struct counts *seen)
{
    struct gathered g = { 0 };
    struct pf_reply_opts opts = { .family = o->family, .tools_json = o->tools_json, .tools_len = o->tools_len,
                                  .in_reasoning = o->flags & PF_SHAPE_IN_REASONING };
    pf_status st = gather_reply(&g, &opts, w->text.p, w->text.n, w->text.n, NULL);
    bool content = o->schema && g.n_calls == 0;
    CHECK(st == PF_OK && !g.wrong, "%s: %s: %.*s", o->family, g.wrong, (int)w->text.n, w->text.p);
    CHECK(content ? fits(w->t, o->schema, g.content.p, g.content.n) : g.n_calls > 0 && g.content.n == 0,
          "%s: %d calls, content %.*s: %.*s", o->family, g.n_calls, (int)g.content.n, g.content.p, (int)w->text.n,
          w->text.p);
    CHECK(calls_fit(w->t, &g, o->tool), "%s: %.*s of %.*s", o->family, (int)g.calls.n, g.calls.p, (int)w->text.n,
          w->text.p);
    CHECK(!(o->flags & PF_SHAPE_ONE_CALL) || g.n_calls <= 1, "%s: %d calls", o->family, g.n_calls);
    seen->several += g.n_calls > 1;
    seen->contents += content;
    seen->reasonings += g.reasoning.n > 0;
    gathered_free(&g);
}

/* What the model wrote of a call that it chose itself, up to its arguments. */
static void say_beginning(struct walk *w, const struct pf_reply_shape *o)
{
    const struct pf_form *form = pf_form_of(w->family, w->t->vocab);
    const char *begin = form->begin ? form->begin : "", *name = strchr(form->call, PF_HOLE_NAME);
    say(w, begin, strlen(begin));
    say(w, form->call, (size_t)(name - form->call));
    say(w, o->tool, strlen(o->tool));
    say(w, name + 1, strcspn(name + 1, "\2\6"));
}

static void check_shape(const struct pf_tokens *t, const pf_vocab *v, const struct pf_reply_shape *o, int n,
                        struct counts *seen)
{
    struct pf_rules r = { 0 };
    pf_grammar *g = NULL;
    int32_t root = 0;
    pf_status st = pf_shape_rules(&r, v, o, &root);
    if (st == PF_OK)
        st = pf_grammar_make(&g, t, &r, root);
    CHECK(st == PF_OK, "%s: %s", o->family, pf_last_error());
    pf_rules_free(&r);
    for (int i = 0; i < n && g; i++) {
        struct walk w = { .t = t, .family = pf_family_find(o->family), .state = (uint64_t)(1000 * n + i) };
        if (o->flags & PF_SHAPE_ARGUMENTS)
            say_beginning(&w, o);
        bool ended = walk(&w, g);
        seen->walks++;
        seen->ended += ended;
        if (ended)
            check_output(&w, o, seen);
        free(w.text.p);
    }
    pf_grammar_close(&g);
}

static void check_family(const char *family, const struct pf_tokens *t, const pf_vocab *v, struct counts *seen)
{
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"q\": {\"type\": \"boolean\"}}, "
                                 "\"required\": [\"q\"], \"additionalProperties\": false}";
    struct pf_reply_shape o = { .family = family, .tools_json = tools, .tools_len = sizeof tools - 1 };
    check_shape(t, v, &o, 24, seen);
    o.flags = PF_SHAPE_MAY_REASON | PF_SHAPE_ONE_CALL;
    check_shape(t, v, &o, 16, seen);
    o.tool = "weather_news";
    check_shape(t, v, &o, 8, seen);
    o.tool = "weather";
    o.flags = PF_SHAPE_ARGUMENTS | PF_SHAPE_ONE_CALL;
    const struct pf_form *form = pf_form_of(pf_family_find(family), v);
    bool own = strchr(form->call, PF_HOLE_OWN);
    if (form->param || own)
        check_shape(t, v, &o, 16, seen);
    struct pf_reply_shape trip = { .family = family, .tools_json = trips, .tools_len = sizeof trips - 1,
                                   .tool = "trip", .flags = o.flags };
    if (own)
        check_shape(t, v, &trip, 60, seen);
    o = (struct pf_reply_shape){ .family = family, .schema = schema, .schema_len = sizeof schema - 1,
                                 .flags = PF_SHAPE_MAY_REASON };
    check_shape(t, v, &o, 16, seen);
    o.tools_json = tools;
    o.tools_len = sizeof tools - 1;
    check_shape(t, v, &o, 16, seen);
    o.tools_json = NULL;
    o.flags = PF_SHAPE_IN_REASONING;
    bool reasons = false;
    for (const struct pf_mark *m = pf_family_find(family)->marks; m->text; m++)
        reasons |= m->kind == PF_MARK_THINK;
    if (reasons)
        check_shape(t, v, &o, 8, seen);
}

static void check_refusals(const pf_vocab *v)
{
    struct pf_rules r = { 0 };
    int32_t root;
    struct pf_reply_shape o = { .family = "nobody", .tools_json = tools, .tools_len = sizeof tools - 1 };
    CHECK(pf_shape_rules(&r, v, &o, &root) == PF_EINVAL);
    o.family = "hermes";
    o.tool = "nobody";
    CHECK(pf_shape_rules(&r, v, &o, &root) == PF_EINVAL && strstr(pf_last_error(), "nobody"));
    o.flags = PF_SHAPE_ARGUMENTS;
    CHECK(pf_shape_rules(&r, v, &o, &root) == PF_EINVAL && strstr(pf_last_error(), "nobody"));
    o.tool = "weather";
    CHECK(pf_shape_rules(&r, v, &o, &root) == PF_EUNSUPPORTED, "arguments as JSON");
    o.family = "lfm2";
    o.tool = "nothing";
    CHECK(pf_shape_rules(&r, v, &o, &root) == PF_EUNSUPPORTED, "no schema");
    o.family = "glm";
    CHECK(pf_shape_rules(&r, v, &o, &root) == PF_EUNSUPPORTED, "no properties");
    o = (struct pf_reply_shape){ .family = "hermes", .tools_json = "[]", .tools_len = 2 };
    CHECK(pf_shape_rules(&r, v, &o, &root) == PF_EINVAL);
    o = (struct pf_reply_shape){ .family = "hermes", .tools_json = "{", .tools_len = 1 };
    CHECK(pf_shape_rules(&r, v, &o, &root) == PF_EINVAL);
    o = (struct pf_reply_shape){ .family = "hermes" };
    CHECK(pf_shape_rules(&r, v, &o, &root) == PF_EINVAL);
    pf_rules_free(&r);
}

/* Each allocation fails once: an error, and nothing is left behind. */
static void check_no_memory(const pf_vocab *v, const char *family)
{
    struct pf_reply_shape o = { .family = family, .tools_json = tools, .tools_len = sizeof tools - 1 };
    struct pf_mem_stats before, after;
    pf_status st = PF_ENOMEM;
    pf_mem_stats_get(&before);
    for (uint64_t n = 1; st != PF_OK && n < 10000; n++) {
        struct pf_rules r = { 0 };
        int32_t root;
        pf_mem_fail_nth(n);
        st = pf_shape_rules(&r, v, &o, &root);
        pf_mem_fail_nth(0);
        pf_rules_free(&r);
        pf_mem_stats_get(&after);
        CHECK((st == PF_OK || st == PF_ENOMEM) && after.n_live == before.n_live, "%s: %d, %d", family, (int)n, st);
    }
    CHECK(st == PF_OK);
}

int main(void)
{
    for (int with_marks = 0; with_marks < 2; with_marks++) {
        pf_vocab *v = open_marks_vocab(with_marks);
        struct pf_tokens *t;
        struct counts seen = { 0 };
        CHECK(pf_tokens_open(&t, v) == PF_OK);
        for (int i = 0; pf_family_at(i); i++)
            check_family(pf_family_at(i)->name, t, v, &seen);
        printf("%d walks, %d to their end; %d of several calls, %d of content, %d with reasoning\n", seen.walks,
               seen.ended, seen.several, seen.contents, seen.reasonings);
        CHECK(seen.ended > seen.walks * 9 / 10 && seen.several > 50 && seen.contents > 50 && seen.reasonings > 50);
        check_refusals(v);
        check_no_memory(v, "hermes");
        check_no_memory(v, "qwen3-coder");
        check_no_memory(v, "gemma-4");
        check_no_memory(v, "lfm2");
        pf_tokens_close(&t);
        pf_vocab_close(&v);
    }
    return check_status();
}
