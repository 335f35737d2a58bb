/* Typed access, look-up, verification and inspection of good files, and what they refuse. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "gguf/inspect.h"
#include "gguf_build.h"

static int n_failed;

static void check(bool ok, const char *what)
{
    if (!ok) {
        printf("failed: %s (last error: %s)\n", what, pf_last_error());
        n_failed++;
    }
}
#define CHECK(x) check((x), #x)

static bool said(pf_status st, pf_status want, const char *what)
{
    return st == want && strstr(pf_last_error(), what) != NULL;
}

static void test_integers(const pf_gguf *g)
{
    int64_t v = 0;
    CHECK(pf_gguf_int(g, "test.u8", 0, 255, &v) == PF_OK && v == 255);
    CHECK(pf_gguf_int(g, "test.i8", -128, 0, &v) == PF_OK && v == -128);
    CHECK(pf_gguf_int(g, "test.u16", 0, INT64_MAX, &v) == PF_OK && v == 65535);
    CHECK(pf_gguf_int(g, "test.i16", INT64_MIN, INT64_MAX, &v) == PF_OK && v == -32768);
    CHECK(pf_gguf_int(g, "test.u32", 0, INT64_MAX, &v) == PF_OK && v == UINT32_MAX);
    CHECK(pf_gguf_int(g, "test.i32", INT64_MIN, 0, &v) == PF_OK && v == INT32_MIN);
    CHECK(pf_gguf_int(g, "test.i64", INT64_MIN, 0, &v) == PF_OK && v == INT64_MIN);
    CHECK(said(pf_gguf_int(g, "test.u64", INT64_MIN, INT64_MAX, &v), PF_EFORMAT, "18446744073709551615"));
    CHECK(said(pf_gguf_int(g, "test.u8", 0, 254, &v), PF_EFORMAT, "'test.u8' at byte"));
    CHECK(said(pf_gguf_int(g, "test.u8", 0, 254, &v), PF_EFORMAT, "is 255, not from 0 to 254"));
    CHECK(said(pf_gguf_int(g, "test.f32", 0, 9, &v), PF_EFORMAT, "type f32 where an integer is due"));
    CHECK(said(pf_gguf_int(g, "test.bool", 0, 9, &v), PF_EFORMAT, "type bool where an integer is due"));
    CHECK(said(pf_gguf_int(g, "test.layers", 0, 9, &v), PF_EFORMAT, "type array of i32 where an integer is due"));
    CHECK(said(pf_gguf_int(g, "test.none", 0, 9, &v), PF_EFORMAT, "key 'test.none' is missing"));
    v = 77;
    CHECK(pf_gguf_int_opt(g, "test.none", 0, 9, &v) == PF_OK && v == 77);
    CHECK(said(pf_gguf_int_opt(g, "test.words", 0, 9, &v), PF_EFORMAT, "array of string"));
}

static void test_layers(const pf_gguf *g)
{
    int64_t v[3] = { 9, 9, 9 };
    bool found;
    CHECK(pf_gguf_ints_opt(g, "test.layers", 3, 1, 3, v, &found) == PF_OK && found && v[0] == 1 && v[2] == 3);
    CHECK(pf_gguf_ints_opt(g, "test.u8", 3, 0, 255, v, NULL) == PF_OK && v[0] == 255 && v[2] == 255);
    CHECK(pf_gguf_ints_opt(g, "test.flags", 3, 0, 1, v, NULL) == PF_OK && v[0] == 1 && v[1] == 0 && v[2] == 1);
    CHECK(pf_gguf_ints_opt(g, "test.bool", 3, 0, 1, v, NULL) == PF_OK && v[1] == 1);
    CHECK(pf_gguf_ints_opt(g, "test.none", 3, 0, 1, v, &found) == PF_OK && !found && v[1] == 1);
    CHECK(said(pf_gguf_ints_opt(g, "test.layers", 4, 0, 9, v, NULL), PF_EFORMAT, "has 3 entries where 4 are due"));
    CHECK(said(pf_gguf_ints_opt(g, "test.layers", 3, 0, 2, v, NULL), PF_EFORMAT, "is 3, not from 0 to 2"));
    CHECK(said(pf_gguf_ints_opt(g, "test.flags", 3, 1, 9, v, NULL), PF_EFORMAT, "is false where"));
    CHECK(said(pf_gguf_ints_opt(g, "test.words", 3, 0, 9, v, NULL), PF_EFORMAT, "array of string where an integer"));
}

static void test_others(const pf_gguf *g)
{
    struct pf_str s = { 0 };
    float f = 0;
    bool b = false;
    CHECK(pf_gguf_real(g, "test.f32", &f) == PF_OK && f == 1.5f);
    CHECK(pf_gguf_real(g, "test.f64", &f) == PF_OK && f == -2.25f);
    CHECK(pf_gguf_real_opt(g, "test.none", &f) == PF_OK && f == -2.25f);
    CHECK(said(pf_gguf_real(g, "test.none", &f), PF_EFORMAT, "'test.none' is missing"));
    CHECK(said(pf_gguf_real(g, "test.u8", &f), PF_EFORMAT, "type u8 where a real is due"));
    CHECK(pf_gguf_bool_opt(g, "test.bool", &b) == PF_OK && b);
    CHECK(said(pf_gguf_bool_opt(g, "test.u8", &b), PF_EFORMAT, "type u8 where a bool is due"));
    CHECK(pf_gguf_str(g, "general.architecture", &s) == PF_OK && s.n == 4 && memcmp(s.p, "test", 4) == 0);
    CHECK(pf_gguf_str_opt(g, "general.name", &s) == PF_OK && s.n == 0);
    CHECK(said(pf_gguf_str(g, "test.none", &s), PF_EFORMAT, "'test.none' is missing"));
    CHECK(said(pf_gguf_str(g, "test.words", &s), PF_EFORMAT, "type array of string where a string is due"));
    const struct pf_gguf_kv *kv = pf_gguf_find(g, "test.words");
    CHECK(kv && kv->n == 3 && kv->strings[2].n == 2 && memcmp(kv->strings[2].p, "\xFF\xFE", 2) == 0);
    CHECK(pf_gguf_kv_at(g, 0) == pf_gguf_find(g, "general.architecture") && !pf_gguf_kv_at(g, pf_gguf_n_kv(g)));
    CHECK(!pf_gguf_find(g, "test") && !pf_gguf_find(g, "") && !pf_gguf_find(g, "test.u80"));
    const struct pf_tensor *t = pf_gguf_tensor(g, "Q6_K");
    CHECK(t && t->type == PF_Q6_K && t->row_bytes == 420 && t->n_bytes == 840 && t->data && t->ne[3] == 1);
    CHECK(!pf_gguf_tensor(g, "Q6") && !pf_gguf_tensor_at(g, pf_gguf_n_tensors(g)));
}

/* Reals that are none: NaN, infinities, and an f64 that f32 cannot hold. */
static void test_bad_reals(void)
{
    const double values[] = { NAN, INFINITY, -INFINITY, 1e39 };
    for (int i = 0; i < 4; i++) {
        struct buf b = { 0 };
        float f = (float)values[i];
        pf_gguf *g;
        put_header(&b, 3, 0, 2);
        put_key(&b, "t.f64", PF_GGUF_F64);
        put(&b, &values[i], 8);
        put_key(&b, "t.f32", PF_GGUF_F32);
        put(&b, &f, 4);
        CHECK(open_bytes(&g, &b, PF_GGUF_EMPTY_OK) == PF_OK);
        CHECK(said(pf_gguf_real(g, "t.f64", &f), PF_EFORMAT, "key 't.f64'"));
        CHECK(said(pf_gguf_real_opt(g, "t.f32", &f), PF_EFORMAT, "not a finite f32"));
        pf_gguf_close(&g);
        free(b.p);
    }
}

