/* pfmoe: an inference engine for mixture-of-experts language models that do not fit the GPU.
 *
 * A program opens a model (immutable, shareable between threads), opens sessions on it (one mutable sequence of
 * tokens each), makes a session's sequence equal to the tokens it wants answered, and samples from the logits:
 *
 *     pf_model_open -> pf_session_open -> pf_tokenize -> pf_session_sync -> { pf_sample -> pf_session_eval }*
 *
 * Conventions, valid for every function unless its comment says otherwise:
 *  - pf_status is 0 or a negative code. After a failure pf_last_error() holds one sentence for this thread, output
 *    handles are NULL and everything else is as it was before the call.
 *  - Shapes are in GGUF order: the first dimension is contiguous. Sizes are bytes, times nanoseconds, counts n_.
 *  - Text is bytes with a length; nothing needs a terminator and nothing writes one.
 *  - Functions that fill a caller's buffer store the full size in *need (or *n) even when they return PF_ESPACE, and
 *    write nothing past cap. A buffer may be NULL when its capacity is 0.
 *  - Borrowed pointers are marked so, with how long they live. Strings passed in are not kept.
 *  - A thread that calls should have 2 MiB of stack, as the threads of the library have whatever `ulimit -s` says.
 *  - The library never prints, exits, aborts or reads the environment. */
#ifndef PFMOE_H
#define PFMOE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What the shared library exports is what this file declares. */
#define PF_API_BEGIN _Pragma("GCC visibility push(default)")
#define PF_API_END   _Pragma("GCC visibility pop")
PF_API_BEGIN

/* ---- Status ------------------------------------------------------------------------------------------------ */

/* Stable codes, spaced by tens: the caller, memory, file and format, device, numbers. */
typedef enum pf_status {
    PF_OK           = 0,
    PF_EINVAL       = -1,      /* an argument is out of its range */
    PF_ESPACE       = -2,      /* the caller's buffer is too small; *need says how large it must be */
    PF_ECONTEXT     = -3,      /* the tokens do not fit the session's context */
    PF_ECANCEL      = -4,      /* pf_session_cancel was called, or a pf_cancel_fn said so */
    PF_ENOMEM       = -10,
    PF_EIO          = -20,     /* opening, reading or writing failed */
    PF_EFORMAT      = -21,     /* the file is malformed */
    PF_EUNSUPPORTED = -22,     /* well-formed, but an architecture, type or feature that pfmoe does not have */
    PF_ECHANGED     = -23,     /* the file changed while it was in use */
    PF_ETEMPLATE    = -24,     /* the chat template does not parse, or raised an error */
    PF_EDEVICE      = -30,
    PF_ENUMERIC     = -40      /* a value that must be finite is not */
} pf_status;

const char *pf_version(void);                 /* "0.1.0"; static */
const char *pf_strstatus(pf_status st);       /* a short name for any code; static */

/* One sentence on this thread's last failure, "" if there was none; borrowed until the thread's next failure. */
const char *pf_last_error(void);

/* ---- Machine ----------------------------------------------------------------------------------------------- */

/* Instruction sets with kernels of their own. A mask allows levels; the best allowed one the CPU has is used. All
 * levels give the same bits. */
enum {
    PF_ISA_SCALAR = 1u << 0,   /* always allowed */
    PF_ISA_AVX2   = 1u << 1,   /* AVX2, FMA, F16C */
    PF_ISA_AVX512 = 1u << 2,   /* AVX-512 F, BW, DQ, VL */
    PF_ISA_VNNI   = 1u << 3,   /* AVX512-VNNI; needs PF_ISA_AVX512 too */
    PF_ISA_AMX    = 1u << 4,   /* AMX-TILE and AMX-INT8; needs PF_ISA_VNNI too */
    PF_ISA_VBMI   = 1u << 5,   /* AVX512-VBMI, VBMI2 and GFNI; needs PF_ISA_VNNI too */
    PF_ISA_AVXVNNI = 1u << 6,  /* AVX-VNNI: VNNI of 256 bits; needs PF_ISA_AVX2 too */
    PF_ISA_ALL    = ~0u
};

struct pf_device {
    char     name[64];         /* the CPU's or GPU's own name, "" if the system does not say */
    char     backend[16];      /* "cpu", "cuda" */
    char     driver[48];       /* a GPU's driver: its release, where the system shows it, and the newest CUDA it
                                  runs, "570.86.15, CUDA 12.8"; "" for the CPU */
    uint64_t memory_bytes;     /* total memory of the device */
    uint32_t isa;              /* PF_ISA_ bits present; 0 for other devices than the CPU */
    int      n_units;          /* cores this process may use; multiprocessors of a GPU */
};
/* Fills at most cap entries with the usable devices, the CPU first; returns how many there are. */
int pf_devices(struct pf_device *out, int cap);

/* Bytes a second that reading the memory of GPU number `gpu` reaches at this moment; 0 where there is no such GPU or
 * its memory is taken. Takes some milliseconds. */
double pf_gpu_bandwidth(int gpu);

/* Bytes a second that copies from [host, host + bytes) to GPU number `gpu` reach; the range is pinned meanwhile. With
 * meanwhile not NULL, copies are measured while meanwhile(ctx) runs. 0 where there is no such GPU or no way to copy;
 * meanwhile may then not have been called. */
double pf_gpu_copy_bandwidth(int gpu, void *host, size_t bytes, void (*meanwhile)(void *ctx), void *ctx);

/* ---- Files ------------------------------------------------------------------------------------------------- */

enum { PF_MAX_TYPES = 64 };
enum { PF_FILE_VERIFY = 1u << 0 };            /* read every weight and check scales and values, see pf_file_inspect */

struct pf_file_type_use {
    char     name[16];         /* "Q4_K" */
    uint64_t n_tensors;
    uint64_t bytes;
};
/* The contents of a GGUF file, whether or not pfmoe can run it. Strings are "" and numbers 0 where the file
 * is silent. */
struct pf_file_info {
    char     architecture[64], name[128], kind[32];    /* kind: "model", "vocab", "adapter", ... */
    int      version;
    int      n_shards;
    uint64_t n_kv, n_tensors;
    uint64_t file_bytes;                               /* all shards */
    uint64_t weight_bytes;
    uint64_t n_params;
    bool     supported;                                /* pfmoe has this architecture */
    int64_t  n_layers, n_ctx_train, n_embd, n_heads, n_kv_heads, n_ff, n_vocab;
    int64_t  n_experts, n_experts_used, n_ff_expert;
    uint64_t expert_bytes;                             /* routed experts, all layers */
    uint64_t bytes_per_token;                          /* weights read to decode one token */
    uint64_t kv_bytes_per_token;                       /* I16, of all layers; windows hold fewer tokens */
    int      n_types;
    struct pf_file_type_use types[PF_MAX_TYPES];       /* by falling bytes */
    int      n_warnings;                               /* the file loads, but not everywhere, or not as written */
    char     warnings[8][256];
    char     likeness[512];                            /* a sentence: which architecture that pfmoe has this one is most
                                                          like, and what it has or lacks beside that one */
};
/* Reads the headers of a GGUF file (and of its other shards) and fills *out. With PF_FILE_VERIFY every byte of every
 * tensor is read too: a scale or float that is NaN or infinite, or a code its type does not have, is PF_EFORMAT. */
