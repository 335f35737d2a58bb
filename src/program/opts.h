/* The options of pfmoe-run, by flag, by environment variable or with /set: one table (opt_table.c) makes all three, and
 * --help and the manual page's list. Flags win over the environment, the environment over the values here.
 *
 * Strings are borrowed from argv or the environment, which live as long as the program. */
#ifndef PF_PROGRAM_OPTS_H
#define PF_PROGRAM_OPTS_H

#include "program/io/buf.h"
#include "program/report.h"

enum { MAX_TEXTS = 16, MAX_WHOLES = 64, MAX_LORAS = 16 };
enum { UNSET = -1 };                        /* a number that nobody gave: the model's own or the built-in value holds */

struct whole_list {
    int n, v[MAX_WHOLES];
};

struct text_list {
    int n;
    const char *v[MAX_TEXTS];
};

struct lora_list {
    int n;
    struct pf_adapter v[MAX_LORAS];
};

struct settings {
    /* what to do */
    const char *model, *prompt, *file, *info, *score, *tokenize, *detokenize, *splits, *render, *parse;
    const char *operand;                    /* the word after the flags: --splits PRE FILE, --parse FAMILY FILE */
    const char *load;                       /* a saved chat */
    const char *hf;                         /* a model by its name on the hub */
    const char *models, *models_name;       /* "pull", "list" or "rm", and the word after it */
    bool raw, verify, plan, json;
    const char *card;                       /* of the machine that is planned for; NULL: this one's */
    /* the conversation */
    const char *system, *template, *reasoning_effort;
    int think;                              /* index into the choices */
    /* the answer */
    int64_t n_predict;                      /* UNSET: to the end */
    struct text_list stops;
    const char *json_schema, *grammar;      /* files */
    bool ignore_eos;
    double temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, penalty_last_n, seed;
    /* the machine */
    int64_t n_ctx, n_threads, ram_mb;
    struct whole_list gpus, vram_mb;        /* PF_MAX_GPUS at most */
    int layout;                             /* index into the choices */
    const char *hosts;                      /* of several processes (hosts.h); NULL: there is one */
    int64_t rank;                           /* UNSET: see hosts.h */
    double vram_gb_s, pcie_gb_s, ram_gb_s, disk_gb_s;        /* 0: measure or assume */
    bool streaming, no_nvme;
    int kv, isa;                            /* indices into the choices */
    /* experts between CPU and GPU; UNSET in numbers is "auto" */
    int postfetch, force_cpu, block_on_miss, dedicated_streams, postfetch_debug;   /* indices into the choices */
    int64_t max_transfers, scratchpad_mb, cpu_limit;
    const char *draft;                      /* off, auto, lookup, mtp, or a file */
    int64_t draft_max;
    struct lora_list loras;
    struct report report;
    /* checking */
    const char *logits;
    bool step;
    struct whole_list chunks;
    int64_t pieces;                         /* seed; UNSET: the whole at once */
};

enum { ISA_SCALAR, ISA_AVX2, ISA_AVXVNNI, ISA_AVX512, ISA_VNNI, ISA_VBMI, ISA_AMX };
enum { THINK_AUTO, THINK_ON, THINK_OFF };
enum { KV_I16, KV_F32, KV_Q8_0 };
enum { CHOSE_AUTO, CHOSE_0, CHOSE_1 };      /* indices of auto|0|1; of 0|1 the index is the value */

/* --think as pf_chat_opts has it. */
int opts_thinking(const struct settings *s);

/* Reads the environment and the command line. --help, --version and the like, and mistakes, end the program. */
void opts_read(struct settings *s, int argc, char **argv);

/* Sets an option that a running chat may change; "-" is its default. False: *why (never NULL) says why not; it is
 * static or lives until the next call. */
bool opts_set(struct settings *s, const char *name, const char *value, const char **why);

/* Name, and the choices ("" where it is a number), of number i = 0, 1, .. of these options; false past the last. */
bool opts_live(int i, const char **name, const char **arg);

/* The value of one of them, as opts_set takes it. False: it is the default. */
bool opts_get(const struct settings *s, const char *name, char *value, size_t cap);

/* Appends a line "name  value  meaning" for everything that opts_set takes. */
void opts_list(const struct settings *s, struct buf *out);

/* Copy options about instructions, experts, adapters, reports and drafts into those of the library (opts_shared.c). */
void opts_shared_model(const struct settings *s, struct pf_model_opts *o);
void opts_shared_session(const struct settings *s, struct pf_session_opts *o);

/* Ends the program unless --gpus names up to PF_MAX_GPUS of them, or is -1 alone, the CPU. */
void opts_check_gpus(const struct whole_list *gpus);

#endif