/* An array far larger than what is read ahead, with small values before and behind it. */
static void test_long_array(void)
{
    enum { N = 100000 };
    struct buf b = { 0 };
    int64_t first = 0, last = 0, *v = malloc(N * sizeof *v);
    pf_gguf *g;
    put_header(&b, 3, 0, 3);
    put_kv_int(&b, "t.first", PF_GGUF_U8, 5);
    put_array(&b, "t.long", PF_GGUF_U32, N);
    for (uint32_t i = 0; i < N; i++)
        put_u32(&b, i);
    put_kv_u32(&b, "t.last", 6);
    CHECK(open_bytes(&g, &b, PF_GGUF_VOCAB_ONLY) == PF_OK);
    CHECK(pf_gguf_int(g, "t.first", 5, 5, &first) == PF_OK && pf_gguf_int(g, "t.last", 6, 6, &last) == PF_OK);
    CHECK(v && pf_gguf_ints_opt(g, "t.long", N, 0, N, v, NULL) == PF_OK);
    for (int i = 0; v && i < N; i++)
        if (v[i] != i)
            return check(false, "the long array's values");
    pf_gguf_close(&g);
    free(v);
    free(b.p);
}

/* Where each type keeps its scales, and bits that make one of them bad. */
static const struct damage {
    enum pf_qtype type;
    unsigned at, n;                  /* bytes in the block, first and how many */
    uint8_t bytes[8];
} damages[] = {
    { PF_F32, 0, 4, { 0, 0, 0x80, 0x7F } },       { PF_F32, 0, 4, { 1, 0, 0x80, 0xFF } },
    { PF_F16, 0, 2, { 0, 0x7C } },                { PF_F16, 0, 2, { 1, 0xFC } },
    { PF_BF16, 0, 2, { 0x80, 0x7F } },            { PF_BF16, 0, 2, { 0xC0, 0xFF } },
    { PF_F64, 0, 8, { 0, 0, 0, 0, 0, 0, 0xF0, 0x7F } },
    { PF_Q4_0, 0, 2, { 0, 0x7C } },               { PF_Q4_1, 0, 2, { 0, 0x7C } },
    { PF_Q4_1, 2, 2, { 0, 0x7C } },               { PF_Q5_0, 0, 2, { 0, 0x7C } },
    { PF_Q5_1, 0, 2, { 0, 0x7C } },               { PF_Q5_1, 2, 2, { 0, 0xFC } },
    { PF_Q8_0, 0, 2, { 0, 0xFE } },               { PF_Q8_1, 2, 2, { 0, 0x7C } },
    { PF_Q2_K, 80, 2, { 0, 0x7C } },              { PF_Q2_K, 82, 2, { 0, 0x7C } },
    { PF_Q3_K, 108, 2, { 0, 0x7C } },             { PF_Q4_K, 0, 2, { 0, 0x7C } },
    { PF_Q4_K, 2, 2, { 0, 0x7C } },               { PF_Q5_K, 0, 2, { 0, 0x7C } },
    { PF_Q5_K, 2, 2, { 0, 0x7C } },               { PF_Q6_K, 208, 2, { 0, 0x7C } },
    { PF_Q8_K, 0, 4, { 0, 0, 0x80, 0x7F } },      { PF_IQ2_XXS, 0, 2, { 0, 0x7C } },
    { PF_IQ2_XS, 0, 2, { 0, 0x7C } },             { PF_IQ2_S, 0, 2, { 0, 0x7C } },
    { PF_IQ3_XXS, 0, 2, { 0, 0x7C } },            { PF_IQ3_S, 0, 2, { 0, 0x7C } },
    { PF_IQ1_S, 0, 2, { 0, 0x7C } },              { PF_IQ1_M, 53, 3, { 0xC0, 0, 0x70 } },
    { PF_IQ4_NL, 0, 2, { 0, 0x7C } },             { PF_IQ4_XS, 0, 2, { 0, 0x7C } },
    { PF_TQ1_0, 52, 2, { 0, 0x7C } },             { PF_TQ2_0, 64, 2, { 0, 0x7C } },
    { PF_Q1_0, 0, 2, { 0, 0x7C } },               { PF_Q2_0, 0, 2, { 0, 0x7C } },
    { PF_MXFP4, 0, 1, { 0xFF } },                 { PF_NVFP4, 0, 1, { 0x80 } },
    { PF_NVFP4, 3, 1, { 0x7F } },                 { PF_NVFP4, 2, 1, { 0xFF } },
};

