/* Replies: text and its markers, harmony's headers, and the public functions. See reply_impl.h. */
#include "reply/reply.h"

#include "reply/reply_impl.h"
#include "text/utf8.h"

enum { SPACE_BYTES = 1 << 16, HEADER_BYTES = 512 };

/* ---- Matching ---------------------------------------------------------------------------------------------------- */

enum pf_match pf_reply_match(const struct pf_reply *r, size_t at, const char *text, size_t *len)
{
    const char *s = r->in.p + at;
    size_t n = r->in.n - at, i = 0;
    for (; *text; text++) {
        if (i == n)
            return PF_PARTLY;
        if (*text == '\1') {                     /* a part that may be left out: it is there if its first byte is */
            if (s[i] != text[1])
                text = strchr(text, '\2');
        } else if (*text != '\2') {
            if (s[i] != *text)
                return PF_NO;
            i++;
        }
    }
    *len = i;
    return PF_YES;
}

/* Nothing but white space, or nothing at all, has come on this channel, and no call. */
static bool at_start(const struct pf_reply *r)
{
    if (r->channel == PF_NOWHERE)
        return false;
    return !r->channels[r->channel].any && (r->channel == PF_REPLY_REASONING || r->n_calls == 0);
}

static bool begins_call(const struct pf_mark *m)
{
    return m->kind == PF_MARK_BLOCK || m->kind == PF_MARK_HEAD;
}

static bool is_active(const struct pf_reply *r, const struct pf_mark *m, bool start)
{
    if (m->flags & PF_MARK_AT_START && !start)
        return false;
    if (m->kind == PF_MARK_ANSWER)
        return r->channel == PF_REPLY_REASONING || m->flags & PF_MARK_ANYWHERE || start;
    if (begins_call(m))
        return r->with_tools && (r->channel == PF_REPLY_CONTENT || m->flags & PF_MARK_IN_THOUGHT);
    return true;
}

/* What a mark's text begins with is text where the reply ends, unless the mark begins a call, and one is due. */
static enum pf_match find_mark(const struct pf_reply *r, size_t at, bool start, bool due, const struct pf_mark **mark,
                               size_t *len)
{
    enum pf_match best = PF_NO;
    for (const struct pf_mark *m = r->f->marks; m->text; m++) {
        enum pf_match match = m->text[0] == r->in.p[at] && is_active(r, m, start) ?
                              pf_reply_match(r, at, m->text, len) : PF_NO;
        if (match == PF_PARTLY && r->ended && !(due && begins_call(m)))
            match = PF_NO;
        *mark = m;
        if (match == PF_YES)
            return match;
        best = match > best ? match : best;
    }
    return best;
}

/* ---- Telling ----------------------------------------------------------------------------------------------------- */

void pf_reply_tell(struct pf_reply *r, enum pf_reply_kind kind, const char *text, size_t n)
{
    struct pf_reply_event e = { .kind = kind, .call = -1, .text = text, .n = n };
    if (kind != PF_REPLY_CONTENT && kind != PF_REPLY_REASONING)
        e.call = r->n_calls;
    if (kind == PF_REPLY_CALL && r->n_id) {
        e.id = r->id;
        e.n_id = r->n_id;
    }
    r->fn(r->ctx, &e);
}

static size_t n_space(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && pf_reply_is_space(s[i]))
        i++;
    return i;
}

/* Text of the channel: white space in front is left out, white space behind waits. */
static void put_text(struct pf_reply *r, const char *s, size_t n)
{
    if (r->channel == PF_NOWHERE)
        return;
    struct pf_channel *c = &r->channels[r->channel];
    size_t front = n_space(s, n);
    if (!c->any) {
        c->space.n = 0;
        s += front;
        n -= front;
    } else if (c->gap && n && front == 0 && c->space.n == 0) {
        pf_run_puts(&c->space, "\n");            /* texts with something between them are told apart */
    }
    size_t end = n;
    while (end && pf_reply_is_space(s[end - 1]))
        end--;
    if (end) {
        if (c->space.n)
            pf_reply_tell(r, (enum pf_reply_kind)r->channel, c->space.p, c->space.n);
        pf_reply_tell(r, (enum pf_reply_kind)r->channel, s, end);
        c->space.n = 0;
        c->any = true;
        c->gap = false;
        r->among_calls = false;
    }
    if (c->any && c->space.n < SPACE_BYTES)
        pf_run_add(&c->space, s + end, n - end);
}

static void enter(struct pf_reply *r, int channel)
{
    for (int i = 0; i < 2 && channel != r->channel; i++) {
        r->channels[i].space.n = 0;
        r->channels[i].gap = true;
    }
    r->channel = channel;
}

/* ---- Text -------------------------------------------------------------------------------------------------------- */