pf_status pf_file_inspect(const char *path, unsigned flags, struct pf_file_info *out);

/* ---- Model ------------------------------------------------------------------------------------------------- */

typedef struct pf_model pf_model;

enum pf_log_level { PF_LOG_ERROR, PF_LOG_WARN, PF_LOG_INFO, PF_LOG_DEBUG };
typedef void pf_log_fn(void *ctx, enum pf_log_level level, const char *text);

/* Progress of loading: done of total bytes are in memory. Called from the thread that loads. */
typedef void pf_progress_fn(void *ctx, uint64_t done, uint64_t total);

/* Asked every few milliseconds of work, on the thread that works: true ends the call with PF_ECANCEL, and what was true
 * before it is true again. */
typedef bool pf_cancel_fn(void *ctx);

/* How experts in memory are used together with a GPU. Post-fetch computes an expert's gate and up on the CPU while its
 * down crosses to the GPU. PF_AUTO: decided from measured prices. None of it changes a bit of the results. */
enum { PF_AUTO = -1 };
struct pf_postfetch_opts {
    bool     enable;             /* default true; false: never post-fetch, other ways of sharing the work stay */
    bool     force_cpu;          /* no expert on the GPU, not even those that lie there */
    int      block_on_miss;      /* a down that has not arrived: 1 wait for it, 0 take the CPU; PF_AUTO
                                    (default): what is less */
    int      max_transfers;      /* under way at once; default 8 */
    uint32_t scratchpad_mb;      /* memory of the GPU for transfers, in MB of 1e6 bytes; 0: sized from the model */
    bool     dedicated_streams;  /* default true; false: copies take turns with computing */
    int      cpu_limit;          /* experts of a layer whose gate and up the CPU takes, the rest goes to
                                    the GPU; PF_AUTO */
    bool     debug;              /* log a line for each transfer */
};

/* Bytes a second: the GPU's memory, copies to the GPU, main memory, the drive. */
struct pf_speeds {
    double vram_bytes_s, pcie_bytes_s, ram_bytes_s, disk_bytes_s;
};

/* An exchange between two GPUs: how long one takes that is hardly anything, and bytes a second of what is more. */
struct pf_link {
    double seconds, bytes_s;
};

/* A LoRA adapter in a GGUF file: low-rank additions to some of the model's matrices. */
struct pf_adapter {
    const char *path;
    float       scale;               /* 1: as it was made */
};

enum { PF_MAX_THREADS = 256 };
enum { PF_MAX_GPUS = 8 };

/* How a model is divided between several GPUs; which one computes changes no bit. */
enum pf_layout {
    PF_LAYOUT_AUTO,                  /* what decodes fastest by the prices of memory and link, which is measured: one
                                        of those below, or the first GPU alone */
    PF_LAYOUT_LAYERS,                /* each GPU has some of the layers, with their keys and values, and shares the
                                        experts of these with the CPU if all GPUs have no room for the model */
    PF_LAYOUT_EXPERTS,               /* each GPU has some of the experts of every layer, the first one all else of the
                                        model; experts that all GPUs have no room for are shared with the CPU. Where
                                        the first one has no room for all else, as PF_LAYOUT_LAYERS */
    PF_LAYOUT_ROWS                   /* each GPU has rows of every matrix and of every expert, and heads with their keys
                                        and values; for models of attention and feed-forward that have room so, others
                                        as PF_LAYOUT_LAYERS */
};

struct pf_model_opts {
    int              n_threads;      /* computing threads, at most PF_MAX_THREADS; 0: one per core this process may
                                        use, at most 64 */
    uint32_t         isa;            /* PF_ISA_ mask; default PF_ISA_ALL */
    int              device;         /* the GPU to use for as much of the model as fits it, the first is 0
                                        (default); -1: CPU only */
    uint64_t         vram_bytes;     /* memory of the GPU that may be taken; 0: what is free */
    bool             vocab_only;     /* tokenizer and chat template only: architecture and tensors are not looked at */
    uint64_t         ram_bytes;      /* memory for weights, keys, values and scratch; 0: what the system can spare */
    bool             streaming;      /* never hold the whole model in memory, even if it fits */
    bool             nextn;          /* opens the layer that guesses the token after the next (multi-token
                                        prediction), too, if the file has one that can run: PF_DRAFT_MTP */
    const char      *draft_path;     /* a second, smaller model of the same tokens, which is opened with this one,
                                        belongs to it and is closed with it: PF_DRAFT_MODEL; NULL: none. Not kept */
    bool             no_nvme;        /* never read weights from the drive while running: fail if memory is too small */
    struct pf_speeds speeds;         /* how fast the machine is; only pf_model_plan looks at it */
    struct pf_link   link;           /* between GPUs; likewise */
    struct pf_postfetch_opts postfetch;
    const struct pf_adapter *adapters;   /* n_adapters of them, added one after the other; not kept */
    int              n_adapters;
    const char      *routing;        /* a routing trace whose picks and weights take the place of the router's:
                                        position p uses token p, from the start again at its end; NULL: none.
                                        For measurements */
    int              timeline_spans; /* keep so many newest spans of time for pf_timeline_write; 0 (default): none */
    pf_log_fn       *log;            /* NULL: silent. Never called from a computing thread */
    void            *log_ctx;
    pf_cancel_fn    *cancel;         /* asked while the model opens, between its parts, and later by every call with
                                        this model that may be long and is no session's: pf_model_preload,
                                        pf_model_measure, pf_tokenize, pf_chat_render; NULL: nobody is asked */
    void            *cancel_ctx;
    int              n_gpus;         /* GPUs to use together, each once; 0 (default): `device` alone */
    int              gpus[PF_MAX_GPUS];
    uint64_t         gpu_bytes[PF_MAX_GPUS];     /* memory of each that may be taken; 0: what is free */
    enum pf_layout   layout;
    int              n_ranks;        /* processes that have one model together, on one machine or several, each with
                                        some of its layers or, if the layout is by rows, with rows of all of them; 0 or
                                        1: this one alone. They need NVIDIA's NCCL, which finds rank 0 by the
                                        environment (NCCL_COMM_ID), and a GPU each, and have to be started within five
                                        minutes. PF_MAX_GPUS at most */
    int              rank;           /* which of them this one is. Rank 0 has the sessions; see pf_model_follow */
    int              n_batch;        /* of the sessions to come (struct pf_session_opts), for whose steps a GPU keeps
                                        room beside weights; 0: 512 */
};
void pf_model_opts_init(struct pf_model_opts *o);

