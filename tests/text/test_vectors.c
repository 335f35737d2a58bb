/* Checks a real vocabulary against recorded answers: test_vectors VOCAB.gguf LINES.jsonl DETOK.jsonl META.json
 *
 * LINES: text -> ids; "ids_model" (the model's own tokenizer) is the truth where it is there, else "ids" (llama.cpp);
 * "check":"roundtrip" accepts any ids whose bytes are the input again. DETOK: ids -> bytes of each. META: special
 * ids, the set of tokens that end a reply. */
#include "jsonl.h"

#include <time.h>

#include "gguf/gguf.h"
#include "pfmoe.h"
#include "text/vocab.h"

enum { MAX_IDS = 1 << 20 };
static int32_t ids[MAX_IDS];
static char text_back[1 << 22];
static int failed;

/* An ordinary token of Qwen's vocabulary is spelled </s>. llama.cpp, and so the records, take it for a control token.
 * */
enum { QWEN_SLASH_S = 128247 };
static bool is_qwen;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct bytes from_hex(const cJSON *s)
{
    struct bytes b = { s->valuestring, strlen(s->valuestring) / 2 };
    for (size_t i = 0; i < b.n; i++) {
        unsigned byte;
        if (sscanf(s->valuestring + 2 * i, "%2x", &byte) != 1)
            DIE("not hex: %s", s->valuestring);
        b.p[i] = (char)byte;
    }
    return b;
}

static bool same_ids(const cJSON *want, size_t n)
{
    size_t i = 0;
    for (const cJSON *w = want->child; w; w = w->next, i++)
        if (i >= n || ids[i] != w->valueint)
            return false;
    return i == n;
}

/* Bytes of ids[0..n) rendered without control tokens are the text, after the space that tokenising puts in front. */
static bool gives_back(const pf_vocab *v, size_t n, struct bytes text)
{
    size_t need;
    if (pf_vocab_detokenize(v, ids, n, 0, text_back, sizeof text_back, &need) < 0)
        return false;
    return need == text.n && memcmp(text_back, text.p, need) == 0;
}

static void check_lines(const pf_vocab *v, const char *path)
{
    struct jsonl f = jsonl_open(path);
    int n_lines = 0, good = 0, compatible = 0, n_model = 0;
    for (cJSON *line; (line = jsonl_next(&f)); cJSON_Delete(line)) {
        const cJSON *hex = cJSON_GetObjectItem(line, "hex"), *model = cJSON_GetObjectItem(line, "ids_model");
        const cJSON *lcpp = cJSON_GetObjectItem(line, "ids"), *check = cJSON_GetObjectItem(line, "check");
        struct bytes text = hex ? from_hex(hex) : bytes_of(cJSON_GetObjectItem(line, "text"));
        unsigned flags = 0;
        size_t n;
        if (cJSON_IsTrue(cJSON_GetObjectItem(line, "add_special")))
            flags |= PF_TOK_ADD_SPECIAL;
        if (cJSON_IsTrue(cJSON_GetObjectItem(line, "parse_special")))
            flags |= PF_TOK_PARSE_SPECIAL;
        if (pf_vocab_tokenize(v, text.p, text.n, flags, ids, MAX_IDS, &n) < 0)
            DIE("%s", pf_last_error());
        bool ok = same_ids(model ? model : lcpp, n) || (check && gives_back(v, n, text));
        n_lines++;
        good += ok;
        n_model += model != NULL;
        compatible += same_ids(lcpp, n);
        if (!ok && failed++ < 40) {
            printf("line %d: %.*s\n  got ", n_lines, (int)(text.n < 200 ? text.n : 200), text.p);
            for (size_t i = 0; i < n && i < 60; i++)
                printf(" %d", ids[i]);
            printf("\n  want %s\n", cJSON_PrintUnformatted(model ? model : lcpp));
        }
    }
    jsonl_close(&f);
    printf("  text to ids: %d of %d lines (%d judged by the model's own ids; %d as llama.cpp)\n", good, n_lines,
        n_model,
           compatible);
}

static bool same_pieces(const pf_vocab *v, const cJSON *id_list, const cJSON *hex_list, bool special)
{
    const cJSON *id = id_list->child, *hex = hex_list->child;
    for (; id && hex; id = id->next, hex = hex->next) {
        size_t n;
        const char *p = pf_vocab_piece(v, id->valueint, special, &n);
        bool ok = strlen(hex->valuestring) == 2 * n;
        for (size_t i = 0; i < n && ok; i++) {
            char byte[3];
            snprintf(byte, sizeof byte, "%02x", (unsigned char)p[i]);
            ok = memcmp(byte, hex->valuestring + 2 * i, 2) == 0;
        }
        if (!ok) {
            printf("  id %d special %d: \"%.*s\", not %s\n", id->valueint, special, (int)n, p, hex->valuestring);
            return false;
        }
    }
    return !id && !hex;
}