static void act(struct pf_reply *r, const struct pf_mark *m, size_t len)
{
    bool only_offered = m->flags & PF_MARK_OFFERED;
    switch (m->kind) {
    case PF_MARK_BLOCK: pf_call_try(r, len, PF_AT_ITEM, only_offered); return;
    case PF_MARK_HEAD:  pf_call_try(r, len, PF_AT_FIELD, only_offered); return;
    case PF_MARK_THINK:  enter(r, PF_REPLY_REASONING); break;
    case PF_MARK_ANSWER: enter(r, PF_REPLY_CONTENT); break;
    case PF_MARK_HEADER: r->state = PF_AT_HEADER; r->header.n = 0; r->role_end = SIZE_MAX; return;
    case PF_MARK_DROP: break;
    }
    r->from = r->at += len;
}

/* A reply that begins with a bracket may be calls without a marker. */
static bool may_be_bare(const struct pf_reply *r, char c, bool start)
{
    return start && (c == '{' || c == '[') && r->f->form & PF_FORM_BARE && r->with_tools &&
           r->channel == PF_REPLY_CONTENT;
}

static void try_bare(struct pf_reply *r)
{
    pf_call_try(r, 0, PF_AT_ITEM, true);
    r->bare = true;
    r->marker = 1;
}

static bool step_text(struct pf_reply *r)
{
    const struct pf_mark *mark = NULL;
    size_t i = r->at + r->marker, len = 0;
    bool start = at_start(r) && r->marker == 0, blank = r->marker == 0, bare = false;
    enum pf_match m = PF_NO;
    for (; i < r->in.n; i++) {
        char c = r->in.p[i];
        bare = may_be_bare(r, c, start);
        m = find_mark(r, i, start, r->forced || (r->among_calls && blank), &mark, &len);
        if (bare || m != PF_NO)
            break;
        start &= pf_reply_is_space(c);
        blank &= pf_reply_is_space(c);
    }
    r->marker = 0;
    put_text(r, r->in.p + r->from, i - r->from);
    r->from = r->at = i;
    if (i == r->in.n || m == PF_PARTLY)          /* a marker may begin with a bracket, too */
        return false;
    if (m == PF_YES)
        act(r, mark, len);
    else
        try_bare(r);
    return true;
}

/* ---- Harmony's headers ------------------------------------------------------------------------------------------- */

/*      assistant to=functions.f<|channel|>commentary to=functions.f <|constrain|>json<|message|>
 *     |---------- role --------|-------------------- channel ---------------------| */
static struct pf_span header_word(const struct pf_reply *r, size_t from, const char *in_front)
{
    const char *s = r->header.p, *end = s + r->header.n;
    size_t n = strlen(in_front);
    for (const char *p = s + from; p && p < end; p++) {
        if (pf_reply_is_space(*p) || (size_t)(end - p) < n || memcmp(p, in_front, n) != 0)
            continue;
        struct pf_span word = { p + n, 0 };
        while (word.p + word.n < end && !pf_reply_is_space(word.p[word.n]))
            word.n++;
        return word;
    }
    return (struct pf_span){ NULL, 0 };
}

static bool span_is(struct pf_span s, const char *text)
{
    return s.n == strlen(text) && s.p && memcmp(s.p, text, s.n) == 0;
}

/* The body of a message for a tool is its arguments; where tools are offered, one for another is nobody's business. */
static void begin_call(struct pf_reply *r, struct pf_span to)
{
    static const char prefix[] = "functions.";
    bool ours = to.n > sizeof prefix - 1 && memcmp(to.p, prefix, sizeof prefix - 1) == 0;
    if (ours) {
        to.p += sizeof prefix - 1;
        to.n -= sizeof prefix - 1;
    }
    enter(r, r->with_tools ? PF_NOWHERE : PF_REPLY_REASONING);
    pf_call_try(r, 0, PF_AT_TEXT, !ours);
    if (r->with_tools && pf_call_take(to.p, to.n, r->name, &r->n_name) && pf_call_commit(r))
        pf_call_arguments(r, PF_ARGUMENTS_JSON);
}

static void begin_message(struct pf_reply *r)
{
    size_t channel_at = r->role_end < r->header.n ? r->role_end : r->header.n;
    struct pf_span name = header_word(r, channel_at, ""), to = header_word(r, channel_at, "to=");
    if (!to.p)
        to = header_word(r, 0, "to=");
    r->state = PF_AT_TEXT;
    for (int i = 0; i < 2; i++)
        r->channels[i].gap = true;
    if (to.p && !span_is(to, "assistant"))
        begin_call(r, to);
    else
        enter(r, span_is(name, "analysis") ? PF_REPLY_REASONING : PF_REPLY_CONTENT);
}

