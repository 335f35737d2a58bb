/* Rows of pfmoe-bench in every form. Fields of csv, json and jsonl are one table; each row of these forms can be judged
 * away from its file. A table names model, commit and machine once, in a line in front of the rows that share them. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "program/json.h"

static const struct field {
    const char *name;
    enum { TEXT_FIELD, INT_FIELD, REAL_FIELD, SAMPLES_FIELD } kind;
    size_t at;
    int    digits;
} fields[] = {
#define TEXT(name)         { #name, TEXT_FIELD, offsetof(struct row, name), 0 }
#define INT(name)          { #name, INT_FIELD, offsetof(struct row, name), 0 }
#define REAL(name, digits) { #name, REAL_FIELD, offsetof(struct row, name), digits }
    TEXT(test), TEXT(model), TEXT(file), TEXT(model_type), REAL(model_bytes, 0), REAL(model_params, 0),
    TEXT(backend), TEXT(isa), INT(threads), INT(vram_mb), INT(sequences),
    INT(depth), INT(n_prompt), INT(n_gen), INT(n_batch), TEXT(kv),
    REAL(tok_s, 3), REAL(tok_s_min, 3), REAL(tok_s_max, 3), REAL(tok_s_stddev, 3),
    { "samples", SAMPLES_FIELD, offsetof(struct row, samples), 3 },
    REAL(bytes_per_token, 0), REAL(kv_bytes_per_token, 0), REAL(far_bytes_per_token, 0),
    REAL(gb_s, 3), REAL(machine_gb_s, 3),
    REAL(bandwidth_share, 4), REAL(held, 4), REAL(ram_gb_s, 3), REAL(pcie_gb_s, 3), REAL(joint_gb_s, 3),
    REAL(roofline_tok_s, 3), REAL(roofline_share, 4), REAL(most_together, 3), REAL(launches, 1),
    REAL(handoff_p50_us, 2), REAL(handoff_p95_us, 2),
    REAL(perplexity, 4), REAL(perplexity_error, 4), INT(n_chunks), INT(n_scored),
    TEXT(commit), TEXT(date), TEXT(cpu), TEXT(gpu), TEXT(driver), TEXT(gpus), TEXT(layout),
#undef TEXT
#undef INT
#undef REAL
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

static void add_samples(struct buf *b, const struct row *r, int digits, const char *between)
{
    for (int i = 0; i < r->n_samples; i++)
        buf_printf(b, "%s%.*f", i ? between : "", digits, r->samples[i]);
}

/* ---- CSV and JSON ------------------------------------------------------------------------------------------------ */

/* A field in quotes; quotes inside it are doubled. */
static void add_quoted(struct buf *b, const char *text)
{
    buf_puts(b, "\"");
    for (; *text; text++) {
        buf_add(b, "\"", *text == '"');
        buf_add(b, text, 1);
    }
    buf_puts(b, "\"");
}

static void add_field(struct buf *b, const struct row *r, const struct field *f, bool json)
{
    const void *at = (const char *)r + f->at;
    switch (f->kind) {
    case TEXT_FIELD:
        if (json)
            json_quote(b, at, strlen(at), false);
        else
            add_quoted(b, at);
        break;
    case INT_FIELD:
        buf_printf(b, "%d", *(const int *)at);
        break;
    case REAL_FIELD:
        buf_printf(b, "%.*f", f->digits, *(const double *)at);
        break;
    case SAMPLES_FIELD:
        buf_puts(b, json ? "[" : "\"");
        add_samples(b, r, f->digits, json ? ", " : " ");
        buf_puts(b, json ? "]" : "\"");
        break;
    }
}

static void add_csv(struct buf *b, const struct row *r)
{
    for (int i = 0; i < N_FIELDS; i++) {
        buf_add(b, ",", i > 0);
        add_field(b, r, &fields[i], false);
    }
    buf_puts(b, "\n");
}

static void add_json(struct buf *b, const struct row *r, bool on_one_line)
{
    const char *between = on_one_line ? " " : "\n    ";
    buf_puts(b, on_one_line ? "{" : "  {\n    ");
    for (int i = 0; i < N_FIELDS; i++) {
        buf_printf(b, "%s%s\"%s\": ", i ? "," : "", i ? between : "", fields[i].name);
        add_field(b, r, &fields[i], true);
    }
    buf_puts(b, on_one_line ? "}\n" : "\n  }");
}

/* ---- Tables ------------------------------------------------------------------------------------------------------ */

/* Whether one line in front of a table is true of both. */
static bool alike(const struct row *a, const struct row *b)
{
    return strcmp(a->model, b->model) == 0 && strcmp(a->file, b->file) == 0 && strcmp(a->backend, b->backend) == 0 &&
           strcmp(a->kv, b->kv) == 0 && a->n_batch == b->n_batch && !a->n_chunks == !b->n_chunks;
}