/* Opens a GGUF file (of a model in several shards the first). Reads headers, checks every tensor, maps the weights; a
 * weight is read from disk when first used, and if memory is too small for all of them (see pf_model_plan), it may have
 * to be read again: by this program, past the page cache. o may be NULL for the defaults; nothing of it is kept but the
 * callbacks. The model is immutable afterwards and may be used from any thread. */
pf_status pf_model_open(pf_model **out, const char *path, const struct pf_model_opts *o);

/* A plan: which memory would hold which weights, and how fast decoding would be if routing were random (real routing
 * repeats itself and does better). A slab is what is placed and read at once: an expert, or one layer of a model
 * without experts. */
enum pf_tier { PF_TIER_VRAM, PF_TIER_RAM, PF_TIER_DISK, PF_N_TIERS };
enum pf_price { PF_PRICE_ASSUMED, PF_PRICE_MEASURED, PF_PRICE_GIVEN };
struct pf_plan_tier {
    uint64_t n_slabs, bytes;         /* weights that live in this tier and in no nearer one */
    double   token_bytes;            /* read from this tier to decode a token */
    double   bytes_s;                /* speed of this tier */
    double   tok_s;                  /* tokens a second if only this tier took time; 0: no token reads from it */
    enum pf_price price;             /* where bytes_s comes from */
};
struct pf_plan {
    struct pf_plan_tier tiers[PF_N_TIERS];
    bool         resident;           /* nothing is read from the drive while running */
    uint64_t     vram_budget_bytes, ram_budget_bytes;  /* given or found; no VRAM: it is not used */
    int64_t      n_ctx;              /* positions of the session that was planned for */
    uint64_t     other_bytes;        /* keys, values and scratch of a session, in the memory that holds the
                                        weights of every token */
    uint64_t     far_bytes;          /* keys and values in main memory, for want of room in the GPU's */
    uint64_t     vram_slot_bytes;    /* room for experts in the GPU's memory */
    uint64_t     slot_bytes;         /* room in main memory for weights that are read and evicted */
    enum pf_tier limit;              /* the tier that limits tok_s */
    double       tok_s;
    uint64_t     visit_bytes;        /* weights that cross to the GPU in each step of a prompt, of layers that the CPU
                                        computes otherwise; 0: none */
    int          visit_rows;         /* tokens of such a step */
    double       visit_tok_s;        /* tokens a second of a prompt if only copying them took time */
    int          n_gpus;             /* GPUs that would be used; 0: none, or one that is only described */
    struct pf_plan_gpu {
        int      gpu;
        uint64_t budget_bytes;
        int      first_layer, n_layers;          /* the layers that it computes, at least in part */
        int      first_expert, n_experts;        /* its experts of these; n_experts 0: all, or shared with the CPU */
        double   rows;                           /* its share of these layers' rows and heads; 0: all */
    } gpus[PF_MAX_GPUS];
    enum pf_layout layout;           /* how these divide the model; AUTO: one has all that GPUs have */
    struct pf_link link;             /* of several GPUs, */
    enum pf_price  link_price;       /* and where that comes from */
    int          n_layouts;          /* ways to use several GPUs that were weighed against each other; 0: there was no
                                        choice */
    struct pf_plan_layout {
        enum pf_layout layout;                   /* AUTO: the first GPU alone */
        double         tok_s;                    /* as above */
    } layouts[PF_LAYOUT_ROWS + 1];
};
struct pf_session_opts;
/* Plans for the model at path and a session of it, without reading more of the weights than it takes to measure the
 * drive. o: as for pf_model_open; with vram_bytes or speeds it describes another machine. Speeds that are 0 are
 * measured (main memory, the drive) or assumed (the GPU). so may be NULL. PF_ENOMEM: there is no way to run the
 * model in this memory. */
pf_status pf_model_plan(const char *path, const struct pf_model_opts *o, const struct pf_session_opts *so,
                        struct pf_plan *out);

/* Of one of several processes other than rank 0, on a model that is open on all of them, each with its own copy of the
 * file: computes what rank 0 asks for, until that closes the model (PF_OK). Nothing else can be done with such a model
 * but to preload and close it. PF_EIO: a process is lost, and so is the model on all others, whose steps fail with
 * PF_EIO within seconds; PF_ECANCEL: the model's cancel function said so. */
pf_status pf_model_follow(pf_model *m);

/* Closes and clears *m. NULL-safe. All sessions of the model must be closed before (asserted). */
void pf_model_close(pf_model **m);

struct pf_model_info {
    const char *architecture, *name;                   /* borrowed from the model */
    const char *backend;                               /* "cpu", "cuda" */
    const char *isa;                                   /* kernels in use: "avx512-vnni", "sm_90" */
    int      n_threads;
    int      n_gpu_layers;                             /* layers that GPUs compute, at least in part */
    int64_t  n_layers, n_ctx_train, n_embd, n_heads, n_kv_heads, n_vocab, n_experts, n_experts_used;
    int64_t  n_expert_layers;                          /* layers with experts */
    uint64_t weight_bytes, bytes_per_token;
    uint64_t gpu_bytes_per_token;                      /* the part of bytes_per_token that the GPU reads for
                                                          every token, whatever the router picks */
    bool     has_tokenizer, has_chat_template;
    float    temp, top_p, min_p;                       /* the file's recommended sampling; negative: none given */
    int      top_k;
    int      n_gpus;                                   /* GPUs that compute, and which */
    int      gpus[PF_MAX_GPUS];
    enum pf_layout layout;                             /* how several GPUs divide the model; AUTO: it is not divided */
    bool     can_draft;                                /* false: the model's state cannot go back to a row within a
                                                          step, so that sessions refuse drafts, and AUTO makes none */
    int64_t  n_ctx_long;                               /* a session of so many positions or more rotates keys otherwise
                                                          than one of fewer, and neither loads what the other saved; 0:
                                                          all rotate alike */
};
/* Borrowed, lives as long as m and never changes: once a GPU is lost, calls give another one. From any thread. */
const struct pf_model_info *pf_model_info(const pf_model *m);

/* Reads the weights of the given layers (n of them; layers NULL: everything that the plan has in memory) into memory
 * now, but none where GPUs have all weights. progress may be NULL. */
pf_status pf_model_preload(pf_model *m, const int *layers, int n, pf_progress_fn *progress, void *ctx);

/* Whether every weight of the layer is in memory at this moment, be it that of GPUs; false for a layer that does not
 * exist. */
bool pf_model_is_resident(const pf_model *m, int layer);

/* ---- Text -------------------------------------------------------------------------------------------------- */

enum {
    PF_TOK_ADD_SPECIAL   = 1u << 0,  /* add BOS and EOS where the model's tokenizer does */
    PF_TOK_PARSE_SPECIAL = 1u << 1,  /* recognise control tokens written out in the text */
    PF_DETOK_SPECIAL     = 1u << 2,  /* render control tokens instead of leaving them out */
    PF_DETOK_CONTINUE    = 1u << 3   /* the tokens go on with a text: keep the space that the first word begins with */
};

