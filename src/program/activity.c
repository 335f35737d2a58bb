/* Counts of picks as JSON, CSV, a heat map and a table. A percentage is an expert's share of
 * its layer's activations. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "program/io/buf.h"
#include "program/report.h"

bool activity_read(struct activity *a, pf_model *m)
{
    const struct pf_model_info *info = pf_model_info(m);
    size_t n_layers = (size_t)info->n_layers, n_experts = (size_t)info->n_experts;
    *a = (struct activity){ .n_experts = (int)n_experts, .model = info->name[0] ? info->name : info->architecture,
                            .layer = xrealloc(NULL, n_layers, sizeof *a->layer),
                            .counts = xrealloc(NULL, n_layers * n_experts, sizeof *a->counts),
                            .total = xrealloc(NULL, n_layers, sizeof *a->total) };
    for (int il = 0; il < (int)n_layers; il++) {
        uint64_t *counts = a->counts + (size_t)a->n_layers * n_experts;
        int n;
        if (pf_trace_counts(m, il, counts, (int)n_experts, &n, &a->n_tokens) < 0)
            return false;
        if (n == 0)
            continue;
        a->layer[a->n_layers] = il;
        a->total[a->n_layers] = 0;
        for (int x = 0; x < n; x++)
            a->total[a->n_layers] += counts[x];
        a->n_layers++;
    }
    return true;
}

void activity_free(struct activity *a)
{
    free(a->layer);
    free(a->counts);
    free(a->total);
}

static uint64_t count_of(const struct activity *a, int i, int x)
{
    return a->counts[(size_t)i * (size_t)a->n_experts + (size_t)x];
}

static double percentage(const struct activity *a, int i, int x)
{
    return a->total[i] ? 100.0 * (double)count_of(a, i, x) / (double)a->total[i] : 0;
}

static void put_json_string(const char *text, FILE *f)
{
    struct buf clean = { 0 };
    buf_add_clean(&clean, text, strlen(text));
    putc('"', f);
    for (const char *s = buf_text(&clean); *s; s++) {
        if (*s == '"' || *s == '\\')
            fprintf(f, "\\%c", *s);
        else if ((unsigned char)*s < 32)
            fprintf(f, "\\u%04x", (unsigned)(unsigned char)*s);
        else
            putc(*s, f);
    }
    putc('"', f);
    buf_free(&clean);
}

void activity_json(const struct activity *a, FILE *f)
{
    fputs("{\"model\":", f);
    put_json_string(a->model, f);
    fprintf(f, ",\"total_tokens\":%llu,\"layers\":[", (unsigned long long)a->n_tokens);
    for (int i = 0; i < a->n_layers; i++) {
        fprintf(f, "%s\n{\"layer_id\":%d,\"experts\":[", i ? "," : "", a->layer[i]);
        for (int x = 0; x < a->n_experts; x++)
            fprintf(f, "%s{\"expert_id\":%d,\"activations\":%llu,\"percentage\":%.4f}", x ? "," : "", x,
                    (unsigned long long)count_of(a, i, x), percentage(a, i, x));
        fputs("]}", f);
    }
    fputs("\n]}\n", f);
}

void activity_csv(const struct activity *a, FILE *f)
{
    fputs("layer_id,expert_id,activations,percentage\n", f);
    for (int i = 0; i < a->n_layers; i++)
        for (int x = 0; x < a->n_experts; x++)
            fprintf(f, "%d,%d,%llu,%.4f\n", a->layer[i], x, (unsigned long long)count_of(a, i, x), percentage(a, i, x));
}

/* ---- Heat map: a row for each layer, a column for each expert ---------------------------------------------------- */

enum { SHADES = 32, CELL = 12, LEFT = 60, TOP = 40, BOTTOM = 46, MIN_WIDTH = 520 };

static int shade_of(const struct activity *a, int i, int x, double most)
{
    double p = percentage(a, i, x);
    return p > 0 ? 1 + (int)fmin(SHADES - 1, p / most * SHADES) : 0;
}