static void header_mark(struct pf_reply *r, int which)
{
    enum { MESSAGE, CHANNEL, CONSTRAIN };
    if (which == MESSAGE) {
        begin_message(r);
    } else if (which == CHANNEL) {               /* a second channel takes the first one's place */
        r->role_end = r->role_end == SIZE_MAX ? r->header.n : r->role_end;
        r->header.n = r->role_end;
        pf_run_puts(&r->header, " ");
    } else if (which == CONSTRAIN) {
        pf_run_puts(&r->header, " ");
    } else {
        r->header.n = 0;
        r->role_end = SIZE_MAX;
    }
}

static bool step_header(struct pf_reply *r)
{
    static const char *const marks[] = { "<|message|>", "<|channel|>", "<|constrain|>", "<|start|>", "<|end|>",
                                         "<|return|>", "<|call|>" };
    size_t len;
    bool perhaps = false;
    if (r->at == r->in.n)
        return false;
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        enum pf_match m = pf_reply_match(r, r->at, marks[i], &len);
        if (m == PF_YES) {
            r->from = r->at += len;
            header_mark(r, (int)i);
            return true;
        }
        perhaps |= m == PF_PARTLY;
    }
    if (perhaps)
        return false;
    if (r->header.n < HEADER_BYTES)
        pf_run_add(&r->header, r->in.p + r->at, 1);
    r->from = ++r->at;
    return true;
}

/* A reply that begins with neither a marker nor a recipient has no header: it is text. */
static bool step_begin(struct pf_reply *r)
{
    size_t len;
    r->at += n_space(r->in.p + r->at, r->in.n - r->at);
    r->from = r->at;
    if (r->at == r->in.n)
        return false;
    enum pf_match mark = pf_reply_match(r, r->at, "<|", &len), to = pf_reply_match(r, r->at, "to=", &len);
    if (mark == PF_PARTLY || to == PF_PARTLY)
        return false;
    r->state = mark == PF_YES || to == PF_YES ? PF_AT_HEADER : PF_AT_TEXT;
    return true;
}

/* ---- Bytes in ---------------------------------------------------------------------------------------------------- */

/* Appends text with U+FFFD in the place of each byte that is no UTF-8. */
static void add_text(struct pf_run *to, const char *s, size_t n)
{
    while (n) {
        size_t whole = pf_utf8_valid(s, n);
        pf_run_add(to, s, whole);
        s += whole;
        n -= whole;
        if (n) {
            pf_run_puts(to, "\xEF\xBF\xBD");
            s++;
            n--;
        }
    }
}

/* A character that came in two pieces is put together first. */
static void take_in(struct pf_reply *r, const char *s, size_t n)
{
    while (r->n_partial && n) {
        r->partial[r->n_partial++] = *s++;
        n--;
        size_t done = pf_utf8_complete(r->partial, (size_t)r->n_partial);
        add_text(&r->in, r->partial, done);
        r->n_partial -= (int)done;
        memmove(r->partial, r->partial + done, (size_t)r->n_partial);
    }
    size_t whole = n ? pf_utf8_complete(s, n) : 0;
    add_text(&r->in, s, whole);
    for (; whole < n; whole++)
        r->partial[r->n_partial++] = s[whole];
}

enum { N_RUNS = 7 };

static struct pf_run *run_at(struct pf_reply *r, int i)
{
    struct pf_run *all[N_RUNS] = { &r->in, &r->header, &r->word, &r->key, &r->out, &r->channels[0].space,
                                   &r->channels[1].space };
    return all[i];
}

static pf_status run(struct pf_reply *r)
{
    bool more = true;
    while (more && !r->in.failed)
        more = r->state == PF_AT_TEXT ? step_text(r) : r->state == PF_AT_HEADER ? step_header(r) :
               r->state == PF_AT_BEGIN ? step_begin(r) : pf_call_step(r);
    pf_run_drop(&r->in, r->from);
    r->dropped += r->from;
    r->at -= r->from;
    r->from = 0;
    bool failed = r->literal.key.failed;
    for (int i = 0; i < N_RUNS; i++)
        failed |= run_at(r, i)->failed;
    if (failed)
        r->status = pf_fail(PF_ENOMEM, "no memory for a reply of which %zu bytes are held", r->in.n);
    return r->status;
}

pf_status pf_reply_feed(pf_reply *r, const char *text, size_t n, pf_reply_fn *fn, void *ctx)
{
    if (r->status < 0)
        PF_FAIL(r->status, "the reply was given up for want of memory");
    if (r->ended)
        PF_FAIL(PF_EINVAL, "the reply has ended");
    r->fn = fn;
    r->ctx = ctx;
    enum { PIECE = 1 << 14 };                    /* so that what was told does not stay in memory */
    for (size_t i = 0; i < n; i += PIECE) {
        take_in(r, text + i, n - i < PIECE ? n - i : PIECE);
        PF_TRY(run(r));
    }
    return PF_OK;
}