/* Text to token ids. Any bytes are valid text: what is not UTF-8 counts as U+FFFD or as bytes, as
 * the tokenizer has it. */
pf_status pf_tokenize(const pf_model *m, const char *text, size_t len, unsigned flags, int32_t *out, size_t cap,
                      size_t *n);

/* The bytes of n tokens, one after the other, without the space that the tokenizer puts in front of a text. Tokens that
 * come one by one want PF_DETOK_CONTINUE. May begin or end inside a UTF-8 sequence; see pf_utf8_complete. */
pf_status pf_detokenize(const pf_model *m, const int32_t *tok, size_t n, unsigned flags, char *out, size_t cap,
                        size_t *need);

/* Length of the longest prefix of text that does not end inside a UTF-8 sequence that more bytes could complete. */
size_t pf_utf8_complete(const char *text, size_t len);

/* The id whose text is exactly this, or -1. */
int32_t pf_token_find(const pf_model *m, const char *text, size_t len);

/* Whether tok ends a reply: EOS, EOT, EOM and their kind. */
bool pf_token_is_end(const pf_model *m, int32_t tok);

/* Cuts text into the chunks that the BPE pre-tokenizer named pre (a value of tokenizer.ggml.pre) would merge apart.
 * ends[i] is the offset just past chunk i. */
pf_status pf_pretokenize(const char *pre, const char *text, size_t len, size_t *ends, size_t cap, size_t *n);

/* ---- Chat -------------------------------------------------------------------------------------------------- */

struct pf_message {
    const char *role;                /* "system", "user", "assistant", "tool" */
    const char *content;
    const char *reasoning;           /* assistant's thinking, or NULL; most templates drop it from old turns */
    const char *tool_calls_json;     /* assistant's calls as a JSON array in the OpenAI form, or NULL */
    const char *tool_call_id;        /* tool: the id of the call whose result this is, or NULL */
    const char *name;                /* tool: the tool's name; else who speaks; or NULL */
};
struct pf_chat_opts {
    bool        add_generation_prompt;   /* end where the assistant's reply begins; default true */
    bool        continue_last;           /* the reply goes on with the last message, an assistant's with content and
                                            without calls: the prompt ends behind that content, and nothing is added;
                                            default false. Of a reply that goes on so: in_content (pf_reply_opts) */
    int         enable_thinking;         /* 1, 0, or -1: do not tell the template (default) */
    const char *reasoning_effort;        /* "low", "medium", "high", or NULL */
    const char *tools_json;              /* JSON array of tool descriptions, or NULL */
    const char *template_text;           /* this Jinja template instead of the model's, or NULL */
    const char *template_name;           /* this built-in template instead ("chatml", "llama2", ...), or NULL */
    int64_t     n_ctx;                   /* positions that the prompt has to fit; 0: any number (default) */
};
void pf_chat_opts_init(struct pf_chat_opts *o);

/* Name of the i-th built-in template, NULL past the last; static. */
const char *pf_chat_builtin(int i);

/* More bytes than a prompt has for each of its tokens. */
enum { PF_CHAT_TOKEN_BYTES = 256 };

/* The prompt text for a conversation, by the model's own template. The text already holds BOS where the template
 * writes it: tokenize it with PF_TOK_PARSE_SPECIAL and without PF_TOK_ADD_SPECIAL. o may be NULL. PF_ETEMPLATE when
 * the model has no template, it does not parse, or it raises an error; PF_ECONTEXT, before the template is at its end,
 * when it prints more than PF_CHAT_TOKEN_BYTES for each of n_ctx positions. A shorter text may still have too many
 * tokens. With continue_last also PF_EINVAL, when the last message is none that can be gone on with, and PF_ETEMPLATE,
 * when the template does not print what that ends with. */
pf_status pf_chat_render(const pf_model *m, const struct pf_message *msgs, size_t n, const struct pf_chat_opts *o,
                         char *out, size_t cap, size_t *need);

/* Renders any Jinja chat template with a JSON object as its context. now: what strftime_now() counts from, seconds
 * since 1970 as UTC; negative: the present local time. */
pf_status pf_template_render(const char *tmpl, size_t tmpl_len, const char *context_json, size_t context_len,
                             int64_t now, char *out, size_t cap, size_t *need);

/* ---- Replies ----------------------------------------------------------------------------------------------- */

/* Takes a model's reply apart as it comes: content, reasoning, calls of tools. Feed it the reply's text with control
 * tokens written out (PF_DETOK_SPECIAL; see pf_reply_is_mark), in pieces of any size. What is reported adds up to the
 * whole, whatever the pieces, and is never taken back; each text is whole UTF-8. Markers are in none of it. Content and
 * reasoning come without the white space around them. */
typedef struct pf_reply pf_reply;

struct pf_reply_opts {
    const char *family;              /* which markers the model writes, as pf_reply_family says it: "hermes", ... */
    const char *tools_json;          /* the tools offered, a JSON array in the OpenAI form; NULL: calls are not looked
                                        for, their text is content */
    size_t      tools_len;
    bool        in_reasoning;        /* the prompt ended inside the reasoning: pf_reply_is_open */
    bool        in_content;          /* the prompt ended inside the content (continue_last): white space in front
                                        is the content's, too */
    bool        forced;              /* the reply is held to calls: what begins one is no text, though cut short */
};

enum pf_reply_kind {
    PF_REPLY_CONTENT, PF_REPLY_REASONING,
    PF_REPLY_CALL,                   /* a call begins; text is its name, and is whole */
    PF_REPLY_ARGUMENTS,              /* more of its arguments, the text of a JSON object */
    PF_REPLY_CALL_END                /* no more of them: they are valid JSON. No text */
};
struct pf_reply_event {
    enum pf_reply_kind kind;
    int         call;                /* calls count from 0; -1: belongs to none */
    const char *text;                /* n bytes, at least one but for PF_REPLY_CALL_END; borrowed for the call of fn */
    size_t      n;
    const char *id;                  /* PF_REPLY_CALL: the id that the model wrote, n_id bytes; NULL: none */
    size_t      n_id;
};
typedef void pf_reply_fn(void *ctx, const struct pf_reply_event *e);

enum { PF_REPLY_MAX_NAME = 256 };    /* bytes of a tool's name or a call's id; what is longer is no call */

/* Name of the family that writes replies as the chat template wants them: the template that pf_chat_render would take
 * with o (NULL: the model's). Static; "generic" where nothing is known of it, or m is NULL and o names none. */
const char *pf_reply_family(const pf_model *m, const struct pf_chat_opts *o);

/* Whether a prompt ends inside the reasoning, so that a reply begins in it. */
bool pf_reply_is_open(const char *family, const char *prompt, size_t n);

