/* The checking modes: logits for given tokens, and tokenizers over files with one JSON object a line. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/json.h"
#include "program/load.h"
#include "cli/modes.h"
#include "program/io/term.h"
#include "program/io/userfile.h"

/* ---- Logits ------------------------------------------------------------------------------------------------------ */

struct ids {
    int32_t *p;
    size_t   n;
};

static void add_id(struct ids *ids, int32_t id)
{
    if ((ids->n & (ids->n + 1)) == 0)                      /* 0, 1, 3, 7 ...: full */
        ids->p = xrealloc(ids->p, 2 * ids->n + 1, sizeof *ids->p);
    ids->p[ids->n++] = id;
}

static struct ids read_ids(const char *path)
{
    static const char between[] = ", \t\r\n";
    struct buf text = { 0 };
    struct ids ids = { 0 };
    if (!buf_read_file(&text, path))
        die(EXIT_FAILED, "cannot read %s: %s", path, strerror(errno));
    for (const char *p = buf_text(&text);;) {
        p += strspn(p, between);
        if (p == buf_text(&text) + text.n)
            break;
        char *end;
        errno = 0;
        long long v = strtoll(p, &end, 10);
        if (end == p || errno || v < INT32_MIN || v > INT32_MAX || !strchr(between, *end))
            die(EXIT_FAILED, "%s: no token id at offset %td", path, p - text.p);
        add_id(&ids, (int32_t)v);
        p = end;
    }
    buf_free(&text);
    if (ids.n == 0)
        die(EXIT_FAILED, "%s holds no token ids", path);
    return ids;
}

/* How many tokens the i-th eval takes. */
static size_t chunk_size(const struct settings *s, size_t i)
{
    enum { BATCH = 512 };                                  /* bounds the memory for logits */
    if (s->step)
        return 1;
    return s->chunks.n ? (size_t)s->chunks.v[i % (size_t)s->chunks.n] : BATCH;
}

static void write_logits(FILE *f, const char *path, const float *logits, size_t n, size_t position)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(logits[i]))
            die(EXIT_FAILED, "the logit of token %zu at position %zu is not a finite number", i, position);
    if (fwrite(logits, sizeof *logits, n, f) != n)
        die(EXIT_FAILED, "cannot write %s: %s", path, strerror(errno));
}

int mode_score(const struct settings *s)
{
    struct ids ids = read_ids(s->score);
    struct userfile out;
    struct buf why = { 0 };
    if (!userfile_open(&out, s->logits, 0, &why))
        die(EXIT_FAILED, "%s", buf_text(&why));
    pf_model *m = load_model(s, false);
    pf_session *session = load_session(s, m, s->n_ctx ? s->n_ctx : (int64_t)ids.n);
    size_t n_vocab = (size_t)pf_model_info(m)->n_vocab;
    for (size_t done = 0, i = 0; done < ids.n; i++) {
        size_t n = chunk_size(s, i);
        n = n < ids.n - done ? n : ids.n - done;
        if (pf_session_eval(session, ids.p + done, n, PF_LOGITS_ALL) < 0)
            die_failed(s->score);
        for (size_t row = 0; row < n; row++)
            write_logits(out.f, s->logits, pf_session_logits_at(session, row), n_vocab, done + row);
        done += n;
    }
    if (!userfile_commit(&out, &why))
        die(EXIT_FAILED, "%s", buf_text(&why));
    load_report(s, m);
    pf_session_close(&session);
    pf_model_close(&m);
    free(ids.p);
    return EXIT_DONE;
}

/* ---- Files with one JSON object a line --------------------------------------------------------------------------- */

typedef void line_fn(const pf_model *m, const struct settings *s, struct json line, struct buf *out);

static void each_line(const char *path, const pf_model *m, const struct settings *s, line_fn *fn)
{
    struct buf file = { 0 }, out = { 0 };
    size_t where;
    int number = 1;
    if (!buf_read_file(&file, path))
        die(EXIT_FAILED, "cannot read %s: %s", path, strerror(errno));
    for (const char *p = buf_text(&file), *end = p + file.n; p < end; number++) {
        const char *newline = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((newline ? newline : end) - p);
        if (strspn(p, " \t\r") < n) {
            if (!json_valid(p, n, &where) || !json_is(json_value(p, n), '{'))
                die(EXIT_FAILED, "%s, line %d: not a JSON object (offset %zu)", path, number, where);
            buf_clear(&out);
            fn(m, s, json_value(p, n), &out);
            buf_puts(&out, "\n");
            out_write(out.p, out.n);
        }
        p += n + (newline != NULL);
    }
    buf_free(&file);
    buf_free(&out);
}

