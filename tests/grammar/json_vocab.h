/* A vocabulary for grammar tests: the 256 bytes, then words as JSON has them, one of them twice, then a token that ends
 * an answer, a control token, and a user-defined one. */
#ifndef PF_TEST_JSON_VOCAB_H
#define PF_TEST_JSON_VOCAB_H

#include "../text/tiny_vocab.h"
#include "grammar/grammar.h"
#include "languages/languages.h"

static const char *const json_words[] = {
    "{\"", "\":", "\": \"", "\",", "\", \"", "\"}", "}}", "}]", "]]", "[[", "[{", "{}", "[]", "true", "false", "null",
    " \"", ", ", "1,", "12", "123", "00", "-1", ".5", "0.", "e+", "name", "age", "abc", "ab", "aa", "aaaa", " the",
    "rue", "the",
    "hello", "\\\"", "\\n", "\\u", "\\u00", "é", "\xC3", "你", "\xE4\xBD", "\n", "\n  ", "  ", "((", "))", "+a", "a+a",
    "ab",
    "\"a\"", "\"a\":", "\"name\":", "2024-", "-01", "T1", "@a", "a@", "root", "://", "\":{\"", "\"]}", ".com", "[\"",
};
enum { N_JSON_WORDS = sizeof json_words / sizeof *json_words, JSON_VOCAB_END = 256 + N_JSON_WORDS, JSON_VOCAB_CONTROL,
       JSON_VOCAB_THINK, N_JSON_VOCAB };

static inline pf_vocab *open_json_vocab(void)
{
    struct gguf f = { 0 };
    pf_vocab *v;
    put_str(&f, "tokenizer.ggml.model", "gpt2");
    put_str(&f, "tokenizer.ggml.pre", "gpt-2");
    put_array(&f, "tokenizer.ggml.tokens", PF_GGUF_STRING, N_JSON_VOCAB);
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        put_mapped_text(&f, &byte, 1, 0);
    }
    for (int i = 0; i < N_JSON_WORDS; i++)
        put_mapped_text(&f, json_words[i], strlen(json_words[i]), 0);
    put_text(&f, "<|end|>", 7);
    put_text(&f, "<|tool|>", 8);
    put_text(&f, "<think>", 7);
    put_array(&f, "tokenizer.ggml.token_type", PF_GGUF_I32, N_JSON_VOCAB);
    for (int i = 0; i < N_JSON_VOCAB; i++)
        put_u32(&f, i < JSON_VOCAB_END ? 1 : i == JSON_VOCAB_THINK ? 4 : 3);
    put_array(&f, "tokenizer.ggml.merges", PF_GGUF_STRING, 1);
    put_text(&f, "r ue", 4);
    put_int(&f, "tokenizer.ggml.eos_token_id", JSON_VOCAB_END);
    pf_status st = open_vocab(&f, &v);
    gguf_free(&f);
    if (st < 0 || !v) {
        printf("the vocabulary of the test: %s\n", pf_last_error());
        exit(1);
    }
    return v;
}

/* Numbers for walks; any seed. */
static inline uint32_t next_number(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* A token among those whose bits are set; -1: there is none. */
static inline int32_t any_token(const uint64_t *mask, int32_t n_vocab, uint64_t *state)
{
    int32_t n = 0, token = -1;
    for (int32_t i = 0; i < n_vocab; i++)
        n += mask[i / 64] >> i % 64 & 1;
    n = n ? (int32_t)(next_number(state) % (uint32_t)n) : -1;
    for (int32_t i = 0; i < n_vocab && n >= 0; i++) {
        n -= mask[i / 64] >> i % 64 & 1;
        token = i;
    }
    return token;
}

#endif