/* PF_EINVAL: no such family, or the tools are no JSON array. Nothing of o is kept. */
pf_status pf_reply_open(pf_reply **out, const struct pf_reply_opts *o);

/* Takes the next n bytes of the reply; fn is called for what is certain by now. PF_ENOMEM ends the reply: it takes
 * nothing more. One thread at a time. */
pf_status pf_reply_feed(pf_reply *r, const char *text, size_t n, pf_reply_fn *fn, void *ctx);

/* Whether a control token that is written so belongs to a marker of the family. Other control tokens are no text: they
 * should not be fed. */
bool pf_reply_is_mark(const pf_reply *r, const char *token, size_t n);

/* The generation is over: reports what was held back, and ends a call that was cut off so that its arguments are valid
 * JSON. A call that was cut before its name was whole is text, but where calls are forced, and right behind a call:
 * there it is left out. Afterwards r takes nothing more. */
pf_status pf_reply_end(pf_reply *r, pf_reply_fn *fn, void *ctx);
void      pf_reply_close(pf_reply **r);               /* NULL-safe; clears *r */

/* For a sampler that holds arguments to a tool's schema: whether the model's next byte belongs to the arguments of a
 * call, written as a JSON object (pf_grammar_json_schema) or in a form of the family's own (pf_grammar_reply with
 * PF_SHAPE_ARGUMENTS). */
struct pf_reply_arguments {
    const char *name;                /* of the tool, n_name bytes; borrowed until r is fed */
    size_t      n_name;
    size_t      n_inside;            /* so many of the bytes fed last are arguments already, white space in front of
                                        them counted; 0: the next byte is the first */
    bool        own_form;            /* between tags, as Python's keyword arguments, in Gemma's notation */
};
bool pf_reply_in_arguments(const pf_reply *r, struct pf_reply_arguments *out);
/* For a sampler that holds the content to a grammar: whether the model's next byte belongs to the content. */
bool pf_reply_in_content(const pf_reply *r);

/* ---- Session ----------------------------------------------------------------------------------------------- */

typedef struct pf_session pf_session;

enum pf_kv_type {
    PF_KV_I16,                       /* whole numbers of 16 bits with a scale for each head's row */
    PF_KV_F32, PF_KV_Q8_0,
    PF_KV_F16                        /* no option: what I16 stands for where heads are of another kind */
};

/* Drafts: tokens that may come next, guessed cheaply and evaluated together with the token that an eval appends. If the
 * next evals append just those, their logits are there already. Nothing else changes: the sequence, its logits and what
 * is sampled from them are the same bits with and without. Steps are timed, and drafts are left out while they cost
 * more than they bring. Only evals of one token without flags take drafts along, and none does while steps are watched
 * (pf_trace_set). */
enum pf_draft {
    PF_DRAFT_OFF,
    PF_DRAFT_AUTO,                   /* PF_DRAFT_LOOKUP where it finds something, else PF_DRAFT_MTP if the model was
                                        opened with nextn; whatever pays */
    PF_DRAFT_LOOKUP,                 /* what followed where the sequence's newest tokens stood before */
    PF_DRAFT_GIVEN,                  /* what draft_fn says */
    PF_DRAFT_MTP,                    /* what the model's own layer says that guesses ahead; needs nextn of
                                        struct pf_model_opts and a file that has the layer */
    PF_DRAFT_MODEL                   /* what the model of draft_path in struct pf_model_opts says; it has a session
                                        and a context of its own for each that it drafts for */
};
enum { PF_MAX_DRAFT = 64 };
/* Writes at most cap tokens that may follow tok[0..n) to out; returns how many. Called on the thread that evaluates;
 * must not call the library with this model or its sessions. */
typedef size_t pf_draft_fn(void *ctx, const int32_t *tok, size_t n, int32_t *out, size_t cap);

struct pf_session_opts {
    int64_t         n_ctx;           /* positions; 0: the model's training context as far as memory allows, and at
                                        least 8192 of it. Where experts are shared with a GPU, or weights are read as
                                        they are wanted, a share that leaves them most of the memory */
    int             n_batch;         /* rows evaluated at once in a prompt; 0: 512, or on a GPU 2,048, or half as many,
                                        or 512, if that is what there is room for. Changes no bit */
    enum pf_kv_type kv_type;         /* I16 (default); F32 for strict comparisons; Q8_0 takes 52% of I16's memory,
                                        and heads whose length is a multiple of 32 */
    int64_t         n_near;          /* on a GPU: positions whose keys and values its memory has, of layers that see all
                                        of them and have I16, no latents; those of later ones lie in main memory.
                                        0: as many as there is room for. Changes no bit */
    int             n_sessions;      /* so many such sessions are to have room: n_ctx 0 and n_near 0 leave the others
                                        some; 0: this one alone */
    enum pf_draft   draft;           /* default PF_DRAFT_OFF */
    int             draft_max;       /* tokens drafted at once, PF_MAX_DRAFT at most; 0: 16. No more than n_batch - 1 */
    pf_draft_fn    *draft_fn;        /* PF_DRAFT_GIVEN */
    void           *draft_ctx;
};
void pf_session_opts_init(struct pf_session_opts *o);

/* Exact memory a session would take: keys and values (touched as the context fills), and everything else. Inputs and
 * activations of a step are part of that, though sessions of a model share them: only the first one takes them. */
pf_status pf_session_bytes(const pf_model *m, const struct pf_session_opts *o, uint64_t *kv_bytes,
                           uint64_t *work_bytes);

/* Bytes of keys and values that decoding the token at position pos goes over, in all layers: its own and those in front
 * of it, as far as a layer's window shows them; where an indexer chooses, all of its keys, and what it chose. */
pf_status pf_session_read_bytes(const pf_model *m, const struct pf_session_opts *o, int64_t pos, uint64_t *bytes);

/* m must outlive the session. Any number of sessions may be open; each is used by one thread at a time. */
pf_status pf_session_open(pf_session **out, pf_model *m, const struct pf_session_opts *o);
void      pf_session_close(pf_session **s);           /* NULL-safe; clears *s */

/* Makes the sequence equal to tok[0..n): keeps the longest common prefix, evaluates the rest (at least the last token,
 * so that logits are there). *reused (may be NULL) is how much of it needed no evaluation; models with recurrent state,
 * and those with windows if it is far, go back to a checkpoint at or before the end of the prefix. A bad argument
 * changes nothing; if evaluation fails or is cancelled, the sequence is the part of tok that was kept or evaluated. */
pf_status pf_session_sync(pf_session *s, const int32_t *tok, size_t n, size_t *reused);

enum { PF_LOGITS_ALL = 1u << 0 };                     /* keep the logits of every position, not only the last */

/* Appends tok[0..n) and evaluates it. On failure the sequence is as before the call. */
pf_status pf_session_eval(pf_session *s, const int32_t *tok, size_t n, unsigned flags);