static void add_hex(struct buf *text, struct json hex)
{
    struct buf digits = { 0 };
    unsigned byte;
    json_string(hex, &digits);
    for (size_t i = 0; i + 1 < digits.n; i += 2) {
        if (sscanf(digits.p + i, "%2x", &byte) != 1)
            die(EXIT_FAILED, "\"%.20s\" is not hexadecimal", digits.p + i);
        buf_add(text, (char[]){ (char)byte }, 1);
    }
    buf_free(&digits);
}

static void line_text(struct json line, struct buf *text)
{
    struct json hex = json_get(line, "hex");
    if (hex.p)
        add_hex(text, hex);
    else
        json_string(json_get(line, "text"), text);
}

static void tokenize_line(const pf_model *m, const struct settings *s, struct json line, struct buf *out)
{
    struct buf text = { 0 };
    unsigned flags = (json_true(json_get(line, "add_special")) ? PF_TOK_ADD_SPECIAL : 0) |
                     (json_true(json_get(line, "parse_special")) ? PF_TOK_PARSE_SPECIAL : 0);
    line_text(line, &text);
    size_t cap = text.n + 16, n = 0;
    int32_t *ids = xrealloc(NULL, cap, sizeof *ids);
    pf_status st = pf_tokenize(m, buf_text(&text), text.n, flags, ids, cap, &n);
    if (st == PF_ESPACE) {
        ids = xrealloc(ids, n, sizeof *ids);
        st = pf_tokenize(m, buf_text(&text), text.n, flags, ids, n, &n);
    }
    if (st < 0)
        die_failed(s->tokenize);
    buf_puts(out, "{\"ids\":[");
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%d", i ? "," : "", ids[i]);
    buf_puts(out, "]}");
    free(ids);
    buf_free(&text);
}

static void put_piece(const pf_model *m, const struct settings *s, int32_t id, unsigned flags, struct buf *out)
{
    char piece[4096];
    size_t n;
    if (pf_detokenize(m, &id, 1, flags, piece, sizeof piece, &n) < 0)
        die_failed(s->detokenize);
    buf_puts(out, "\"");
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%02x", (unsigned char)piece[i]);
    buf_puts(out, "\"");
}

static void put_pieces(const pf_model *m, const struct settings *s, struct json line, unsigned flags, struct buf *out)
{
    struct json list = json_get(line, "ids");
    int64_t id = 0;
    bool first = true;
    for (struct json v = json_next(list, (struct json){ 0 }); v.p; v = json_next(list, v)) {
        if (!json_int(v, &id) || id < INT32_MIN || id > INT32_MAX)
            die(EXIT_FAILED, "%s: \"%.*s\" is not a token id", s->detokenize, (int)v.n, v.p);
        buf_puts(out, first ? "" : ",");
        put_piece(m, s, (int32_t)id, flags, out);
        first = false;
    }
}

static void detokenize_line(const pf_model *m, const struct settings *s, struct json line, struct buf *out)
{
    buf_puts(out, "{\"pieces_special_hex\":[");
    put_pieces(m, s, line, PF_DETOK_CONTINUE | PF_DETOK_SPECIAL, out);
    buf_puts(out, "],\"pieces_plain_hex\":[");
    put_pieces(m, s, line, PF_DETOK_CONTINUE, out);
    buf_puts(out, "]}");
}

static void splits_line(const pf_model *m, const struct settings *s, struct json line, struct buf *out)
{
    struct buf text = { 0 };
    (void)m;
    line_text(line, &text);
    size_t n = 0, *ends = xrealloc(NULL, text.n + 1, sizeof *ends);
    if (pf_pretokenize(s->splits, buf_text(&text), text.n, ends, text.n + 1, &n) < 0)
        die_failed(s->operand);
    buf_puts(out, "{\"splits\":[");
    for (size_t i = 0, from = 0; i < n; from = ends[i++]) {
        buf_puts(out, i ? "," : "");
        json_quote(out, text.p + from, ends[i] - from, true);
    }
    buf_puts(out, "]}");
    free(ends);
    buf_free(&text);
}

static int over_vocabulary(const struct settings *s, const char *path, line_fn *fn)
{
    pf_model *m = load_model(s, true);
    each_line(path, m, s, fn);
    pf_model_close(&m);
    return EXIT_DONE;
}

int mode_tokenize(const struct settings *s)
{
    return over_vocabulary(s, s->tokenize, tokenize_line);
}

int mode_detokenize(const struct settings *s)
{
    return over_vocabulary(s, s->detokenize, detokenize_line);
}

int mode_splits(const struct settings *s)
{
    each_line(s->operand, NULL, s, splits_line);
    return EXIT_DONE;
}