static void damage_block(struct buf *b, uint64_t offset, uint64_t block, const struct damage *d)
{
    memcpy(b->p + offset + block * pf_qtype_info(d->type)->block_bytes + d->at, d->bytes, d->n);
}

/* Kind 84: the message names the tensor and the first element of the damaged block. */
static void test_verify_one(const struct buf *good, const struct damage *d)
{
    const struct pf_qtype_info *info = pf_qtype_info(d->type);
    uint64_t n_blocks = 1024 / info->block_len;
    const uint64_t blocks[] = { 0, n_blocks / 2 + 1, n_blocks - 1 };
    for (int i = 0; i < 3; i++) {
        struct buf b = { 0 };
        char where[64];
        pf_gguf *g;
        put(&b, good->p, good->n);
        if (open_bytes(&g, &b, 0) != PF_OK)
            return check(false, "the rich file opens");
        damage_block(&b, pf_gguf_tensor(g, info->name)->offset, blocks[i], d);
        pf_gguf_close(&g);
        struct mem_file f = mem_file_new(b.p, b.n);
        CHECK(pf_gguf_open(&g, f.path, 0) == PF_OK);
        snprintf(where, sizeof where, "element %d", (int)(blocks[i] * info->block_len));
        check(said(pf_gguf_verify(g), PF_EFORMAT, where), info->name);
        snprintf(where, sizeof where, "tensor '%s' at byte", info->name);
        check(strstr(pf_last_error(), where) != NULL, info->name);
        pf_gguf_close(&g);
        mem_file_close(&f);
        free(b.p);
    }
}

