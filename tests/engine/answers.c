/* Answers with drafts are those without, byte for byte: what is sampled behind many prompts, at temperatures 0 and 1,
 * and the logits that it is sampled from. Drafts come from the sequence itself, from the model's own layer that guesses
 * ahead, and from a second model; they must be right and wrong at times, or nothing is shown. Prices are made up, so
 * that as much as possible is drafted.
 *
 *     with drafts      sampled  sampled  given ...      notes tokens, and a digest of all logits
 *     without          sampled  sampled  given ...      must sample the same, from the same logits
 *
 * Weights are random in most models of tests, and so are guesses of their layers and of other models. Therefore every
 * other answer has stretches that are not sampled but given: mostly the draft where there is one, else the prompt's
 * tokens, so that it repeats the prompt with changes. Every fourth answer is sampled among the two likeliest tokens.
 *
 * usage: answers MODEL.gguf cpu|streamed|cuda|cuda-shared PROMPTS TOKENS [DRAFTS.gguf [TEMPERATURE]]
 *        PROMPTS: how many, or FIRST-END, some of them by number, so that processes can share them. streamed: in little
 *        memory; cuda, cuda-shared: all of the model or its dense part on the GPU, which is an emulated one where this
 *        file is linked with it. DRAFTS: the second model; without one the model drafts for itself, too.
 *        TEMPERATURE: 0 or 1 alone. 77: the architecture is unknown, or there is no GPU */
#include <stdlib.h>
#include <string.h>

#include "cheap_drafts.h"
#include "check.h"
#include "little_ram.h"

enum { TOGETHER = 8, SHORTEST = 24, LONGEST = 64 };

static const char *path, *place, *second;
static int         first_prompt, end_prompt, n_tokens;
static uint64_t    whole = 1;                /* a digest of all answers, the same wherever they are computed */

struct answer {
    int32_t  prompt[LONGEST];
    int      n_prompt;
    int32_t *tok;                            /* [n_tokens] */
    uint64_t logits;                         /* a digest of those that tokens were sampled from */
};