/* From nearly white to dark blue. */
static void put_rect(FILE *f, int x, int y, int width, int height, int shade)
{
    double t = (double)shade / SHADES;
    fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"rgb(%d,%d,%d)\"/>\n", x, y, width, height,
            (int)(235 - 227 * t), (int)(242 - 194 * t), (int)(250 - 143 * t));
}

/* Neighbours of one shade share a rectangle; what was never picked is the background. */
static void put_row(const struct activity *a, int i, double most, FILE *f)
{
    for (int x = 0, n; x < a->n_experts; x += n) {
        int shade = shade_of(a, i, x, most);
        for (n = 1; x + n < a->n_experts && shade_of(a, i, x + n, most) == shade; n++)
            ;
        if (shade > 0)
            put_rect(f, LEFT + x * CELL, TOP + i * CELL, n * CELL, CELL, shade);
    }
}

static void put_legend(const struct activity *a, double most, int height, FILE *f)
{
    int y = height - 22;
    for (int s = 1; s <= SHADES; s++)
        put_rect(f, LEFT + 90 + (s - 1) * 6, y, 6, CELL, s);
    fprintf(f, "<text x=\"%d\" y=\"%d\">share of picks</text><text x=\"%d\" y=\"%d\">%.2f%% (even: %.2f%%)</text>\n",
            LEFT, y + 10, LEFT + 100 + SHADES * 6, y + 10, most, 100.0 / a->n_experts);
}

void activity_svg(const struct activity *a, FILE *f)
{
    double most = 1e-9;
    for (int i = 0; i < a->n_layers; i++)
        for (int x = 0; x < a->n_experts; x++)
            most = fmax(most, percentage(a, i, x));
    int plot_width = LEFT + a->n_experts * CELL + 20, height = TOP + a->n_layers * CELL + BOTTOM;
    int width = plot_width < MIN_WIDTH ? MIN_WIDTH : plot_width;
    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
               "font-size=\"10\">\n"
               "<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n", width, height, width, height);
    fprintf(f, "<text x=\"%d\" y=\"16\" font-size=\"12\">Experts picked by %llu tokens: layers downwards, "
               "experts to the right</text>\n",
            LEFT, (unsigned long long)a->n_tokens);
    fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"rgb(248,248,248)\"/>\n", LEFT, TOP,
            a->n_experts * CELL, a->n_layers * CELL);
    for (int x = 0; x < a->n_experts; x += 8)
        fprintf(f, "<text x=\"%d\" y=\"%d\">%d</text>\n", LEFT + x * CELL, TOP - 4, x);
    for (int i = 0; i < a->n_layers; i++) {
        fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%d</text>\n", LEFT - 6, TOP + i * CELL + 10,
                a->layer[i]);
        put_row(a, i, most, f);
    }
    put_legend(a, most, height, f);
    fputs("</svg>\n", f);
}

/* ---- Table ------------------------------------------------------------------------------------------------------- */

/* How many equally busy experts would be as hard to foresee: 2 to the entropy. */
static double effective_experts(const struct activity *a, int i)
{
    double entropy = 0;
    for (int x = 0; x < a->n_experts; x++) {
        double p = percentage(a, i, x) / 100;
        entropy -= p > 0 ? p * log2(p) : 0;
    }
    return exp2(entropy);
}

void activity_table(const struct activity *a, FILE *f)
{
    fprintf(f, "%llu tokens\nlayer  activations  experts used  as many as  busiest  its share\n",
            (unsigned long long)a->n_tokens);
    for (int i = 0; i < a->n_layers; i++) {
        int n_used = 0, busiest = 0;
        for (int x = 0; x < a->n_experts; x++) {
            n_used += count_of(a, i, x) > 0;
            busiest = count_of(a, i, x) > count_of(a, i, busiest) ? x : busiest;
        }
        fprintf(f, "%5d %12llu %6d of %4d %11.1f %8d %9.2f%%\n", a->layer[i], (unsigned long long)a->total[i], n_used,
                a->n_experts, effective_experts(a, i), busiest, percentage(a, i, busiest));
    }
}
