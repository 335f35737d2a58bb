/* For the tests: small vocabularies of our own, written as GGUF files and opened again.
 *
 *     struct gguf f = { 0 };  put_...(&f, key, ...);  pf_status st = open_vocab(&f, &v);  gguf_free(&f);
 *
 * Byte-level: ids 0-255 are the bytes, then what the merges form, in their order, then <|end|> (control) and <think>
 * (user-defined). SPM: <unk> <s> </s>, 256 byte tokens, then characters and words. */
#ifndef PF_TEST_TINY_VOCAB_H
#define PF_TEST_TINY_VOCAB_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf/gguf.h"
#include "text/vocab.h"

enum { BPE_FIRST_MERGE = 256, SPM_FIRST_WORD = 3 + 256 };

/* ---- Writing GGUF ---- */

struct gguf {
    char *p;
    size_t n, cap;
    uint64_t n_kv;
};

static inline void put(struct gguf *f, const void *data, size_t n)
{
    if (f->n + n > f->cap) {
        f->cap = 2 * (f->n + n);
        f->p = realloc(f->p, f->cap);
        if (!f->p)
            abort();
    }
    if (n)
        memcpy(f->p + f->n, data, n);
    f->n += n;
}

static inline void put_u32(struct gguf *f, uint32_t x) { put(f, &x, 4); }
static inline void put_u64(struct gguf *f, uint64_t x) { put(f, &x, 8); }

static inline void put_text(struct gguf *f, const char *s, size_t n)
{
    put_u64(f, n);
    put(f, s, n);
}

static inline void put_key(struct gguf *f, const char *key, enum pf_gguf_type type)
{
    put_text(f, key, strlen(key));
    put_u32(f, type);
    f->n_kv++;
}

static inline void put_str(struct gguf *f, const char *key, const char *s)
{
    put_key(f, key, PF_GGUF_STRING);
    put_text(f, s, strlen(s));
}

static inline void put_int(struct gguf *f, const char *key, uint32_t x)
{
    put_key(f, key, PF_GGUF_U32);
    put_u32(f, x);
}

static inline void put_bool(struct gguf *f, const char *key, bool x)
{
    put_key(f, key, PF_GGUF_BOOL);
    put(f, &x, 1);
}

/* Then the elements. */
static inline void put_array(struct gguf *f, const char *key, enum pf_gguf_type elem, uint64_t n)
{
    put_key(f, key, PF_GGUF_ARRAY);
    put_u32(f, elem);
    put_u64(f, n);
}

static inline void put_strs(struct gguf *f, const char *key, const char *const *s, size_t n)
{
    put_array(f, key, PF_GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_text(f, s[i], strlen(s[i]));
}

static inline void gguf_free(struct gguf *f)
{
    free(f->p);
    *f = (struct gguf){ 0 };
}

/* Writes the file where path (a mkstemp template) says. */
static inline void gguf_write(const struct gguf *f, char *path)
{
    uint32_t version = 3;
    uint64_t n_tensors = 0;
    int fd = mkstemp(path);
    FILE *out = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (!out || fwrite("GGUF", 4, 1, out) != 1 || fwrite(&version, 4, 1, out) != 1 || fwrite(&n_tensors, 8, 1,
        out) != 1 ||
        fwrite(&f->n_kv, 8, 1, out) != 1 || (f->n && fwrite(f->p, f->n, 1, out) != 1) || fclose(out) != 0) {
        perror("writing a test file");
        exit(1);
    }
}

static inline pf_status open_vocab(const struct gguf *f, pf_vocab **v)
{
    char path[] = "/tmp/pfmoe-test-XXXXXX";
    pf_gguf *g = NULL;
    *v = NULL;
    gguf_write(f, path);
    pf_status st = pf_gguf_open(&g, path, PF_GGUF_VOCAB_ONLY);
    unlink(path);
    if (st == PF_OK)
        st = pf_vocab_open(v, g);
    pf_gguf_close(&g);
    return st;
}

/* ---- The vocabularies ---- */

/* The results of merges, as raw texts "left right"; an underscore stands for a space. */
static const char *const tiny_merges[] = {
    "h e", "l l", "l o", "he ll", "o o", "hell o", "_ h", "_he llo", "1 2", "12 3", "e l", "el lo", "ll o", "h el",
    "_ _", "\n \n", "he l", "hel lo", "o h", "oh e", "l h", "\xE4 \xBD", "\xE4\xBD \xA0", "_ hello", "\xC3 \xA9",
};
enum { N_TINY_MERGES = sizeof tiny_merges / sizeof *tiny_merges };

/* The parts of merge i as raw bytes, one after the other; returns the length of the first. */
static inline size_t tiny_parts(int i, char *out, size_t *n)
{
    size_t n_left = 0;
    *n = 0;
    for (const char *p = tiny_merges[i]; *p; p++) {
        if (*p == ' ')
            n_left = *n;
        else
            out[(*n)++] = *p == '_' ? ' ' : *p;
    }
    return n_left;
}

/* One byte as byte-level files write it. */
static inline size_t put_mapped(char *out, unsigned char b)
{
    unsigned cp = b;
    if (b <= 0x20)
        cp = 0x100 + b;
    else if (b >= 0x7F && b <= 0xA0)
        cp = 0x100 + 33 + (b - 0x7Fu);
    else if (b == 0xAD)
        cp = 0x143;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    out[0] = (char)(0xC0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 0x3F));
    return 2;
}