static uint64_t mix(uint64_t h, uint64_t more)
{
    h = (h ^ more) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t random_of(int prompt, int i)
{
    return mix(mix(0x5eed, (uint64_t)prompt), (uint64_t)i) >> 16;
}

static bool is(const char *name)
{
    return strcmp(place, name) == 0;
}

/* A text that repeats itself with changes: every ninth token or so is another one. */
static void make_prompt(struct answer *a, int prompt, int n_vocab)
{
    int period = 5 + prompt % 13;
    a->n_prompt = SHORTEST + prompt * 7 % (LONGEST - SHORTEST);
    for (int i = 0; i < a->n_prompt; i++) {
        bool changed = random_of(prompt, 1000 + i) % 9 == 0;
        a->prompt[i] = (int32_t)(random_of(prompt, changed ? i + period : i % period) % (uint64_t)n_vocab);
    }
}

static struct pf_sampler sampler_of(int prompt, float temp)
{
    struct pf_sampler sp;
    pf_sampler_init(&sp, (uint64_t)prompt + 1);
    sp.temp = temp;
    sp.top_k = prompt % 4 == 3 ? 2 : 0;
    return sp;
}

static pf_session *open_session(pf_model *m, enum pf_draft draft, int prompt)
{
    pf_session *s = NULL;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = LONGEST + n_tokens;
    o.n_batch = 32;
    o.draft = draft;
    o.draft_max = 1 + (prompt + 3) % 7;
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    if (!s)
        exit(check_status());
    return s;
}

/* The token that is drafted and evaluated behind the sequence; -1: none. */
static int32_t drafted(const pf_session *s)
{
    int64_t pos = pf_session_pos(s);
    return s->n_ahead > 0 && pos < s->ahead_from + s->n_ahead && pf_session_is_ahead(s, s->tokens[pos]) ? s->tokens[pos]
                                                                                                         : -1;
}

/* Whether token i is given: stretches of eight tokens of every other answer. */
static bool is_given(int prompt, int i)
{
    return prompt % 2 == 0 && random_of(prompt, 5000 + i / 8) % 2 == 0;
}

static int32_t given(const struct answer *a, const pf_session *s, int prompt, int i)
{
    int32_t draft = drafted(s);
    return draft >= 0 && random_of(prompt, 9000 + i) % 5 ? draft : a->prompt[i % a->n_prompt];
}

/* The next token of an answer, from the logits that are there. */
static int32_t next_token(struct answer *a, pf_session *s, struct pf_sampler *sp, int prompt, int i, bool drafts)
{
    int32_t tok;
    const uint32_t *logits = (const uint32_t *)(const void *)pf_session_logits(s);
    for (int k = 0; k < s->m->n_vocab; k++)
        a->logits = mix(a->logits, logits[k]);
    CHECK(pf_sample(sp, s, &tok) == PF_OK, "%s", pf_last_error());
    if (drafts)
        a->tok[i] = is_given(prompt, i) ? given(a, s, prompt, i) : tok;
    else
        CHECK(is_given(prompt, i) || tok == a->tok[i], "prompt %d: token %d is %d with drafts and %d without", prompt,
              i, a->tok[i], tok);
    return a->tok[i];
}

/* Answers prompts [first, first + n) in steps together. */
static void answer(pf_model *m, struct answer *a, int first, int n, enum pf_draft draft, float temp, uint64_t count[2])
{
    struct pf_batch_part parts[TOGETHER];
    struct pf_sampler sp[TOGETHER];
    pf_session *s[TOGETHER];
    int32_t tok[TOGETHER];
    for (int k = 0; k < n; k++) {
        s[k] = open_session(m, draft, first + k);
        sp[k] = sampler_of(first + k, temp);
        a[k].logits = 1;
        CHECK(pf_session_eval(s[k], a[k].prompt, (size_t)a[k].n_prompt, 0) == PF_OK, "%s", pf_last_error());
    }
    for (int i = 0; i < n_tokens && check_n_failed == 0; i++) {
        for (int k = 0; k < n; k++) {
            tok[k] = next_token(&a[k], s[k], &sp[k], first + k, i, draft != PF_DRAFT_OFF);
            parts[k] = (struct pf_batch_part){ .session = s[k], .tok = &tok[k], .n = 1 };
            make_cheap(s[k]);
        }
        CHECK(pf_batch_eval(parts, (size_t)n) == PF_OK, "%s", pf_last_error());
    }
    for (int k = 0; k < n; k++) {
        uint64_t drafted, accepted;
        pf_session_drafts(s[k], &drafted, &accepted);
        count[0] += drafted;
        count[1] += accepted;
        pf_session_close(&s[k]);
    }
}

/* Answers n prompts from `first` on with drafts and without: tokens and logits must be the same. */
static void compare(pf_model *m, struct answer *a, int first, int n, enum pf_draft draft, float temp, uint64_t count[2])
{
    uint64_t with[TOGETHER], none[2] = { 0 };
    for (int k = 0; k < n; k++)
        make_prompt(&a[k], first + k, m->n_vocab);
    answer(m, a, first, n, draft, temp, count);
    for (int k = 0; k < n; k++)
        with[k] = a[k].logits;
    answer(m, a, first, n, PF_DRAFT_OFF, temp, none);
    for (int k = 0; k < n; k++) {
        CHECK(a[k].logits == with[k], "prompt %d: other logits with drafts", first + k);
        whole = mix(whole, with[k]);
    }
    CHECK(none[0] == 0, "drafts where none were wanted");
}

/* Every ninth prompt by itself, as a person asks; the others together. */
static void test(pf_model *m, enum pf_draft draft, const char *name, float temp)
{
    struct answer a[TOGETHER] = { 0 };
    uint64_t count[2] = { 0 };
    for (int k = 0; k < TOGETHER; k++)
        a[k].tok = calloc((size_t)n_tokens, sizeof *a[k].tok);
    for (int first = first_prompt, n; first < end_prompt && check_n_failed == 0; first += n) {
        int in_group = first % (TOGETHER + 1);
        n = in_group == 0 ? 1 : TOGETHER + 1 - in_group;
        n = n < end_prompt - first ? n : end_prompt - first;
        compare(m, a, first, n, draft, temp, count);
    }
    printf("%s, temperature %g: %d answers of %d tokens, %d drafted, %d of them right\n", name, (double)temp,
           end_prompt - first_prompt, n_tokens, (int)count[0], (int)count[1]);
    CHECK(count[1] > 0 && count[0] > count[1], "no drafts, or all of them right or wrong");
    for (int k = 0; k < TOGETHER; k++)
        free(a[k].tok);
}

static pf_status open_model(pf_model **m)
{
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.n_threads = 1;
    o.device = is("cuda") || is("cuda-shared") ? 0 : -1;
    o.streaming = is("streamed") || is("cuda-shared");
    o.nextn = true;
    o.draft_path = second;
    o.ram_bytes = is("streamed") ? little_ram(path, o) : 0;
    return pf_model_open(m, path, &o);
}

int main(int argc, char **argv)
{
    struct pf_device devices[2];
    struct pf_stats stats;
    pf_model *m;
    if (argc < 5)
        return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);        /* so that a run that is ended says how far it came */
    path = argv[1];
    place = argv[2];
    if (sscanf(argv[3], "%d-%d", &first_prompt, &end_prompt) < 2) {
        end_prompt = first_prompt;
        first_prompt = 0;
    }
    n_tokens = atoi(argv[4]);
    second = argc > 5 ? argv[5] : path;
    if ((is("cuda") || is("cuda-shared")) && pf_devices(devices, 2) < 2) {
        printf("skipped: this machine has no GPU that CUDA can use\n");
        return 77;
    }
    pf_status st = open_model(&m);
    if (st < 0) {
        printf("%s\n", pf_last_error());
        return st == PF_EUNSUPPORTED ? 77 : 1;
    }
    CHECK(is("cpu") || is("streamed") || strcmp(pf_model_info(m)->backend, "cpu") != 0, "the GPU takes no part");
    float lowest = argc > 6 ? (float)atoi(argv[6]) : 0, highest = argc > 6 ? lowest : 1;
    for (float temp = lowest; temp <= highest; temp++) {
        test(m, PF_DRAFT_LOOKUP, "lookup", temp);
        test(m, PF_DRAFT_MODEL, "a second model", temp);
        if (m->nextn)
            test(m, PF_DRAFT_MTP, "the layer that guesses ahead", temp);
    }
    pf_stats_get(m, &stats);
    CHECK(!is("streamed") || stats.slab_misses > 0, "everything was in memory");
    CHECK(!stats.device_lost);
    pf_model_close(&m);
    printf("digest of all logits: %016llx\n", (unsigned long long)whole);
    return check_status();
}
