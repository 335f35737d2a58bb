/* pfmoe-synth PRESET OUT.gguf: a model of a published model's exact shape with random valid weights, so that anyone can
 * see what a machine will do before downloading 60 GB. It talks nonsense at the real model's speed.
 *
 *     preset (sizes, types) -> list of tensors -> header: keys, tensor directory -> weights, block by block */
#define _GNU_SOURCE
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program/io/buf.h"
#include "program/opt_row.h"
#include "synth_fill.h"
#include "synth_keys.h"

enum { BUFFER_BYTES = 16 << 20 };

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

static void write_all(FILE *f, const char *path, const void *p, size_t n)
{
    if (fwrite(p, 1, n, f) != n)
        die(EXIT_FAILED, "writing %s failed: %s", path, strerror(errno));
}

/* One line on a terminal's standard error, redrawn when the percentage changes and taken back at the end. */
static void show_progress(uint64_t done, uint64_t total)
{
    static int last = -1;
    int percent = (int)(100.0 * (double)done / (double)total);
    if (percent == last || !isatty(STDERR_FILENO))
        return;
    last = percent;
    fprintf(stderr, "\rwriting %3d%% of %.1f GB", percent, (double)total * 1e-9);
    if (done == total)
        fputs("\r\033[K", stderr);
    fflush(stderr);
}

/* Entries first .. of a table: of each row distinct numbers. */
static void fill_ids(const struct tensor *t, uint64_t first, size_t n, int32_t *out)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t row = (first + i) / t->ne[0], column = (first + i) % t->ne[0];
        out[i] = (int32_t)((row * 7 + column * (1 + row % 3)) % (uint64_t)t->n_ids);
    }
}

/* Bytes from the first tensor's first one to the last tensor's last one. */
static uint64_t weight_bytes(const struct model *m)
{
    const struct tensor *last = &m->tensors[m->n_tensors - 1];
    return last->offset + last->n_bytes;
}

static void write_tensor(FILE *f, const char *path, const struct model *m, const struct tensor *t,
                         struct synth_rng *rng, char *buffer)
{
    size_t chunk = BUFFER_BYTES / t->type->block_bytes * t->type->block_bytes;
    for (uint64_t done = 0; done < t->n_bytes;) {
        size_t n = t->n_bytes - done < chunk ? (size_t)(t->n_bytes - done) : chunk;
        if (t->n_ids)
            fill_ids(t, done / 4, n / 4, (int32_t *)(void *)buffer);
        else if (t->type == m->f32)
            synth_fill_floats(rng, t->mean, t->rms, (float *)(void *)buffer, n / 4);
        else
            synth_fill(rng, t->type, t->rms, buffer, n);
        write_all(f, path, buffer, n);
        done += n;
        show_progress(t->offset + done, weight_bytes(m));
    }
    static const char zeros[SYNTH_ALIGN];
    write_all(f, path, zeros, (SYNTH_ALIGN - t->n_bytes % SYNTH_ALIGN) % SYNTH_ALIGN);
}

/* Weights of zeros that take no room: the file is as long as it should be. */
static void leave_out(FILE *f, const char *path, const struct model *m, size_t header_bytes)
{
    if (ftruncate(fileno(f), (off_t)(header_bytes + weight_bytes(m))) != 0)
        die(EXIT_FAILED, "writing %s failed: %s", path, strerror(errno));
}

static void write_model(const struct model *m, const char *path, uint64_t seed, bool sparse)
{
    struct header h = { 0 };
    struct synth_rng rng;
    char *buffer = xrealloc(NULL, BUFFER_BYTES, 1);
    FILE *f = fopen(path, "wb");
    if (!f)
        die(EXIT_FAILED, "cannot create %s: %s", path, strerror(errno));
    setvbuf(f, NULL, _IONBF, 0);
    synth_build_header(&h, m);
    write_all(f, path, h.p, h.n);
    synth_seed(&rng, seed);
    for (size_t i = 0; !sparse && i < m->n_tensors; i++)
        write_tensor(f, path, m, &m->tensors[i], &rng, buffer);
    if (sparse)
        leave_out(f, path, m, h.n);
    if (fclose(f) != 0)
        die(EXIT_FAILED, "writing %s failed: %s", path, strerror(errno));
    free(buffer);
    free(h.p);
}

/* ---- Command line ----------------------------------------------------------------------------------------------- */

#define AT(member) offsetof(struct command, member)

struct command {
    struct settings base;                 /* the first member (opt_row.h) */
    const char *words[2];                 /* preset, file */
    const char *type, *expert_type, *down_type, *output_type, *mix;      /* NULL: the preset's */
    int64_t     n_layer, n_expert, n_vocab, seed;                        /* 0: the preset's */
    bool        sparse;
};