/* Every byte is 0xAA or 0x55: all scales of all types are finite then, whatever else the codes are. */
static void test_verify_good(const struct buf *good, uint8_t fill)
{
    struct buf b = { 0 };
    pf_gguf *g;
    put(&b, good->p, good->n);
    CHECK(open_bytes(&g, &b, 0) == PF_OK);
    for (uint64_t i = 0; i < pf_gguf_n_tensors(g); i++) {
        const struct pf_tensor *t = pf_gguf_tensor_at(g, i);
        memset(b.p + t->offset, t->type == PF_NVFP4 ? 0x55 : fill, t->n_bytes);
    }
    pf_gguf_close(&g);
    struct mem_file f = mem_file_new(b.p, b.n);
    CHECK(pf_gguf_open(&g, f.path, 0) == PF_OK && pf_gguf_verify(g) == PF_OK);
    pf_gguf_close(&g);
    mem_file_close(&f);
    free(b.p);
}

/* Two layers and a predicting one, 4 experts of which 1 is used. */
static void put_moe(struct buf *b, bool tied)
{
    put_header(b, 3, tied ? 8 : 9, 8);
    put_kv_string(b, "general.architecture", "moe-x");
    put_kv_string(b, "general.type", "model");
    put_kv_u32(b, "moe-x.block_count", 3);
    put_kv_u32(b, "moe-x.nextn_predict_layers", 1);
    put_kv_int(b, "moe-x.embedding_length", PF_GGUF_U64, 64);
    put_array(b, "moe-x.attention.head_count", PF_GGUF_I32, 3);
    put_u32(b, 4);
    put_u32(b, 8);
    put_u32(b, 4);
    put_kv_u32(b, "moe-x.expert_count", 4);
    put_kv_u32(b, "moe-x.expert_used_count", 1);
    put_tensor(b, "token_embd.weight", PF_Q8_0, 64, 10, 0);              /* 680 bytes, a row 68 */
    put_tensor(b, "blk.0.ffn_gate_exps.weight", PF_F32, 32, 4, 704);     /* 512 */
    put_tensor(b, "blk.0.ffn_gate_shexp.weight", PF_F32, 32, 1, 1216);   /* 128 */
    put_tensor(b, "blk.1.ffn_down.3.weight", PF_F32, 32, 1, 1344);       /* 128 */
    put_tensor(b, "blk.1.ffn_down.weight", PF_F32, 32, 1, 1472);         /* 128 */
    put_tensor(b, "blk.2.ffn_up_exps.weight", PF_F32, 32, 1, 1600);      /* 128, not read to decode */
    put_tensor(b, "per_layer_token_embd.weight", PF_F32, 32, 3, 1728);   /* 384, a row 128 */
    put_tensor(b, "blk.0.ffn_gate_exps.bias", PF_F32, 32, 4, 2112);      /* 512 */
    if (!tied)
        put_tensor(b, "output.weight", PF_F32, 32, 2, 2624);             /* 256 */
    pad_to(b, 32);
    put_zeros(b, tied ? 2624 : 2880);
}