/* Appends to each part's session its tok[0..n) and evaluates all of them together: the weights that several sequences
 * want are gone over once. Nobody's bits depend on who else is in the batch. A step has at most as many rows as the
 * largest n_batch of the sessions; more tokens take several steps. Sessions are distinct and of one model, used by no
 * other thread meanwhile.
 *
 * A part that fails, or whose session is cancelled, fails alone: its sequence is as before the call, and the other
 * parts are evaluated, with the bits that they have alone. Each part gets its own status. The call returns PF_OK if all
 * went well, else the first of these statuses that is none, with a sentence that names the part. Wrong arguments of any
 * part refuse the whole call: nothing is evaluated, no sequence or logits change, every status is the refusal's. */
enum { PF_MAX_BATCH_PARTS = 256 };
struct pf_batch_part {
    pf_session    *session;
    const int32_t *tok;
    size_t         n;
    unsigned       flags;                             /* as for pf_session_eval */
    pf_status      status;                            /* set by the call */
    const char    *why;                               /* set by the call: NULL, or why this part failed; borrowed until
                                                         the session is evaluated again or closed */
};
pf_status pf_batch_eval(struct pf_batch_part *parts, size_t n_parts);

/* Whether an eval of tok alone needs no step, since tok was drafted and is evaluated. A program that makes steps of
 * several sessions does such evals first. */
bool pf_session_is_ahead(const pf_session *s, int32_t tok);

/* Drafts that the session has evaluated since it was opened, and those of them that were right: tokens that needed no
 * step. */
void pf_session_drafts(const pf_session *s, uint64_t *drafted, uint64_t *accepted);

/* Shortens the sequence to its first pos positions. The logits of the last eval are gone. */
pf_status pf_session_rewind(pf_session *s, int64_t pos);

int64_t        pf_session_pos(const pf_session *s);          /* length of the sequence */
int64_t        pf_session_n_ctx(const pf_session *s);
int            pf_session_n_batch(const pf_session *s);      /* rows of its steps at most */
/* How many positions of the sequence need no evaluation any more: fewer than its length after going back further than a
 * recurrent state or a window can, to a checkpoint, and when a device was lost. The next eval makes up for it. */
int64_t        pf_session_computed(const pf_session *s);
/* What pf_session_computed would return after pf_session_rewind to pos; the session stays as it is. */
int64_t        pf_session_computed_at(const pf_session *s, int64_t pos);
const int32_t *pf_session_tokens(const pf_session *s);       /* the sequence; borrowed until the session changes */

/* Logits {n_vocab} after the last token of the last eval or sync; NULL if there are none. Borrowed until the next
 * eval, sync, rewind or load. */
const float *pf_session_logits(const pf_session *s);
/* Row i of an eval with PF_LOGITS_ALL, 0 <= i < n of that eval; NULL otherwise. */
const float *pf_session_logits_at(const pf_session *s, size_t i);

/* From any thread, also from a signal handler: the running (or, if none runs, the next) sync or eval returns
 * PF_ECANCEL at a layer boundary. */
void pf_session_cancel(pf_session *s);

/* Reads samples of all weights, to tell models apart, once in a model's life: the first save or load does so unless it
 * was done before, and may take seconds if the weights are on a drive. No step waits for that. From any thread. */
pf_status pf_model_identify(pf_model *m);

/* Timeline, keys and values through the caller's functions, which return false on failure. A save can be loaded by a
 * session of the same model, adapters, routing trace and KV type with a large enough context. A failed load leaves the
 * session empty. If the device is lost on the way, what it held is computed anew from the tokens when the session goes
 * on. */
typedef bool pf_write_fn(void *ctx, const void *data, size_t bytes);
typedef bool pf_read_fn(void *ctx, void *data, size_t bytes);
pf_status pf_session_save(const pf_session *s, pf_write_fn *write, void *ctx);
pf_status pf_session_load(pf_session *s, pf_read_fn *read, void *ctx);

/* Saving a sequence again that has become longer: writes what *since lacks, a continuation, and makes *since what is
 * saved by then. With zeros in *since that is what pf_session_save writes. PF_EINVAL: the sequence does not begin with
 * what was saved; *since is left alone by all failures. To load, pf_session_load takes the first, and
 * pf_session_load_more each continuation in turn; one that fails leaves the session empty, too, unless nothing was
 * loaded or the session has gone on since: that is PF_EINVAL, and it stays as it is. The keys and values of the model
 * that drafts for the session, if one does, are saved with it; they are passed over where none does. */
struct pf_saved {
    struct pf_saved_sequence {
        uint64_t n_tokens, computed, held_from, digest[2];
    } session, drafts;
};
pf_status pf_session_save_more(const pf_session *s, struct pf_saved *since, pf_write_fn *write, void *ctx);
/* Makes *since what is saved of the first n tokens, which are the session's first n, too, so that a sequence can go on
 * from there that differs behind them. To load such a continuation, pf_session_rewind to n what was loaded before it.
 * PF_EINVAL: fewer are saved; or what is saved cannot be cut there, because of a recurrent state or a window. *since is
 * left alone by all failures. */
pf_status pf_saved_cut(const pf_session *s, struct pf_saved *since, int64_t n);
/* Whether a session of the model that loads it can go back to its first n tokens with nothing to be evaluated again. */
bool pf_saved_can_cut(const pf_model *m, const struct pf_saved *saved, int64_t n);
/* pf_saved_can_cut of what pf_session_save would write now. A save has no checkpoints, so the session itself may go
 * back to where one that loads the save cannot. */
bool pf_session_save_can_cut(const pf_session *s, int64_t n);
pf_status pf_session_load_more(pf_session *s, pf_read_fn *read, void *ctx);

/* Makes the sequence the first n tokens of another session's, without its logits; that one stays as it is. Copied is
 * what lies in front of the last position up to n that the other one has the state and the windows of, which is n for a
 * model without either: the rest is evaluated when the sequence goes on. Memory of a device is copied by the device, in
 * milliseconds. cancel (or NULL) is asked before each layer; steps of other sessions may be made in between, neither of
 * these two may be used. PF_EINVAL: n is no part of the other sequence, or the sessions are not of one model with the
 * same type of keys and values and the same layers on each device, or one has whole windows and the other rings;
 * PF_ECONTEXT: the context is shorter. Both leave everything as it was, other failures the sequence empty. */
pf_status pf_session_copy(pf_session *to, const pf_session *from, int64_t n, pf_cancel_fn *cancel, void *ctx);

/* ---- Sampling ---------------------------------------------------------------------------------------------- */

/* A number that is added to the logit of a token. */
struct pf_logit_bias {
    int32_t tok;
    float   add;
};

/* A plain struct: copy it, set its fields, no need to free it. Same seed, same logits, same tokens. Applied in this
 * order: penalties, bias, temperature, top_k, top_p, min_p. */
