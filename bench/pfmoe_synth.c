/* pfmoe-synth PRESET OUT.gguf: a model of a published model's exact shape with random valid weights, so that anyone can
 * see what a machine will do before downloading 60 GB. It talks nonsense at the real model's speed.
 *
 *     preset (sizes, types) -> list of tensors -> header: keys, tensor directory -> weights, block by block */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "program/io/buf.h"
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

/* Of all tensors, from the first one's first byte to the last one's last. */
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

static void usage(void)
{
    fputs("usage: pfmoe-synth PRESET OUT.gguf [options]\n"
          "Writes a model of a published model's shape with random weights.\n\n"
          "  --layers N        instead of the preset's\n"
          "  --experts N       experts a layer\n"
          "  --vocab N         vocabulary size\n"
          "  --type T          type of dense weights (and of experts, where the preset has one type for both)\n"
          "  --expert-type T   type of gate and up\n"
          "  --down-type T     type of down\n"
          "  --output-type T   type of the output head\n"
          "  --mix T,T,...     types that the matrices take in turn, instead of all these\n"
          "  --seed N          of the random weights (default 1)\n"
          "  --sparse          weights of zeros that take no room on the disk: to plan for a model, not to run it\n"
          "types:", stdout);
    for (size_t i = 0; synth_type_name(i); i++)
        printf(" %s", synth_type_name(i));
    fputs("\n\npresets:\n", stdout);
    for (size_t i = 0; i < synth_n_presets; i++)
        printf("  %-16s %s\n", synth_presets[i].name, synth_presets[i].about);
}

static int number(const char *option, const char *text, int min)
{
    char *end;
    long v = strtol(text, &end, 10);
    if (*end || end == text || v < min || v > 1 << 24)
        die(EXIT_USAGE, "--%s %s: expected a number from %d on", option, text, min);
    return (int)v;
}

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

int main(int argc, char **argv)
{
    enum { LAYERS = 256, EXPERTS, VOCAB, TYPE, EXPERT_TYPE, DOWN_TYPE, OUTPUT_TYPE, MIX, SEED, SPARSE };
    static const struct option options[] = {
        { "layers", required_argument, 0, LAYERS },           { "experts", required_argument, 0, EXPERTS },
        { "vocab", required_argument, 0, VOCAB },             { "type", required_argument, 0, TYPE },
        { "expert-type", required_argument, 0, EXPERT_TYPE }, { "down-type", required_argument, 0, DOWN_TYPE },
        { "output-type", required_argument, 0, OUTPUT_TYPE }, { "mix", required_argument, 0, MIX },
        { "seed", required_argument, 0, SEED },               { "sparse", no_argument, 0, SPARSE },
        { "help", no_argument, 0, 'h' },
        { 0, 0, 0, 0 },
    };
    struct preset o = { 0 };              /* values that the command line gives in place of the preset's */
    const char *mix = NULL;
    uint64_t seed = 1;
    bool sparse = false;
    opterr = 0;
    for (int c; (c = getopt_long(argc, argv, ":h", options, NULL)) != -1;)
        switch (c) {
        case LAYERS:      o.n_layer = number("layers", optarg, 1); break;
        case EXPERTS:     o.n_expert = number("experts", optarg, 1); break;
        case VOCAB:       o.n_vocab = number("vocab", optarg, N_REAL); break;
        case TYPE:        o.type = optarg; break;
        case EXPERT_TYPE: o.expert_type = optarg; break;
        case DOWN_TYPE:   o.down_type = optarg; break;
        case OUTPUT_TYPE: o.output_type = optarg; break;
        case MIX:         mix = optarg; break;
        case SPARSE:      sparse = true; break;
        case SEED:        seed = (uint64_t)number("seed", optarg, 0); break;
        case 'h':         usage(); return EXIT_DONE;
        default:          die_of_option(c, argv);
        }
    if (argc - optind != 2)
        die(EXIT_USAGE, "two words are needed, a preset and a file (see --help)");
    struct model m = { 0 };
    for (size_t i = 0; i < synth_n_presets; i++)
        if (strcmp(synth_presets[i].name, argv[optind]) == 0)
            m.p = synth_presets[i];
    if (!m.p.name)
        die(EXIT_USAGE, "there is no preset %s (see --help)", argv[optind]);
    m.p.n_layer = o.n_layer ? o.n_layer : m.p.n_layer;
    m.p.n_vocab = o.n_vocab ? o.n_vocab : m.p.n_vocab;
    if (o.n_expert && !m.p.n_expert)
        die(EXIT_USAGE, "preset %s has no experts", m.p.name);
    m.p.n_expert = o.n_expert ? o.n_expert : m.p.n_expert;
    if (m.p.n_expert && m.p.n_expert < m.p.n_used)
        die(EXIT_USAGE, "--experts %d: preset %s uses %d a token", m.p.n_expert, m.p.name, m.p.n_used);
    m.p.type = o.type ? o.type : m.p.type;
    m.p.expert_type = o.expert_type ? o.expert_type : m.p.expert_type;
    m.p.down_type = o.down_type ? o.down_type : m.p.down_type;
    m.p.output_type = o.output_type ? o.output_type : m.p.output_type;
    choose_types(&m);
    choose_mix(&m, mix);
    synth_list_tensors(&m);
    write_model(&m, argv[optind + 1], seed, sparse);
    free(m.tensors);
    return 0;
}