static void check_pieces(const pf_vocab *v, const char *path)
{
    struct jsonl f = jsonl_open(path);
    int n_lines = 0, good = 0;
    for (cJSON *line; (line = jsonl_next(&f)); cJSON_Delete(line)) {
        const cJSON *list = cJSON_GetObjectItem(line, "ids");
        bool ok = same_pieces(v, list, cJSON_GetObjectItem(line, "pieces_special_hex"), true) &&
                  same_pieces(v, list, cJSON_GetObjectItem(line, "pieces_plain_hex"), false);
        n_lines++;
        good += ok;
        failed += !ok;
    }
    jsonl_close(&f);
    printf("  ids to bytes: %d of %d lines\n", good, n_lines);
}

static void check_id(const cJSON *meta, const char *key, int32_t got)
{
    const cJSON *want = cJSON_GetObjectItem(meta, key);
    if (want && want->valueint != got) {
        printf("  %s is %d, not %d\n", key, got, want->valueint);
        failed++;
    }
}

static void check_meta(const pf_vocab *v, const char *path)
{
    FILE *f = fopen(path, "re");
    char *text = calloc(1, 1 << 16);
    if (!f || fread(text, 1, (1 << 16) - 1, f) == 0)
        DIE("cannot read %s", path);
    fclose(f);
    cJSON *meta = cJSON_Parse(text);
    check_id(meta, "n_vocab", (int32_t)pf_vocab_size(v));
    check_id(meta, "bos", pf_vocab_special(v, PF_SPECIAL_BOS));
    check_id(meta, "eos", pf_vocab_special(v, PF_SPECIAL_EOS));
    check_id(meta, "pad", pf_vocab_special(v, PF_SPECIAL_PAD));
    const cJSON *eog = cJSON_GetObjectItem(meta, "eog");
    int n_ends = 0;
    for (int32_t id = 0; id < pf_vocab_size(v); id++) {
        bool want = false;
        for (const cJSON *e = eog->child; e; e = e->next)
            want |= e->valueint == id;
        want &= !(is_qwen && id == QWEN_SLASH_S);
        n_ends += want;
        if (want != pf_vocab_is_end(v, id)) {
            printf("  id %d: end is %d\n", id, !want);
            failed++;
        }
    }
    printf("  special ids compared; %d tokens end a reply\n", n_ends);
    cJSON_Delete(meta);
    free(text);
}

/* Every piece with a text of its own is found again, as its own id or a lower one with the same bytes. */
static void check_find(const pf_vocab *v)
{
    int missing = 0;
    for (int32_t id = 0; id < pf_vocab_size(v); id++) {
        size_t n, m;
        const char *p = pf_vocab_piece(v, id, true, &n), *q;
        int32_t found = n ? pf_vocab_find(v, p, n) : id;
        if (found == id)
            continue;
        q = found < 0 ? "" : pf_vocab_piece(v, found, true, &m);
        missing += found < 0 || m != n || memcmp(p, q, n) != 0;
    }
    /* A byte token's piece is the byte; its name is what can be looked up. At most 256 of those. */
    printf("  pieces not found by their bytes: %d\n", missing);
    failed += missing > 256;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        DIE("usage: test_vectors VOCAB.gguf LINES.jsonl DETOK.jsonl META.json");
    pf_gguf *g;
    pf_vocab *v;
    double t0 = now_s();
    if (pf_gguf_open(&g, argv[1], PF_GGUF_VOCAB_ONLY) < 0)
        DIE("%s", pf_last_error());
    double t1 = now_s();
    if (pf_vocab_open(&v, g) < 0 || !v)
        DIE("%s", pf_last_error());
    printf("%s: reader %.3f s, vocabulary %.3f s\n", argv[1], t1 - t0, now_s() - t1);
    pf_gguf_close(&g);
    is_qwen = strstr(argv[4], "qwen3") != NULL;
    check_lines(v, argv[2]);
    check_pieces(v, argv[3]);
    check_meta(v, argv[4]);
    check_find(v);
    pf_vocab_close(&v);
    return failed != 0;
}
