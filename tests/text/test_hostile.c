/* Vocabularies that somebody made to be slow, next to honest ones of their size, in processor time: texts and merges
 * chosen to collide in a hash without a key, special tokens that are there many times or begin alike; and special
 * tokens of all kinds in random texts against a search that tries every token at every place. */
#include "tiny_vocab.h"

#include <time.h>

#include "base/pf_hash.h"
#include "check.h"
#include "pfmoe.h"

static uint64_t rng_state = 1;
static uint64_t any(void)
{
    rng_state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t x = rng_state;
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static double cpu_s(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* What a hostile file or text may take where an honest one takes this long. Quadratic time would be a thousand times
 * as much. */
static double allowed(double honest_s)
{
    return 20 * honest_s + 0.2;
}

static pf_vocab *must_open(struct gguf *f)
{
    pf_vocab *v;
    if (open_vocab(f, &v) < 0 || !v) {
        printf("a vocabulary does not open: %s\n", pf_last_error());
        exit(1);
    }
    gguf_free(f);
    return v;
}

/* ---- Collisions --------------------------------------------------------------------------------------------- */

/* The product with which both hashes of pfmoe 0.1, which had no key, found a slot: its bits from 32 on. */
static const uint64_t factor = UINT64_C(0x9E3779B97F4A7C15);

static uint64_t inverse(uint64_t odd)
{
    uint64_t x = odd;
    for (int i = 0; i < 5; i++)
        x *= 2 - odd * x;
    return x;
}

/* A word whose slot in a table of up to 2^20 is number 5. */
static uint64_t colliding(void)
{
    uint64_t product = (any() & ~(UINT64_C(0xFFFFF) << 32)) | UINT64_C(5) << 32;
    uint64_t y = product * inverse(factor);
    return y ^ y >> 29 ^ y >> 58;
}

static double open_seven_bytes(int n, bool hostile)
{
    struct gguf f = { 0 };
    put_str(&f, "tokenizer.ggml.model", "llama");
    put_array(&f, "tokenizer.ggml.tokens", PF_GGUF_STRING, (uint64_t)n);
    for (int i = 0; i < n;) {
        uint64_t word = hostile ? colliding() : (any() & ~(UINT64_C(0xFF) << 56)) | UINT64_C(7) << 56;
        if (word >> 56 == 7) {
            put_text(&f, (const char *)&word, 7);
            i++;
        }
    }
    double t = cpu_s();
    pf_vocab *v = must_open(&f);
    t = cpu_s() - t;
    pf_vocab_close(&v);
    return t;
}

static void put_byte_tokens(struct gguf *f)
{
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        put_mapped_text(f, &byte, 1, 0);
    }
}

/* Merges of two-byte texts: any pair of 65,536 symbols may be one. */
static double open_merges(int n, bool hostile)
{
    struct gguf f = { 0 };
    put_str(&f, "tokenizer.ggml.model", "gpt2");
    put_str(&f, "tokenizer.ggml.pre", "gpt-2");
    put_array(&f, "tokenizer.ggml.tokens", PF_GGUF_STRING, 256 + 65536);
    put_byte_tokens(&f);
    for (int i = 0; i < 65536; i++)
        put_mapped_text(&f, (const char[]){ (char)(i >> 8), (char)i }, 2, 0);
    put_array(&f, "tokenizer.ggml.merges", PF_GGUF_STRING, (uint64_t)n);
    for (int i = 0; i < n;) {
        uint32_t left = (uint32_t)any() & 0xFFFF, right = (uint32_t)any() & 0xFFFF;
        uint64_t both = (uint64_t)(left + 256) << 32 | (right + 256);
        if (hostile && ((both ^ both >> 29) * factor >> 32 & 0x1FFFF) >= 64)
            continue;
        put_mapped_text(&f, (const char[]){ (char)(left >> 8), (char)left, (char)(right >> 8), (char)right }, 4, 2);
        i++;
    }
    double t = cpu_s();
    pf_vocab *v = must_open(&f);
    t = cpu_s() - t;
    pf_vocab_close(&v);
    return t;
}

static void check_collisions(void)
{
    double honest = open_seven_bytes(100000, false), hostile = open_seven_bytes(100000, true);
    CHECK(hostile < allowed(honest), "%.2f s against %.2f s", hostile, honest);
    honest = open_merges(50000, false);
    hostile = open_merges(50000, true);
    CHECK(hostile < allowed(honest), "%.2f s against %.2f s", hostile, honest);
}

enum { N_HASHED = 4096, SLOTS = 8192 };

/* How many of the numbers in a row the fullest slot of a table gets under a key. */
static int fullest_slot(const struct pf_hash_key *key)
{
    int used[SLOTS] = { 0 }, most = 0;
    for (uint64_t i = 1; i < N_HASHED; i++) {
        int *slot = &used[pf_hash_word(key, i << 32 | 7) % SLOTS];
        most = ++*slot > most ? *slot : most;
    }
    return most;
}

/* How many sets the fullest slot of a table gets under a key, of those that have one word of each of twelve pairs, all
 * words at equal distances. */
static int fullest_slot_of_sets(const struct pf_hash_key *key)
{
    enum { PAIRS = 12, DISTANCE = 48 };
    int used[SLOTS] = { 0 }, most = 0;
    for (int set = 0; set < 1 << PAIRS; set++) {
        uint64_t sum = 0;
        for (int i = 0; i < PAIRS; i++)
            sum += pf_hash_member(key, UINT64_C(0x7f0012345600) + (uint64_t)((2 * i + (set >> i & 1)) * DISTANCE));
        int *slot = &used[sum % SLOTS];
        most = ++*slot > most ? *slot : most;
    }
    return most;
}

/* Texts that differ in few bits, all lengths: no two of many should have one hash. Numbers in rows, sets of words: no
 * slot of a table of twice as many should have more than a few. One key in two thousand puts more of them there, which
 * is what a factor drawn at random may do, so two of nine keys may. */
static void check_hash(void)
{
    enum { N_KEYS = 9, FEW = 32 };
    static uint64_t seen[2][N_HASHED];
    static char text[N_HASHED];
    struct pf_hash_key keys[N_KEYS];
    int crowded = 0, moved = 0;
    for (int k = 0; k < N_KEYS; k++) {
        pf_hash_key_draw(&keys[k]);
        crowded += fullest_slot(&keys[k]) >= FEW || fullest_slot_of_sets(&keys[k]) >= FEW;
    }
    for (int i = 1; i < N_HASHED; i++) {
        text[i] ^= 1;
        for (int k = 0; k < 2; k++)
            seen[k][i] = pf_hash_text(&keys[k], text, (size_t)i);
        text[i] ^= (char)(i & 1);
        moved += seen[0][i] != seen[1][i];
        for (int j = 1; j < i; j++)
            CHECK(seen[0][i] != seen[0][j], "texts %d and %d collide", i, j);
    }
    CHECK(moved == N_HASHED - 1, "%d of %d texts have another hash under another key", moved, N_HASHED);
    CHECK(crowded <= 2, "under %d of %d keys a slot has %d of %d numbers or more", crowded, N_KEYS, FEW, N_HASHED);
}

/* ---- Special tokens ----------------------------------------------------------------------------------------- */

struct special {
    char text[12];
    size_t n;
    int type;                            /* of tokenizer.ggml.token_type: 2 unknown, 3 control, 4 user-defined */
};

static pf_vocab *open_specials(const struct special *s, int n)
{
    struct gguf f = { 0 };
    put_str(&f, "tokenizer.ggml.model", "gpt2");
    put_str(&f, "tokenizer.ggml.pre", "gpt-2");
    put_array(&f, "tokenizer.ggml.tokens", PF_GGUF_STRING, 256 + (uint64_t)n);
    put_byte_tokens(&f);
    for (int i = 0; i < n; i++)
        put_text(&f, s[i].text, s[i].n);
    put_array(&f, "tokenizer.ggml.token_type", PF_GGUF_I32, 256 + (uint64_t)n);
    for (int i = 0; i < 256 + n; i++)
        put_u32(&f, i < 256 ? 1 : (uint32_t)s[i - 256].type);
    put_array(&f, "tokenizer.ggml.merges", PF_GGUF_STRING, 0);
    return must_open(&f);
}

/* The id at the beginning of text, by trying them all, and its length. */
static int32_t naive(const struct special *s, int n, const char *text, size_t len, bool parse, size_t *took)
{
    int32_t best = (unsigned char)text[0];
    *took = 0;
    for (int i = 0; i < n; i++)
        if ((parse || s[i].type == 4) && s[i].n > *took && s[i].n <= len && memcmp(s[i].text, text, s[i].n) == 0) {
            *took = s[i].n;
            best = 256 + i;
        }
    *took += *took == 0;
    return best;
}

static void check_special_round(int round)
{
    enum { N = 40, TEXT = 300 };
    static struct special s[N];
    char text[TEXT];
    int32_t got[TEXT];
    unsigned letters = 1 + (unsigned)round % 3;
    for (int i = 0; i < N; i++) {
        s[i].n = 1 + any() % (round % 2 ? 3 : sizeof s[i].text);
        s[i].type = 2 + (int)(any() % 3);
        for (size_t k = 0; k < s[i].n; k++)
            s[i].text[k] = (char)('a' + any() % letters);
    }
    for (int i = 0; i < TEXT; i++)
        text[i] = (char)('a' + any() % (letters + (any() % 8 == 0)));
    pf_vocab *v = open_specials(s, N);
    for (int parse = 0; parse < 2; parse++) {
        size_t n, at = 0, took, i = 0;
        CHECK(pf_vocab_tokenize(v, text, TEXT, parse ? PF_TOK_PARSE_SPECIAL : 0, got, TEXT, &n) == PF_OK, "%s",
              pf_last_error());
        for (; i < n && at < TEXT && got[i] == naive(s, N, text + at, TEXT - at, parse, &took); i++)
            at += took;
        CHECK(at == TEXT && i == n, "round %d: token %zu of %zu, at byte %zu", round, i, n, at);
    }
    pf_vocab_close(&v);
}

/* n special tokens and a text of the letter that all of them begin with: up to `longest` of it, and then another letter
 * unless all are to be alike. */
static double tokenize_s(int n, size_t longest, bool alike)
{
    enum { TEXT = 1 << 20 };
    static char text[TEXT];
    static int32_t ids[TEXT];
    struct gguf f = { 0 };
    size_t got;
    memset(text, 'e', TEXT);
    put_str(&f, "tokenizer.ggml.model", "gpt2");
    put_str(&f, "tokenizer.ggml.pre", "gpt-2");
    put_array(&f, "tokenizer.ggml.tokens", PF_GGUF_STRING, 256 + (uint64_t)n);
    put_byte_tokens(&f);
    for (int i = 0; i < n; i++) {
        size_t len = alike ? longest : longest - (size_t)i;
        put_u64(&f, len);
        put(&f, text, len - 1);
        put(&f, alike ? "e" : "f", 1);
    }
    put_array(&f, "tokenizer.ggml.token_type", PF_GGUF_I32, 256 + (uint64_t)n);
    for (int i = 0; i < 256 + n; i++)
        put_u32(&f, i < 256 ? 1 : 4);
    put_array(&f, "tokenizer.ggml.merges", PF_GGUF_STRING, 0);
    pf_vocab *v = must_open(&f);
    double t = cpu_s();
    CHECK(pf_vocab_tokenize(v, text, TEXT, 0, ids, TEXT, &got) == PF_OK, "%s", pf_last_error());
    t = cpu_s() - t;
    pf_vocab_close(&v);
    return t;
}

static void check_special_time(void)
{
    double honest = tokenize_s(1, 1, true), twins = tokenize_s(20000, 1, true),
           long_ones = tokenize_s(500, 4000, false);
    CHECK(twins < allowed(honest), "%.2f s against %.2f s", twins, honest);
    CHECK(long_ones < allowed(honest), "%.2f s against %.2f s", long_ones, honest);
}

/* Many tiny texts are refused before memory is taken for them. */
static void check_counts(void)
{
    static const char *const keys[] = { "tokenizer.ggml.tokens", "tokenizer.ggml.merges" };
    enum { MANY = 2100000 };
    for (int k = 0; k < 2; k++) {
        struct gguf f = { 0 };
        pf_vocab *v;
        put_str(&f, "tokenizer.ggml.model", "gpt2");
        put_str(&f, "tokenizer.ggml.pre", "gpt-2");
        if (k == 1) {
            put_array(&f, keys[0], PF_GGUF_STRING, 256);
            put_byte_tokens(&f);
        }
        put_array(&f, keys[k], PF_GGUF_STRING, MANY);
        for (int i = 0; i < MANY; i++)
            put_text(&f, "a b", 3);
        CHECK(open_vocab(&f, &v) == PF_EFORMAT && strstr(pf_last_error(), keys[k]) &&
              strstr(pf_last_error(), "more than 2097152 entries"), "%s", pf_last_error());
        pf_vocab_close(&v);
        gguf_free(&f);
    }
}

int main(void)
{
    check_hash();
    check_counts();
    check_collisions();
    for (int round = 0; round < 300; round++)
        check_special_round(round);
    check_special_time();
    return check_status();
}