static void add_head(struct buf *b, const struct row *r, bool md)
{
    buf_printf(b, "%s, %s, %.2f GB, %.1f B parameters; %s (%s), keys and values %s, batch %d; commit %s, %s; %s",
               r->model, r->model_type, r->model_bytes * 1e-9, r->model_params * 1e-9, r->backend, r->isa, r->kv,
               r->n_batch, r->commit, r->date, r->cpu);
    if (r->gpu[0])
        buf_printf(b, "; %s", r->gpu);
    if (r->driver[0])
        buf_printf(b, ", driver %s", r->driver);
    if (r->n_chunks) {
        buf_puts(b, md ? "\n\n| test | threads | chunks | tokens counted | perplexity | ± | tok/s |\n"
                         "|---|--:|--:|--:|--:|--:|--:|\n"
                       : "\n\ntest                 threads  chunks  counted  perplexity        ±     tok/s\n");
        return;
    }
    buf_puts(b, md ? "\n\n| test | threads | VRAM MB | tok/s | ± | MB/token | GB/s | machine GB/s | share"
                     " | roofline tok/s | reached |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
                   : "\n\ntest                 threads     VRAM     tok/s        ±   MB/token    GB/s  machine  share"
                     "  roofline  reached\n");
}

static void add_perplexity_row(struct buf *b, const struct row *r, bool md)
{
    buf_printf(b, md ? "| %s | %d | %d | %d | %.4f | %.4f | %.2f |\n" : "%-20s %7d %7d %8d %11.4f %8.4f %9.2f\n",
               r->test, r->threads, r->n_chunks, r->n_scored, r->perplexity, r->perplexity_error, r->tok_s);
}

static void add_table_row(struct buf *b, const struct row *r, bool md)
{
    char vram[16] = "-", roofline[24] = "-", reached[16] = "-", share[16] = "-";
    if (r->vram_mb > 0)
        snprintf(vram, sizeof vram, "%d", r->vram_mb);
    if (r->roofline_tok_s > 0) {
        snprintf(roofline, sizeof roofline, "%.2f", r->roofline_tok_s);
        snprintf(reached, sizeof reached, "%.0f%%", 100 * r->roofline_share);
    }
    if (r->machine_gb_s > 0)
        snprintf(share, sizeof share, "%.0f%%", 100 * r->bandwidth_share);
    buf_printf(b, md ? "| %s | %d | %s | %.2f | %.2f | %.1f | %.2f | %.2f | %s | %s | %s |\n"
                     : "%-20s %7d %8s %9.2f %8.2f %10.1f %7.2f %8.2f %6s %9s %8s\n",
               r->test, r->threads, vram, r->tok_s, r->tok_s_stddev, r->bytes_per_token * 1e-6, r->gb_s,
               r->machine_gb_s, share, roofline, reached);
}

/* ---- Printing ---------------------------------------------------------------------------------------------------- */

void rows_begin(enum output out)
{
    if (out == OUT_JSON)
        fputs("[", stdout);
    for (int i = 0; out == OUT_CSV && i < N_FIELDS; i++)
        printf("%s%s%s", i ? "," : "", fields[i].name, i == N_FIELDS - 1 ? "\n" : "");
    fflush(stdout);
}

void rows_print(enum output out, const struct row *r, const struct row *before)
{
    struct buf b = { 0 };
    if (out == OUT_CSV) {
        add_csv(&b, r);
    } else if (out == OUT_JSON || out == OUT_JSONL) {
        if (out == OUT_JSON)
            buf_puts(&b, before ? ",\n" : "\n");
        add_json(&b, r, out == OUT_JSONL);
    } else {
        if (before && !alike(before, r))
            buf_puts(&b, "\n");
        if (!before || !alike(before, r))
            add_head(&b, r, out == OUT_MD);
        (r->n_chunks ? add_perplexity_row : add_table_row)(&b, r, out == OUT_MD);
    }
    fwrite(b.p, 1, b.n, stdout);
    fflush(stdout);
    buf_free(&b);
}

void rows_end(enum output out, int n)
{
    if (out == OUT_JSON)
        puts(n ? "\n]" : "]");
}

/* ---- Remarks ----------------------------------------------------------------------------------------------------- */

static void remark_gpu(const struct row *r)
{
    fprintf(stderr, "%s, %d threads", r->test, r->threads);
    if (r->vram_mb)
        fprintf(stderr, ", %d MB of the GPU's memory", r->vram_mb);
    fprintf(stderr, ": GB/s of the GPU's memory %.0f", r->machine_gb_s);
    if (r->ram_gb_s > 0)
        fprintf(stderr, ", main memory %.1f", r->ram_gb_s);
    if (r->pcie_gb_s > 0)
        fprintf(stderr, ", copies to the GPU %.1f, both at once %.1f", r->pcie_gb_s, r->joint_gb_s);
    putc('\n', stderr);
    report_experts(stderr, &r->stats);
}

static void remark_together(const struct row *r)
{
    fprintf(stderr, "%s: by the bytes of a step, at most %.2f times the tok/s of one sequence", r->test,
            r->most_together);
    if (r->n_experts > 0)
        fprintf(stderr, "; %d picks of %d experts fall on %.1f, if routing is random", r->picks, r->n_experts,
                r->expected_picks);
    putc('\n', stderr);
}

void rows_remark(const struct row *r)
{
    if (strncmp(r->backend, "cpu", 3) != 0)
        remark_gpu(r);
    if (r->sequences > 1)
        remark_together(r);
    report_drafts(stderr, &r->stats);
    if (r->bandwidth_share > 1)
        fprintf(stderr, "%s: %.0f%% of the memory's rate, since weights came from caches, which are faster\n",
                r->test, 100 * r->bandwidth_share);
    if (r->roofline_share > 1)
        fprintf(stderr, "%s: %.0f%% of the roofline, which counts on the memory's rate, not on that of caches\n",
                r->test, 100 * r->roofline_share);
}