static const struct opt rows[] = {
    { GROUP_WHAT, 0, "layers", WHOLE, "N", AT(n_layer), 1, 1 << 24, NULL, false, "instead of the preset's" },
    { GROUP_WHAT, 0, "experts", WHOLE, "N", AT(n_expert), 1, 1 << 24, NULL, false, "experts a layer" },
    { GROUP_WHAT, 0, "vocab", WHOLE, "N", AT(n_vocab), N_REAL, 1 << 24, NULL, false, "vocabulary size" },
    { GROUP_WHAT, 0, "type", TEXT, "T", AT(type), 0, 0, NULL, false,
      "type of dense weights (and of experts, where the preset has one type for both)" },
    { GROUP_WHAT, 0, "expert-type", TEXT, "T", AT(expert_type), 0, 0, NULL, false, "type of gate and up" },
    { GROUP_WHAT, 0, "down-type", TEXT, "T", AT(down_type), 0, 0, NULL, false, "type of down" },
    { GROUP_WHAT, 0, "output-type", TEXT, "T", AT(output_type), 0, 0, NULL, false, "type of the output head" },
    { GROUP_WHAT, 0, "mix", TEXT, "T[,T...]", AT(mix), 0, 0, NULL, false,
      "types that the matrices take in turn, instead of all these" },
    { GROUP_WHAT, 0, "seed", WHOLE, "N", AT(seed), 0, 1 << 24, NULL, false, "of the random weights (default 1)" },
    { GROUP_WHAT, 0, "sparse", FLAG, NULL, AT(sparse), 0, 0, NULL, false,
      "weights of zeros that take no room on the disk: to plan for a model, not to run it" },
};

/* Whether pfmoe-synth has an option of pfmoe-run's table. */
static bool takes(const struct opt *o)
{
    return o->group >= GROUP_HELP;
}

static void print_more(void)
{
    fputs("\ntypes:", stdout);
    for (size_t i = 0; synth_type_name(i); i++)
        printf(" %s", synth_type_name(i));
    fputs("\n\npresets:\n", stdout);
    for (size_t i = 0; i < synth_n_presets; i++)
        printf("  %-20s %s\n", synth_presets[i].name, synth_presets[i].about);
}

static const struct opts_program program = {
    .name = "pfmoe-synth",
    .usage = "usage: pfmoe-synth PRESET OUT.gguf [options]\n\n"
             "Writes a model of a published model's shape with random weights.",
    .operands = "pfmoe-synth takes two words, a preset and a file",
    .takes = takes, .own = rows, .n_own = sizeof rows / sizeof *rows, .words = AT(words), .n_words = 2,
    .more = print_more,
};

static const struct synth_type *type_or_die(const char *name)
{
    const struct synth_type *t = synth_type_find(name);
    if (!t)
        die(EXIT_USAGE, "type %s is unknown (see --help)", name);
    return t;
}

static void choose_mix(struct model *m, const char *list)
{
    char name[16];
    for (int n; list && *list; list += list[n] ? n + 1 : n) {
        if (sscanf(list, "%15[^,]%n", name, &n) != 1 || m->n_mix == SYNTH_MAX_MIX)
            die(EXIT_USAGE, "--mix: expected up to %d types with commas between them", SYNTH_MAX_MIX);
        m->mix[m->n_mix++] = type_or_die(name);
    }
}

static void choose_types(struct model *m)
{
    const struct preset *p = &m->p;
    static const struct synth_type i32 = { .name = "I32", .id = 26, .block_len = 1, .block_bytes = 4 };
    m->f32 = synth_type_find("F32");
    m->i32 = &i32;
    m->type = type_or_die(p->type);
    m->expert_type = p->expert_type ? type_or_die(p->expert_type) : m->type;
    m->down_type = p->down_type ? type_or_die(p->down_type) : m->expert_type;
    m->output_type = p->output_type ? type_or_die(p->output_type) : m->type;
}

/* The preset, with what the command line gives in its place. */
static struct preset choose_preset(const struct command *c)
{
    struct preset p = { 0 };
    for (size_t i = 0; i < synth_n_presets; i++)
        if (strcmp(synth_presets[i].name, c->words[0]) == 0)
            p = synth_presets[i];
    if (!p.name)
        die(EXIT_USAGE, "there is no preset %s (see --help)", c->words[0]);
    if (c->n_expert && !p.n_expert)
        die(EXIT_USAGE, "preset %s has no experts", p.name);
    if (c->n_expert && c->n_expert < p.n_used)
        die(EXIT_USAGE, "--experts %d: preset %s uses %d a token", (int)c->n_expert, p.name, p.n_used);
    p.n_layer = c->n_layer ? (int)c->n_layer : p.n_layer;
    p.n_vocab = c->n_vocab ? (int)c->n_vocab : p.n_vocab;
    p.n_expert = c->n_expert ? (int)c->n_expert : p.n_expert;
    p.type = c->type ? c->type : p.type;
    p.expert_type = c->expert_type ? c->expert_type : p.expert_type;
    p.down_type = c->down_type ? c->down_type : p.down_type;
    p.output_type = c->output_type ? c->output_type : p.output_type;
    return p;
}

int main(int argc, char **argv)
{
    struct command c = { .seed = 1 };
    struct model m = { 0 };
    opts_read_of(&program, &c.base, argc, argv);
    if (!c.words[1])
        die(EXIT_USAGE, "two words are needed, a preset and a file (see --help)");
    m.p = choose_preset(&c);
    choose_types(&m);
    choose_mix(&m, c.mix);
    synth_list_tensors(&m);
    write_model(&m, c.words[1], (uint64_t)c.seed, c.sparse);
    free(m.tensors);
    return EXIT_DONE;
}