static inline void put_mapped_text(struct gguf *f, const char *p, size_t n, size_t space_after)
{
    char buf[64];
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && i == space_after)
            buf[to++] = ' ';
        to += put_mapped(buf + to, (unsigned char)p[i]);
    }
    put_text(f, buf, to);
}

/* Joined texts of merges, each once, in order; their number. first[i]: index among them of what merge i forms. */
static inline int tiny_joined(char text[][16], size_t *len, int *first)
{
    int n = 0;
    for (int i = 0; i < N_TINY_MERGES; i++) {
        size_t k;
        tiny_parts(i, text[n], &k);
        int j = 0;
        while (j < n && !(len[j] == k && memcmp(text[j], text[n], k) == 0))
            j++;
        first[i] = j;
        if (j == n)
            len[n++] = k;
    }
    return n;
}

static inline void put_tiny_bpe(struct gguf *f, const char *pre, bool with_merges)
{
    static char text[N_TINY_MERGES + 1][16];
    static size_t len[N_TINY_MERGES + 1];
    static int first[N_TINY_MERGES];
    int n = tiny_joined(text, len, first);
    put_str(f, "tokenizer.ggml.model", "gpt2");
    put_str(f, "tokenizer.ggml.pre", pre);
    put_array(f, "tokenizer.ggml.tokens", PF_GGUF_STRING, (uint64_t)(256 + n + 2));
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        put_mapped_text(f, &byte, 1, 0);
    }
    for (int i = 0; i < n; i++)
        put_mapped_text(f, text[i], len[i], 0);
    put_text(f, "<|end|>", 7);
    put_text(f, "<think>", 7);
    put_array(f, "tokenizer.ggml.token_type", PF_GGUF_I32, (uint64_t)(256 + n + 2));
    for (int i = 0; i < 256 + n; i++)
        put_u32(f, 1);
    put_u32(f, 3);
    put_u32(f, 4);
    if (!with_merges)
        return;
    put_array(f, "tokenizer.ggml.merges", PF_GGUF_STRING, N_TINY_MERGES);
    for (int i = 0; i < N_TINY_MERGES; i++) {
        char parts[16];
        size_t k, n_left = tiny_parts(i, parts, &k);
        put_mapped_text(f, parts, k, n_left);
    }
}

static const char *const tiny_words[] = {
    "▁", "h", "e", "l", "o", "a", "你", "\n", "he", "ll", "lo", "hell", "hello", "▁hello", "▁he", "▁▁", "▁▁▁▁", "oo",
    "el", "llo",
    "ello", "▁a", "oh", "\n\n",
};
enum { N_TINY_WORDS = sizeof tiny_words / sizeof *tiny_words };

/* kind: "llama" or "gemma4". A space inside a word makes words that cannot be merged apart. */
static inline void put_tiny_words(struct gguf *f, const char *kind, bool space_inside)
{
    static const char *const merges[] = {
        "h e", "l l", "l o", "he ll", "hell o", "▁ hello", "▁ he", "▁ ▁", "▁▁ ▁▁", "o o", "e l", "ll o", "e llo",
        "▁ a", "o h",
    };
    int n = SPM_FIRST_WORD + N_TINY_WORDS + space_inside;
    put_str(f, "tokenizer.ggml.model", kind);
    put_array(f, "tokenizer.ggml.tokens", PF_GGUF_STRING, (uint64_t)n);
    put_text(f, "<unk>", 5);
    put_text(f, "<s>", 3);
    put_text(f, "</s>", 4);
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        put_text(f, name, 6);
    }
    for (int i = 0; i < N_TINY_WORDS; i++)
        put_text(f, tiny_words[i], strlen(tiny_words[i]));
    if (space_inside)
        put_text(f, "o▁", strlen("o▁"));
    put_array(f, "tokenizer.ggml.scores", PF_GGUF_F32, (uint64_t)n);
    for (int i = 0; i < n; i++) {
        float score = i < SPM_FIRST_WORD ? 0.0f : -(float)((i * 7) % 13);
        put(f, &score, 4);
    }
    put_array(f, "tokenizer.ggml.token_type", PF_GGUF_I32, (uint64_t)n);
    for (int i = 0; i < n; i++)
        put_u32(f, i == 0 ? 2 : i < 3 ? 3 : i < SPM_FIRST_WORD ? 6 : 1);
    if (strcmp(kind, "gemma4") == 0) {
        put_strs(f, "tokenizer.ggml.merges", merges, sizeof merges / sizeof *merges);
        put_int(f, "tokenizer.ggml.bos_token_id", 1);
    }
}

#endif
