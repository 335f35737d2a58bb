/* --parse: replies of models, taken apart by the library. A line of the file is an object with "text", "tools" and
 * "opened_thinking", and perhaps "variant", the family of this line if there is one of that name. For each a line
 *     {"content":..,"reasoning":..,"tool_calls":[{"name":..,"arguments":{..}}]}
 * is printed, put together from what was reported; with --pieces the text came in pieces of random lengths. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "program/json.h"
#include "cli/modes.h"
#include "program/io/term.h"

struct gathered {
    struct buf content, reasoning, calls;
};

static void gather(void *ctx, const struct pf_reply_event *e)
{
    struct gathered *g = ctx;
    switch (e->kind) {
    case PF_REPLY_CONTENT:   buf_add(&g->content, e->text, e->n); break;
    case PF_REPLY_REASONING: buf_add(&g->reasoning, e->text, e->n); break;
    case PF_REPLY_CALL:
        buf_puts(&g->calls, e->call ? ",{\"name\":" : "{\"name\":");
        json_quote(&g->calls, e->text, e->n, true);
        buf_puts(&g->calls, ",\"arguments\":");
        break;
    case PF_REPLY_ARGUMENTS: buf_add(&g->calls, e->text, e->n); break;
    case PF_REPLY_CALL_END:  buf_puts(&g->calls, "}"); break;
    }
}

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    return z ^ z >> 27;
}

static void feed(pf_reply *r, const struct buf *text, uint64_t *random, struct gathered *g)
{
    static const size_t most[] = { 1, 2, 3, 7, 40 };
    size_t longest = random ? most[next_random(random) % 5] : text->n, n;
    pf_status st = PF_OK;
    for (size_t at = 0; at < text->n && st == PF_OK; at += n) {
        n = random ? 1 + next_random(random) % longest : text->n;
        n = n < text->n - at ? n : text->n - at;
        st = pf_reply_feed(r, text->p + at, n, gather, g);
    }
    if (st == PF_OK)
        st = pf_reply_end(r, gather, g);
    if (st < 0)
        die(EXIT_FAILED, "%s", pf_last_error());
}

static void put_text(struct buf *out, const char *name, const struct buf *text)
{
    buf_printf(out, "\"%s\":", name);
    if (text->n)
        json_quote(out, text->p, text->n, true);
    else
        buf_puts(out, "null");
    buf_puts(out, ",");
}

static pf_reply *open_reply(const struct settings *s, struct json line)
{
    struct json tools = json_get(line, "tools");
    struct pf_reply_opts o = { .tools_json = tools.p, .tools_len = tools.n,
                               .in_reasoning = json_true(json_get(line, "opened_thinking")) };
    struct buf variant = { 0 };
    pf_reply *r;
    json_string(json_get(line, "variant"), &variant);
    o.family = buf_text(&variant);
    pf_status st = pf_reply_open(&r, &o);
    o.family = s->parse;
    if (st == PF_EINVAL)
        st = pf_reply_open(&r, &o);
    buf_free(&variant);
    if (st < 0)
        die(EXIT_FAILED, "%s", pf_last_error());
    return r;
}

static void parse_line(const struct settings *s, struct json line, uint64_t *random)
{
    struct gathered g = { 0 };
    struct buf text = { 0 }, out = { 0 };
    pf_reply *r = open_reply(s, line);
    json_string(json_get(line, "text"), &text);
    feed(r, &text, random, &g);
    pf_reply_close(&r);
    buf_puts(&out, "{");
    put_text(&out, "content", &g.content);
    put_text(&out, "reasoning", &g.reasoning);
    buf_printf(&out, "\"tool_calls\":[%s]}\n", buf_text(&g.calls));
    out_write(out.p, out.n);
    struct buf *all[] = { &g.content, &g.reasoning, &g.calls, &text, &out };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_free(all[i]);
}

int mode_parse(const struct settings *s)
{
    struct buf file = { 0 };
    uint64_t state = (uint64_t)s->pieces, *random = s->pieces == UNSET ? NULL : &state;
    size_t where, number = 0;
    if (!buf_read_file(&file, s->operand))
        die(EXIT_FAILED, "cannot read %s: %s", s->operand, strerror(errno));
    for (size_t at = 0, n; at < file.n; at += n + 1) {
        const char *line = file.p + at, *end = memchr(line, '\n', file.n - at);
        n = end ? (size_t)(end - line) : file.n - at;
        number++;
        if (n == 0)
            continue;
        if (!json_valid(line, n, &where))
            die(EXIT_FAILED, "%s: line %zu is not JSON (offset %zu)", s->operand, number, where);
        parse_line(s, json_value(line, n), random);
    }
    buf_free(&file);
    return EXIT_DONE;
}