struct pf_sampler {
    float    temp;                   /* 0: greedy */
    int      top_k;                  /* 0: off */
    float    top_p;                  /* 1: off */
    float    min_p;                  /* 0: off */
    float    repeat_penalty;         /* 1: off; divides positive and multiplies negative logits of tokens seen */
    float    presence_penalty;       /* 0: off; subtracted once from tokens seen */
    float    frequency_penalty;      /* 0: off; subtracted for each time seen */
    int      penalty_last_n;         /* how far back "seen" reaches; 0: nowhere, -1: the whole sequence */
    const struct pf_logit_bias *bias;        /* n_bias of them, borrowed for as long as the sampler is used; tokens that
                                                the vocabulary does not have are passed over. Default none */
    int      n_bias;
    uint64_t rng[4];                 /* state; set by pf_sampler_init */
};
void pf_sampler_init(struct pf_sampler *sp, uint64_t seed);

/* Picks the next token from the session's logits. Equal logits: the lower id. PF_ENUMERIC when they hold a NaN, or are
 * all -inf, as a bias may leave them. Does not append the token. */
pf_status pf_sample(struct pf_sampler *sp, const pf_session *s, int32_t *tok);

/* ---- Constrained output ------------------------------------------------------------------------------------------ */

/* What an output may be: a context-free language over UTF-8, compiled for a model's vocabulary. The model must outlive
 * the grammar. Immutable; any thread, several at once. Texts of more than 1 MiB, grammars of more states than 2^18 and
 * what a language below does not have are refused (PF_EINVAL, PF_EUNSUPPORTED) by a sentence that says where. docs/
 * grammars.md has the languages. */
typedef struct pf_grammar pf_grammar;

/* JSON that fulfils a schema (draft 2020-12, the part in the documentation; another keyword is named in the refusal
 * with its JSON pointer). Properties come in the schema's order. An empty text, {} or true: any JSON. */
pf_status pf_grammar_json_schema(pf_grammar **out, const pf_model *m, const char *schema, size_t n);
/* GBNF, the rules' form that llama.cpp's documentation defines; the whole output is the rule "root". */
pf_status pf_grammar_gbnf(pf_grammar **out, const pf_model *m, const char *text, size_t n);
/* A regular expression that the whole output matches. */
pf_status pf_grammar_regex(pf_grammar **out, const pf_model *m, const char *text, size_t n);

/* A chat's whole reply: reasoning where it may come, then content that a schema allows, or calls of tools in the form
 * of the model's family (that of "hermes" where it has none), each with arguments by its tool's schema. A schema of a
 * tool that cannot be kept to leaves the arguments any object. The grammar's output is the reply from its first token
 * on. */
enum {
    PF_SHAPE_MAY_REASON   = 1,       /* the model may reason first, where its marks are tokens of their own */
    PF_SHAPE_IN_REASONING = 2,       /* the prompt ended inside the reasoning: pf_reply_is_open */
    PF_SHAPE_ONE_CALL     = 4,       /* at most one call */
    PF_SHAPE_ARGUMENTS    = 8        /* nothing but the rest of a call of `tool`, from where pf_reply_in_arguments says
                                        that its arguments begin, in a form of the family's own. PF_EUNSUPPORTED: the
                                        family writes JSON, or its form cannot keep to the tool's schema */
};
struct pf_reply_shape {
    const char *family;              /* pf_reply_family's word */
    const char *schema;              /* of the content; NULL: there is none, so a call must come */
    size_t      schema_len;
    const char *tools_json;          /* as for pf_reply_open; NULL: no calls */
    size_t      tools_len;
    const char *tool;                /* the only one that may be called; NULL: any */
    unsigned    flags;
};
pf_status pf_grammar_reply(pf_grammar **out, const pf_model *m, const struct pf_reply_shape *o);
void      pf_grammar_close(pf_grammar **g);           /* NULL-safe; its matchers must be closed before (asserted) */
size_t    pf_grammar_bytes(const pf_grammar *g);      /* memory that it takes, without what its matchers work out */

/* One output in progress. Each is used by one thread at a time. */
typedef struct pf_matcher pf_matcher;

pf_status pf_matcher_open(pf_matcher **out, const pf_grammar *g);
void      pf_matcher_close(pf_matcher **mt);          /* NULL-safe */

bool pf_matcher_may_end(const pf_matcher *mt);        /* the output so far is whole */
bool pf_matcher_must_end(const pf_matcher *mt);       /* it is, and nothing could follow it */

/* Goes on by a token, or by bytes whatever the tokens they came in. PF_EINVAL when that may not follow. End tokens may
 * follow where the output may end, and nothing after them; other special tokens never. */
pf_status pf_matcher_take(pf_matcher *mt, int32_t tok);
pf_status pf_matcher_take_text(pf_matcher *mt, const char *text, size_t n);

/* The tokens that may follow: bit id % 64 of word id / 64, for every id of the vocabulary. Borrowed until the next call
 * with mt. */
pf_status pf_matcher_mask(pf_matcher *mt, const uint64_t **bits);

/* As pf_sample, of the tokens that may follow. First a token is picked as if there were no grammar. If it may not
 * follow, one is picked among those that may, as pf_sample would if the others were not there, with the next random
 * number: so the model's odds among them stay what they are, and same seed, logits and grammar give the same tokens.
 * Neither appends nor takes the token. PF_EINVAL when no token may follow, PF_EUNSUPPORTED when the grammar is too
 * ambiguous to tell for the output so far. */
pf_status pf_sample_matching(struct pf_sampler *sp, const pf_session *s, pf_matcher *mt, int32_t *tok);

/* ---- Statistics -------------------------------------------------------------------------------------------- */