static void test_inspect(bool tied)
{
    struct buf b = { 0 };
    struct pf_file_info info;
    put_moe(&b, tied);
    struct mem_file f = mem_file_new(b.p, b.n);
    CHECK(pf_gguf_inspect(f.path, PF_FILE_VERIFY, &info) == PF_OK);
    CHECK(strcmp(info.architecture, "moe-x") == 0 && strcmp(info.kind, "model") == 0 && info.name[0] == 0);
    CHECK(info.n_layers == 2 && info.n_embd == 64 && info.n_heads == 8 && info.n_kv_heads == 8 && info.n_vocab == 10);
    CHECK(info.n_experts == 4 && info.n_experts_used == 1 && info.file_bytes == b.n && info.n_shards == 1);
    CHECK(info.expert_bytes == 2 * 512 + 128 + 128);
    CHECK(info.weight_bytes == 680 + 2 * 512 + 4 * 128 + 384 + (tied ? 0u : 256u));
    CHECK(info.bytes_per_token == (tied ? 680u : 68u + 256u) + (2 * 512 + 128) / 4 + 128 + 128 + 128);
    CHECK(info.kv_bytes_per_token == (4 + 8) * (64 / 8) * 2 * 2);
    CHECK(info.n_types == 2 && strcmp(info.types[0].name, "F32") == 0 && info.types[0].n_tensors == (tied ? 7u : 8u));
    CHECK(info.n_params == 640 + 2 * 128 + 4 * 32 + 96 + (tied ? 0u : 64u));
    CHECK(!info.supported && info.n_warnings == 0 && info.version == 3);
    mem_file_close(&f);
    free(b.p);
}

static void test_inspect_vocabulary(void)
{
    struct buf b = { 0 };
    struct pf_file_info info;
    put_header(&b, 3, 0, 3);
    put_kv_string(&b, "general.type", "vocab");
    put_kv_string(&b, "general.name", "a name that is longer than what a struct of a hundred and twenty-eight bytes "
                  "may hold, so that it has to be cut short before its end");
    put_array(&b, "tokenizer.ggml.tokens", PF_GGUF_STRING, 1);
    put_string(&b, "<unk>");
    struct mem_file f = mem_file_new(b.p, b.n);
    CHECK(pf_gguf_inspect(f.path, PF_FILE_VERIFY, &info) == PF_OK);
    CHECK(strcmp(info.kind, "vocab") == 0 && info.n_vocab == 1);
    CHECK(strlen(info.name) == 127 && info.architecture[0] == 0);
    mem_file_close(&f);
    CHECK(pf_gguf_inspect("/nonexistent", 0, &info) == PF_EIO && info.n_vocab == 0);
    free(b.p);
}

int main(void)
{
    struct pf_mem_stats stats;
    struct buf b = { 0 };
    pf_gguf *g;
    put_rich_file(&b, 512, 2);
    CHECK(open_bytes(&g, &b, 0) == PF_OK);
    test_integers(g);
    test_layers(g);
    test_others(g);
    pf_gguf_close(&g);
    test_bad_reals();
    test_long_array();
    for (size_t i = 0; i < sizeof damages / sizeof damages[0]; i++)
        test_verify_one(&b, &damages[i]);
    test_verify_good(&b, 0xAA);
    test_verify_good(&b, 0x55);
    test_inspect(false);
    test_inspect(true);
    test_inspect_vocabulary();
    free(b.p);
    CHECK(said(pf_gguf_open(&g, NULL, 0), PF_EINVAL, "no path"));
    pf_mem_stats_get(&stats);
    printf("%d failures, %d allocations left\n", n_failed, (int)stats.n_live);
    return n_failed || stats.n_live;
}
