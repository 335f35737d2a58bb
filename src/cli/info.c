/* --info: what a file holds, and what running it would take. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program/load.h"
#include "cli/modes.h"
#include "program/io/term.h"

static void row(struct buf *out, const char *label, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A row is one line, whatever the texts in it hold. */
static void row(struct buf *out, const char *label, const char *fmt, ...)
{
    struct buf clean = { 0 };
    va_list args;
    va_start(args, fmt);
    buf_vprintf_clean(&clean, fmt, args);
    va_end(args);
    for (size_t i = 0; i < clean.n; i++)
        clean.p[i] = clean.p[i] == '\n' || clean.p[i] == '\t' ? ' ' : clean.p[i];
    buf_printf(out, "%-16s %s\n", label, buf_text(&clean));
    buf_free(&clean);
}

/* Writes "2.41 GiB" to the caller's buffer: one printf may need several sizes. */
static const char *size_text(char out[24], double bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    size_t u = 0;
    while (bytes >= 1024 && u + 1 < sizeof units / sizeof *units) {
        bytes /= 1024;
        u++;
    }
    snprintf(out, 24, u ? "%.2f %s" : "%.0f %s", bytes, units[u]);
    return out;
}

static const char *count_text(char out[24], double n)
{
    const char *unit = n >= 1e9 ? " billion" : n >= 1e6 ? " million" : "";
    snprintf(out, 24, *unit ? "%.2f%s" : "%.0f%s", n >= 1e9 ? n / 1e9 : n >= 1e6 ? n / 1e6 : n, unit);
    return out;
}

static void put_shape(struct buf *out, const struct pf_file_info *f)
{
    char a[24];
    row(out, "parameters", "%s", count_text(a, (double)f->n_params));
    if (f->n_layers == 0)
        return;
    row(out, "layers", "%" PRId64 ", embedding %" PRId64 ", %" PRId64 " heads, %" PRId64 " for keys and values",
        f->n_layers, f->n_embd, f->n_heads, f->n_kv_heads);
    if (f->n_experts)
        row(out, "experts", "%" PRId64 " a layer, %" PRId64 " used for a token, width %" PRId64 ", %s in all",
            f->n_experts, f->n_experts_used, f->n_ff_expert, size_text(a, (double)f->expert_bytes));
    else
        row(out, "experts", "none (dense), width %" PRId64, f->n_ff);
    row(out, "vocabulary", "%" PRId64 " tokens", f->n_vocab);
    row(out, "context", "%" PRId64 " tokens", f->n_ctx_train);
}

static void put_types(struct buf *out, const struct pf_file_info *f)
{
    char a[24];
    for (int i = 0; i < f->n_types; i++)
        row(out, i ? "" : "weight types", "%-8s %6" PRIu64 " tensors  %10s  %5.1f%%", f->types[i].name,
            f->types[i].n_tensors, size_text(a, (double)f->types[i].bytes),
            f->weight_bytes ? 100.0 * (double)f->types[i].bytes / (double)f->weight_bytes : 0.0);
}

static void put_needs(struct buf *out, const struct pf_file_info *f)
{
    enum { LEAST_CTX = 8192 };
    char a[24], b[24];
    struct pf_device cpu;
    double ctx = f->n_ctx_train && f->n_ctx_train < LEAST_CTX ? (double)f->n_ctx_train : LEAST_CTX;
    double kv = (double)f->kv_bytes_per_token, all = (double)f->weight_bytes + kv * ctx;
    if (f->bytes_per_token == 0)
        return;
    row(out, "to run it", "%s of memory for the weights", size_text(a, (double)f->weight_bytes));
    row(out, "", "at most %s of keys and values for 1000 tokens, %s for a context of %.0f (i16)",
        size_text(a, kv * 1000), size_text(b, kv * ctx), ctx);
    if (pf_devices(&cpu, 1) > 0 && cpu.memory_bytes)
        row(out, "", "%s together; this machine has %s%s", size_text(a, all), size_text(b, (double)cpu.memory_bytes),
            all > (double)cpu.memory_bytes ? ": weights will be read from disk again and again" : "");
    row(out, "a token reads", "%s of weights: at most %.1f tok/s at 20 GB/s of memory bandwidth,",
        size_text(a, (double)f->bytes_per_token), 20e9 / (double)f->bytes_per_token);
    row(out, "", "%.1f at 50 GB/s, %.1f at 100 GB/s", 50e9 / (double)f->bytes_per_token,
        100e9 / (double)f->bytes_per_token);
}

int mode_info(const struct settings *s)
{
    struct pf_file_info f;
    struct buf out = { 0 };
    char a[24];
    if (pf_file_inspect(s->info, s->verify ? PF_FILE_VERIFY : 0, &f) < 0)
        die_failed(NULL);
    row(&out, "file", "%s", s->info);
    row(&out, "format", "GGUF %d, %" PRIu64 " keys, %" PRIu64 " tensors, %s in %d file%s", f.version, f.n_kv,
        f.n_tensors, size_text(a, (double)f.file_bytes), f.n_shards, f.n_shards == 1 ? "" : "s");
    row(&out, "architecture", "%s%s%s", f.architecture[0] ? f.architecture : "(not given)", f.name[0] ? ", " : "",
        f.name);
    if (f.kind[0] && strcmp(f.kind, "model") != 0)
        row(&out, "kind", "%s", f.kind);
    put_shape(&out, &f);
    put_types(&out, &f);
    put_needs(&out, &f);
    for (int i = 0; i < f.n_warnings; i++)
        row(&out, i ? "" : "warnings", "%s", f.warnings[i]);
    row(&out, "pfmoe", "%s",
        f.supported ? "has this architecture" : "does not have this architecture and cannot run the file");
    if (f.architecture[0] && f.n_layers)
        row(&out, "", "%s", f.likeness);
    if (s->verify)
        row(&out, "weights", "all read, no fault found");
    out_write(out.p, out.n);
    buf_free(&out);
    return EXIT_DONE;
}