struct pf_stats {
    uint64_t n_steps;                /* batches evaluated, or begun: steps that failed are counted */
    uint64_t n_tokens;               /* positions evaluated, wrong drafts among them; none of steps that failed */
    uint64_t n_drafted, n_accepted;  /* of them, drafts; drafts that were right: tokens that needed no step */
    uint64_t n_draft_steps, draft_step_ns;       /* steps that had drafts; time spent in them */
    uint64_t draft_alone_ns;         /* what the tokens that those steps brought would have taken without drafts */
    int64_t  n_ctx;                  /* positions of the session that was opened last */
    uint64_t step_ns;                /* time spent in steps */
    uint64_t weight_bytes_read;      /* weights the kernels went over */
    uint64_t slab_slots;             /* experts (or layers) that memory has room for; 0 when resident */
    uint64_t slab_hits, slab_misses; /* experts (or layers) wanted: in memory; read from the drive. 0 when resident */
    uint64_t disk_bytes_read;        /* by this program, not through the mapped file */
    uint64_t disk_busy_ns;           /* at least one such read was under way */
    uint64_t disk_wait_ns;           /* computing waited for one */
    /* Experts shared between CPU and GPU; all 0 where one of them has everything. */
    uint64_t vram_slots, vram_slot_bytes;        /* experts that the GPU's memory has room for; that room */
    uint64_t vram_transit_bytes;     /* room in the GPU's memory for experts that are copied for one step */
    uint64_t vram_hits;              /* experts wanted that lay in the GPU's memory */
    uint64_t n_transfers;            /* parts of experts that were sent to the GPU for a step */
    uint64_t transfer_bytes, transfer_ns;        /* size and duration of those transfers */
    uint64_t transfer_hidden_ns;     /* the part of transfer_ns in which something was computed */
    uint64_t stream_bytes;           /* bytes of weights (experts, layers of the CPU) sent to the GPU for prompts */
    uint64_t n_in_place, in_place_bytes;         /* experts that the GPU read from RAM as it multiplied */
    uint64_t far_bytes;              /* keys and values for which the GPU has no room that steps attended to: each step
                                        reads them once, at least */
    uint64_t far_cpu_bytes;          /* the part of far_bytes that the CPU attended to, beside the GPU */
    uint64_t n_fallbacks;            /* transfers that came too late or failed: the CPU took the expert */
    uint64_t gpu_busy_ns;            /* the part of step_ns in which the GPU computed */
    uint64_t handoff_p50_ns, handoff_p95_ns;     /* from the router's picks on the GPU to the CPU and back,
                                                    without the work, in layers where the GPU waited */
    uint64_t n_launches;             /* kernels and copies that the GPU was given, those in replayed
                                        graphs counted too */
    bool     device_lost;            /* a GPU failed for good, and the CPU went on with what it computed; of several
                                        pf_model_info's n_gpus are left; a reset does not clear this */
};
/* From any thread. reset waits for a step that runs. */
void pf_stats_get(const pf_model *m, struct pf_stats *out);
void pf_stats_reset(pf_model *m);

/* Writes the timeline, the work of each part of the machine lately, layer by layer, as JSON that chrome://tracing and
 * Perfetto show. The model must have been opened with timeline_spans. Waits for a step that runs. From any thread. */
pf_status pf_timeline_write(pf_model *m, pf_write_fn *write, void *ctx);

/* How long each deal took: a deal is one way to divide the experts of a layer that the GPU does not hold between GPU
 * and CPU. Learning that of a machine and a model takes some tokens, so a program may keep it for the next time. No bit
 * of any result depends on it. */
enum { PF_MAX_LEARNED_DEALS = 2048 };
struct pf_learned_deal {
    int      n_experts;              /* experts that were divided */
    int      n_whole, n_down;        /* how many of n_experts went to the GPU whole; of how many only the down matrix
                                        did. The CPU computed the others */
    bool     in_place;               /* the GPU read the n_whole experts from main memory; they were not copied */
    uint32_t n_times;                /* how often this deal was made */
    double   ns_per_byte;            /* time from this layer's picks to the next layer's, over one expert's bytes */
};
struct pf_learned {
    double   cpu_bytes_s, pcie_bytes_s;      /* 0: not known */
    int      n_deals;
    struct pf_learned_deal deals[PF_MAX_LEARNED_DEALS];
};
/* Finds out on some made-up tokens, in a second or so (20 at most), if nothing is known yet and all experts that the
 * plan has in memory are there (pf_model_preload); then the statistics are reset. Does nothing otherwise, where nothing
 * is shared, while somebody looks into steps (pf_trace_set), and where a short session finds no room. While no other
 * thread uses m. */
pf_status pf_model_measure(pf_model *m);

/* All zero where nothing is shared. From any thread; waits for a step that runs. */
void pf_learned_get(pf_model *m, struct pf_learned *out);
/* Deals are chosen by *l from now on, in place of what was known; does nothing where nothing is shared. Numbers that
 * make no sense are left out; those that are no longer true are corrected while running. */
void pf_learned_set(pf_model *m, const struct pf_learned *l);

/* ---- Tracing ----------------------------------------------------------------------------------------------- */

/* The values that a layer with experts computes for a token, in this order. */
enum pf_stage {
    PF_STAGE_LOGITS,                 /* router logits {n_experts} */
    PF_STAGE_PROBABILITIES,          /* probabilities of the router {n_experts} */
    PF_STAGE_SCORES,                 /* probabilities with the selection bias, -infinity outside the
                                        chosen groups: the top-k is taken of these {n_experts} */
    PF_STAGE_PICKS, PF_STAGE_WEIGHTS,            /* the top-k experts and their weights {n_experts_used} */
    PF_STAGE_GATE, PF_STAGE_UP,      /* gate and up products of one pick {n_ff} */
    PF_STAGE_ACTIVATION,             /* activation of a pick's gate, times its up {n_ff} */
    PF_STAGE_DOWN,                   /* down product of one pick {n_embd} */
    PF_STAGE_SUM,                    /* weighted sum of the picks, without a shared expert {n_embd} */
    PF_N_STAGES
};
struct pf_stage_data {
    enum pf_stage  stage;
    int            layer;
    int64_t        pos;              /* the token's position in its session */
    int            pick, expert;     /* GATE to DOWN: number of the pick, and its expert; else -1 */
    int            n;                /* number of picks or values */
    const int32_t *picks;            /* PICKS; else NULL */
    const float   *values;           /* all others; else NULL */
};
/* The values that d points to are borrowed for the call and are the bits that were computed with. Called on the thread
 * that evaluates, layer by layer and token by token; must not call the library with this model or its sessions. */
typedef void pf_trace_fn(void *ctx, const struct pf_stage_data *d);

struct pf_trace_opts {
    unsigned     stages;             /* 1u << PF_STAGE_... for each that fn is to be called for */
    pf_trace_fn *fn;
    void        *ctx;
    bool         counts;             /* count how often each expert is picked */
    const char  *record;             /* write a routing trace (its format: src/tiers/trace.h) to this
                                        file; NULL: none */
};
/* From the next step on; replaces what was set before, and its counts; o NULL: ends it. No bit of any result changes by
 * it. PICKS and WEIGHTS alone, counting and recording look at each step when it has succeeded, and cost little. For any
 * other stage the CPU does the routing and the experts, all stages come while the step runs, and it may fail yet. */
pf_status pf_trace_set(pf_model *m, const struct pf_trace_opts *o);

/* How often each expert of the layer was picked since counting began: *n experts (0: the layer has none, or nobody
 * counts). *n_tokens (may be NULL): how many tokens were seen. */
pf_status pf_trace_counts(pf_model *m, int layer, uint64_t *counts, int cap, int *n, uint64_t *n_tokens);

/* How well a replacement policy would have served a recorded routing trace (its format: src/tiers/trace.h). */
struct pf_replay {
    const char *policy;              /* static; the last row is "belady", the best that is possible */
    uint64_t    n_tokens, n_slots;
    uint64_t    n_uses, n_hits;      /* experts wanted; found in memory */
};
/* Replays the trace at path with room for n_slots experts (0: half of them) under every policy.
 * *n: how many there are. */
pf_status pf_trace_replay(const char *path, int64_t n_slots, struct pf_replay *rows, int cap, int *n);

PF_API_END

#ifdef __cplusplus
}
#endif
#endif
