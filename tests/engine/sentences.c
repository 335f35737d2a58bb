/* What a file says stands in sentences of ours only as text, and never so long that the file's path has no room:
 * names and values of a megabyte, full of orders to a terminal, in each place from where they come into a message.
 *
 * usage: sentences MODEL.gguf, of llama's architecture */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "gguf/gguf_build.h"
#include "pfmoe.h"

enum { LONG = 1 << 20 };

static const char orders[] = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x7f\xc2\x9b\xe2\x80\xae\xe2\x81\xa6";
static char *longest;
static int n_logged;

static bool is_clean(const char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f || memcmp(s, "\xc2\x9b", 2) == 0 ||
            memcmp(s, "\xe2\x80\xae", 3) == 0)
            return false;
    return true;
}

static void log_line(void *ctx, enum pf_log_level level, const char *text)
{
    (void)ctx, (void)level;
    n_logged++;
    CHECK(is_clean(text), "logged: %s", text);
}

static pf_status open_file(const char *path, const struct pf_adapter *adapter)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.n_threads = 1;
    o.device = -1;
    o.log = log_line;
    o.adapters = adapter;
    o.n_adapters = adapter ? 1 : 0;
    pf_status st = pf_model_open(&m, path, &o);
    pf_model_close(&m);
    return st;
}

static void check_sentence(const char *what, pf_status st, const char *path)
{
    CHECK(st < 0 && strstr(pf_last_error(), path) && is_clean(pf_last_error()) && strlen(pf_last_error()) < 1000,
          "%s: status %d: %s", what, st, pf_last_error());
}

/* Files that are nothing but one key with such a value. */
static void test_values(void)
{
    static const char *const keys[] = { "general.architecture", "general.type", "tokenizer.ggml.model",
                                        "tokenizer.ggml.pre" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        for (int is_long = 0; is_long < 2; is_long++) {
            struct buf b = { 0 };
            put_header(&b, 3, 1, i == 0 ? 1 : 2);
            put_kv_string(&b, keys[i], is_long ? longest : orders);
            if (i > 0)
                put_kv_string(&b, "general.architecture", "llama");
            put_tensor(&b, "token_embd.weight", PF_F32, 32, 1, 0);
            pad_to(&b, 32);
            put_zeros(&b, 128);
            struct mem_file f = mem_file_new(b.p, b.n);
            check_sentence(keys[i], open_file(f.path, NULL), f.path);
            mem_file_close(&f);
            free(b.p);
        }
}

/* An adapter of which one of the strings is such a text, or a tensor's name. */
static void test_adapters(const char *model)
{
    for (int i = 0; i < 4; i++)
        for (int is_long = 0; is_long < 2; is_long++) {
            struct buf b = { 0 };
            char name[60];
            const char *text = is_long ? longest : orders;
            snprintf(name, sizeof name, "blk.0.%s.lora_a", orders);
            put_header(&b, 3, 1, 3);
            put_kv_string(&b, "general.type", i == 0 ? text : "adapter");
            put_kv_string(&b, "adapter.type", i == 1 ? text : "lora");
            put_kv_string(&b, "general.architecture", i == 2 ? text : "llama");
            put_tensor(&b, name, PF_F32, 32, 1, 0);
            pad_to(&b, 32);
            put_zeros(&b, 128);
            struct mem_file f = mem_file_new(b.p, b.n);
            check_sentence("an adapter", open_file(model, &(struct pf_adapter){ f.path, 1 }), f.path);
            mem_file_close(&f);
            free(b.p);
        }
}

/* The model with another name for a tensor, which makes one that is missing, or not used. */
static void test_tensor_name(const char *model)
{
    pf_gguf *g;
    FILE *f = fopen(model, "rb");
    CHECK(f && pf_gguf_open(&g, model, 0) == PF_OK);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f);
    char *data = malloc(n);
    rewind(f);
    CHECK(fread(data, 1, n, f) == n);
    fclose(f);
    for (uint64_t i = 0; i < pf_gguf_n_tensors(g) && i < 12; i++) {
        struct pf_str name = pf_gguf_tensor_at(g, i)->name;
        char *at = memmem(data, n, name.p, name.n);
        memset(at + name.n - 3, 0x1b, 3);
        struct mem_file copy = mem_file_new(data, n);
        pf_status st = open_file(copy.path, NULL);
        if (st < 0)
            check_sentence("a tensor", st, copy.path);
        mem_file_close(&copy);
        memcpy(at, name.p, name.n);
    }
    pf_gguf_close(&g);
    free(data);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    longest = malloc(LONG + 1);
    for (size_t i = 0; i < LONG; i++)
        longest[i] = orders[i % (sizeof orders - 1)];
    longest[LONG] = 0;
    test_values();
    test_adapters(argv[1]);
    test_tensor_name(argv[1]);
    printf("%d lines were logged\n", n_logged);
    free(longest);
    return check_status();
}