pf_status pf_reply_end(pf_reply *r, pf_reply_fn *fn, void *ctx)
{
    if (r->status < 0)
        PF_FAIL(r->status, "the reply was given up for want of memory");
    r->fn = fn;
    r->ctx = ctx;
    r->ended = true;
    do
        PF_TRY(run(r));
    while (pf_call_cut(r));
    return run(r);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* Gives every run an address. */
static pf_status reserve(struct pf_reply *r)
{
    for (int i = 0; i < N_RUNS; i++) {
        pf_run_add(run_at(r, i), "", 1);
        if (run_at(r, i)->failed)
            PF_FAIL(PF_ENOMEM, "no memory for a reply");
        run_at(r, i)->n = 0;
    }
    return PF_OK;
}

pf_status pf_reply_open(pf_reply **out, const struct pf_reply_opts *o)
{
    const struct pf_family *f = pf_family_find(o->family ? o->family : "generic");
    *out = NULL;
    if (!f)
        PF_FAIL(PF_EINVAL, "there is no family of replies \"%.100s\"", o->family);
    struct pf_reply *r = pf_alloc(PF_MEM_TEXT, sizeof *r);
    if (!r)
        PF_FAIL(PF_ENOMEM, "no memory for a reply");
    r->f = f;
    r->role_end = SIZE_MAX;
    r->channel = o->in_reasoning ? PF_REPLY_REASONING : PF_REPLY_CONTENT;
    if (f->form & PF_FORM_HARMONY && !o->in_reasoning && !o->in_content)
        r->state = PF_AT_BEGIN;
    r->channels[PF_REPLY_CONTENT].any = o->in_content;
    r->with_tools = o->tools_json != NULL;
    r->forced = o->forced;
    pf_status st = reserve(r);
    if (st == PF_OK && r->with_tools)
        st = pf_tools_read(&r->tools, o->tools_json, o->tools_len);
    if (st < 0)
        pf_reply_close(&r);
    *out = r;
    return st;
}

void pf_reply_close(pf_reply **rp)
{
    struct pf_reply *r = *rp;
    *rp = NULL;
    if (!r)
        return;
    for (int i = 0; i < N_RUNS; i++)
        pf_run_free(run_at(r, i));
    pf_literal_free(&r->literal);
    pf_tools_free(&r->tools);
    pf_free(r);
}

const char *pf_reply_family_of(const char *tmpl, size_t n)
{
    return pf_family_of_template(tmpl, n)->name;
}

bool pf_reply_is_open(const char *family, const char *prompt, size_t n)
{
    const struct pf_family *f = pf_family_find(family);
    while (n && pf_reply_is_space(prompt[n - 1]))
        n--;
    for (const struct pf_mark *m = f ? f->marks : NULL; m && m->text; m++) {
        struct pf_reply end = { 0 };
        size_t len, longest = strlen(m->text), i = n > longest ? n - longest : 0;
        end.in.p = (char *)(uintptr_t)prompt;
        end.in.n = n;
        for (; m->kind == PF_MARK_THINK && i < n; i++)
            if (pf_reply_match(&end, i, m->text, &len) == PF_YES && i + len == n)
                return true;
    }
    return false;
}

bool pf_reply_in_content(const pf_reply *r)
{
    return r->state == PF_AT_TEXT && r->channel == PF_REPLY_CONTENT;
}

bool pf_reply_is_mark(const pf_reply *r, const char *token, size_t n)
{
    return pf_family_has(r->f, token, n);
}

static bool in_tags(const struct pf_reply *r)
{
    return r->state == PF_AT_TAGS || r->state == PF_AT_KEY || r->state == PF_AT_VALUE_OPEN ||
           r->state == PF_AT_TEXT_VALUE || r->state == PF_AT_TYPED_VALUE;
}

bool pf_reply_in_arguments(const pf_reply *r, struct pf_reply_arguments *out)
{
    bool named = r->committed || r->has_name, tags = in_tags(r), in = tags;
    if (r->state == PF_AT_OPENING)
        in = !r->f->fences[0];
    else if (r->state == PF_AT_LITERAL)
        in = true;
    else if (r->state == PF_AT_OBJECT)
        in = named && (r->place == PF_IN_ARGUMENTS || (r->place == PF_IN_VALUE && !r->has_arguments &&
                                                       pf_call_wants_arguments(r)));
    size_t since = tags ? (size_t)(r->dropped + r->in.n - r->begun_at) + (size_t)r->n_partial : r->inside;
    bool own_form = r->state != PF_AT_OBJECT && r->f->arguments != PF_ARGUMENTS_JSON;
    if (in)
        *out = (struct pf_reply_arguments){ .name = r->name, .n_name = r->n_name, .own_form = own_form,
                                            .n_inside = since };
    return in;
}
