/* The presets of pfmoe-synth, and the sizes of each family that are no columns of that table. See synth_shapes.h. */
#include <string.h>

#include "synth_shapes.h"

const struct preset synth_presets[] = {
    { "gpt-oss-20b",   GPTOSS,    24, 2880, 64, 8, 64,  2880, 32,  4,  2880, 201088, 131072, 150000, 1e-5f, "Q8_0", 0, "MXFP4", 0, "GPT-OSS-20B", 0, 0 },
    { "gpt-oss-120b",  GPTOSS,    36, 2880, 64, 8, 64,  2880, 128, 4,  2880, 201088, 131072, 150000, 1e-5f, "Q8_0", 0, "MXFP4", 0, "GPT-OSS-120B", 0, 0 },
    { "qwen3-30b-a3b", QWEN3MOE,  48, 2048, 32, 4, 128, 6144, 128, 8,  768,  151936, 40960,  1e6f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Qwen3-30B-A3B", 0, 0 },
    { "qwen3-next-80b", QWEN3NEXT, 48, 2048, 16, 2, 256, 5120, 512, 10, 512, 151936, 262144, 1e7f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Qwen3-Next-80B-A3B", 0, 1 },
    { "qwen3.6-35b-a3b", QWEN35MOE, 40, 2048, 16, 2, 256, 0, 256, 8, 512,    248320, 262144, 1e7f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Qwen3.6-35B-A3B", 0, 1 },
    { "deepseek-v2-lite", DEEPSEEK2, 27, 2048, 16, 1, 192, 10944, 64, 6, 1408, 102400, 163840, 1e4f, 1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "DeepSeek-V2-Lite", 1, 2 },
    { "deepseek-v4-flash", DEEPSEEK4, 43, 4096, 64, 1, 512, 0, 256, 6, 2048, 129280, 1048576, 1e4f, 1e-6f, "Q8_0", 0, "MXFP4", 0, "DeepSeek-V4-Flash, without the layer that guesses ahead", 0, 1 },
    { "glm-4.5-air",   GLM4MOE,   46, 4096, 96, 8, 128, 10944, 128, 8, 1408, 151552, 131072, 1e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "GLM-4.5-Air, without the block that guesses ahead", 1, 1 },
    { "nemotron-3-nano", NEMOTRON, 52, 2688, 32, 2, 128, 1856, 128, 6, 1856, 131072, 262144, 1e4f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Nemotron-3-Nano-30B-A3B", 0, 2 },
    { "lfm2-8b-a1b",   LFM2,      24, 2048, 32, 8, 64,  7168, 32,  4,  1792, 65536,  128000, 1e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "LFM2-8B-A1B", 2, 0 },
    { "granite-4.0-h-small", GRANITE_H, 40, 4096, 32, 8, 128, 768, 72, 10, 0, 100352, 131072, 1e4f,  1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Granite-4.0-H-Small", 0, 2 },
    { "phi-3.5-moe",   PHI,       32, 4096, 32, 8, 128, 6400, 16,  2,  0,    32064,  131072, 1e4f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Phi-3.5-MoE", 0, 0 },
    { "kimi-linear-48b-a3b", KIMI, 27, 2304, 32, 1, 192, 9216, 256, 8, 1024, 163840, 1048576, 1e4f,  1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Kimi-Linear-48B-A3B", 1, 1 },
    { "qwen3.8-flash-next", QWEN4, 48, 2560, 24, 2, 256, 0, 512, 10, 640, 248320, 262144, 1e7f,  1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Qwen3.8-Flash-Next-125B-A6B with its table of n-grams", 0, 1 },
    { "gemma-4-26b-a4b", GEMMA4,  30, 2816, 16, 2, 512, 2112, 128, 8,  704,  262144, 262144, 1e6f,   1e-6f, "Q4_K", "Q6_K", 0, 0, "Gemma-4-26B-A4B", 0, 0 },
    { "gemma-4-31b",   GEMMA4,    60, 5376, 32, 4, 512, 21504, 0,  0,  0,    262144, 262144, 1e6f,   1e-6f, "Q4_K", "Q6_K", 0, 0, "Gemma-4-31B", 0, 0 },
    { "gemma-4-e2b",   GEMMA4,    35, 1536, 8,  1, 512, 6144, 0,   0,  0,    262144, 131072, 1e6f,   1e-6f, "Q4_K", "Q6_K", 0, 0, "Gemma-4-E2B", 0, 0 },
    { "gemma-4-e4b",   GEMMA4,    42, 2560, 8,  2, 512, 10240, 0,  0,  0,    262144, 131072, 1e6f,   1e-6f, "Q4_K", "Q6_K", 0, 0, "Gemma-4-E4B", 0, 0 },
    { "glm-5.3-flash", GLM5,      45, 4096, 64, 1, 256, 12288, 288, 8, 2048, 154880, 1048576, 1e4f,  1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "GLM-5.3-Flash-320B-A18B, without the block that guesses ahead", 3, 1 },
    { "qwen3-vl-30b-a3b", QWEN3VL, 48, 2048, 32, 4, 128, 6144, 128, 8, 768,  151936, 262144, 5e6f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Qwen3-VL-30B-A3B, text", 0, 0 },
    { "ministral-3-8b", MISTRAL3, 34, 4096, 32, 8, 128, 14336, 0,  0,  0,    131072, 262144, 1e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Ministral-3-8B", 0, 0 },
    { "ministral-3-14b", MISTRAL3, 40, 5120, 32, 8, 128, 16384, 0, 0,  0,    131072, 262144, 1e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Ministral-3-14B", 0, 0 },
    { "mistral-small-4", MISTRAL4, 36, 4096, 32, 1, 128, 0,   128, 4,  2048, 131072, 1048576, 1e4f,  1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "Mistral-Small-4-119B-A6B", 0, 1 },
    { "smollm3-3b",    SMOLLM3,   36, 2048, 16, 4, 128, 11008, 0,  0,  0,    128256, 65536,  5e6f,   1e-6f, "Q4_K", "Q6_K", 0, 0, "SmolLM3-3B", 0, 0 },
    { "deepseek-v3.2", DEEPSEEK32, 61, 7168, 128, 1, 192, 18432, 256, 8, 2048, 129280, 163840, 1e4f, 1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "DeepSeek-V3.2, without the block that guesses ahead", 3, 1 },
    { "step-3.5-flash", STEP35,   45, 4096, 64, 8, 128, 11264, 288, 8, 1280, 128896, 262144, 5e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Step-3.5-Flash-196B-A11B, without the blocks that guess ahead", 3, 1 },
    { "mimo-v2-flash", MIMO2,     48, 4096, 64, 4, 192, 16384, 256, 8, 2048, 152576, 262144, 5e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "MiMo-V2-Flash-309B-A15B, without the blocks that guess ahead", 1, 0 },
    { "minimax-m3",    MINIMAX3,  60, 6144, 64, 4, 128, 12288, 128, 4, 3072, 200064, 1048576, 5e6f,  1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "MiniMax-M3-428B-A23B", 3, 1 },
    { "trinity-mini",  AFMOE,     32, 2048, 32, 4, 128, 6144, 128, 8,  1024, 200192, 131072, 1e4f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Trinity-Mini-26B-A3B", 2, 1 },
    { "north-mini-code", COHERE2, 49, 2048, 32, 4, 128, 3072, 128, 8,  768,  262144, 262144, 5e4f,   1e-5f, "Q4_K", "Q6_K", 0, 0, "North-Mini-Code-30B-A3B", 1, 0 },
    { "hy3",           HY3,       80, 4096, 64, 8, 128, 13312, 192, 8, 1536, 120832, 262144, 11158840, 1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Hy3-295B-A21B, without the block that guesses ahead", 1, 1 },
    { "mixtral-8x7b",  LLAMA,     32, 4096, 32, 8, 128, 14336, 8,  2,  0,    32000,  32768,  1e6f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Mixtral-8x7B", 0, 0 },
    { "llama-8b",      LLAMA,     32, 4096, 32, 8, 128, 14336, 0,  0,  0,    128256, 131072, 5e5f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Llama-3.1-8B", 0, 0 },
    { "llama-70b",     LLAMA,     80, 8192, 64, 8, 128, 28672, 0,  0,  0,    128256, 131072, 5e5f,   1e-5f, "Q4_K", "Q6_K", 0, "Q6_K", "Llama-3.x-70B", 0, 0 },
    { "moe-2g",        QWEN3MOE,  12, 2048, 32, 4, 128, 6144, 64,  8,  768,  32000,  32768,  1e6f,   1e-6f, "Q4_K", "Q6_K", 0, "Q6_K", "12 layers of 64 experts, 2.4 GiB: for benchmarks on small machines", 0, 0 },
    { "moe-tiny",      QWEN3MOE,  2,  256,  8,  2, 32,  512,  16,  4,  256,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 0 },
    { "gpt-oss-tiny",  GPTOSS,    4,  288,  8,  2, 32,  288,  8,   4,  288,  512,    2048,   150000, 1e-5f, "Q8_0", 0, "MXFP4", 0, "a few MB: for tests", 0, 0 },
    { "qwen3-next-tiny", QWEN3NEXT, 4, 256, 4, 2, 64, 512,  16,  4,  128,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 1 },
    { "qwen35moe-tiny", QWEN35MOE, 4, 256, 4, 2, 64,  0,    16,  4,  128,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 1 },
    { "deepseek2-tiny", DEEPSEEK2, 3, 256, 4, 1, 192, 512,  16,  4,  128,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 2 },
    { "glm-dsa-tiny",  GLM_DSA,   3,  256, 4,  1, 192, 512,  16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 1 },
    { "deepseek4-tiny", DEEPSEEK4, 4, 256, 4,  1, 64,  0,   16,  4,  128,  512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 1 },
    { "glm4moe-tiny",  GLM4MOE,   3,  256, 8,  2, 32,  512,  16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 1 },
    { "nemotron-tiny", NEMOTRON,  6,  256,  4,  2, 64,  128, 16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 2 },
    { "lfm2-tiny",     LFM2,      4,  256,  4,  2, 64,  512,  16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 0 },
    { "granite-h-tiny", GRANITE_H, 4, 256,  4,  2, 64,  128,  16,  4,  0,    512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 2 },
    { "phi-tiny",      PHI,       2,  256,  4,  2, 64,  128,  16,  2,  0,    512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 0 },
    { "kimi-linear-tiny", KIMI,   4,  256,  4,  1, 192, 512,  16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 1 },
    { "afmoe-tiny",    AFMOE,     5,  256,  4,  2, 64,  512,  16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 1 },
    { "cohere2-tiny",  COHERE2,   5,  256,  4,  2, 64,  512,  16,  4,  128,  512,    2048,   1e4f,   1e-5f, "Q8_0", 0, 0, 0, "a few MB: for tests", 1, 1 },
    { "llama-tiny",    LLAMA,     2,  256,  8,  2, 32,  512,  0,   0,  0,    512,    2048,   1e4f,   1e-5f, "Q4_K", 0, 0, "Q6_K", "a few MB: for tests", 0, 0 },
    { "llama-thin",    LLAMA,     6,  256,  8,  2, 32,  512,  0,   0,  0,    8192,   2048,   1e4f,   1e-5f, "Q4_K", 0, 0, "Q6_K", "a few MB in 6 layers: for tests", 0, 0 },
    { "qwen35-tiny",   QWEN35,    5,  256,  4,  2, 64,  512,  0,   0,  0,    512,    2048,   1e4f,   1e-6f, "Q8_0", 0, 0, 0, "a few MB: for tests", 0, 0 },
};

const size_t synth_n_presets = sizeof synth_presets / sizeof *synth_presets;

const char *synth_arch_of(const struct preset *p)
{
    static const char *const names[] = {
        [LLAMA] = "llama", [QWEN3MOE] = "qwen3moe", [GPTOSS] = "gpt-oss", [QWEN3NEXT] = "qwen3next",
        [QWEN35MOE] = "qwen35moe", [DEEPSEEK2] = "deepseek2", [GLM4MOE] = "glm4moe", [GLM_DSA] = "glm-dsa",
        [QWEN35] = "qwen35", [DEEPSEEK4] = "deepseek4", [NEMOTRON] = "nemotron_h_moe", [LFM2] = "lfm2moe",
        [GRANITE_H] = "granitehybrid", [PHI] = "phimoe", [KIMI] = "kimi-linear", [QWEN4] = "qwen4exp",
        [GEMMA4] = "gemma4", [GLM5] = "glm5-next", [QWEN3VL] = "qwen3vlmoe", [MISTRAL3] = "mistral3",
        [MISTRAL4] = "mistral4", [SMOLLM3] = "smollm3", [DEEPSEEK32] = "deepseek32", [STEP35] = "step35",
        [MIMO2] = "mimo2", [MINIMAX3] = "minimax-m3", [AFMOE] = "afmoe",
        [COHERE2] = "cohere2moe", [HY3] = "hy_v3",
    };
    return names[p->family];
}

bool synth_is_hybrid(const struct preset *p)
{
    return p->family == QWEN3NEXT || p->family == QWEN35MOE || p->family == QWEN35 || p->family == QWEN4;
}

bool synth_is_latent(const struct preset *p)
{
    return p->family == DEEPSEEK2 || p->family == GLM_DSA || p->family == KIMI || p->family == GLM5 ||
           p->family == MISTRAL4 || p->family == DEEPSEEK32;
}

bool synth_has_states(const struct preset *p)
{
    return p->family == NEMOTRON || p->family == LFM2 || p->family == GRANITE_H || p->family == KIMI ||
           p->family == GLM5;
}

bool synth_is_tied(const struct preset *p)
{
    return p->family == GEMMA4 || p->family == SMOLLM3 || p->family == COHERE2;
}

/* What the families' layers are that differ without a rule; of a model of more layers the pattern begins anew. */
static char kind_by_pattern(const struct preset *p, int il)
{
    static const struct { enum family family; int n_layer; const char *pattern; } patterns[] = {
        { NEMOTRON, 6, "memame" },
        { NEMOTRON, 52, "mememaemememaemememaemememaemememaememememaememememe" },
        { LFM2, 4, "ccac" },
        { LFM2, 24, "ccacccacccacccacccaccacc" },
        { GRANITE_H, 4, "mmam" },
        { GRANITE_H, 40, "mmmmmammmmmmmmmammmmmmmmmammmmmmmmmammmm" },
        { KIMI, 4, "kkka" },
        { KIMI, 27, "kkkakkkakkkakkkakkkakkkakka" },
    };
    const char *best = NULL;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (patterns[i].family == p->family && (!best || (int)strlen(best) < p->n_layer))
            best = patterns[i].pattern;
    return best ? best[(size_t)il % strlen(best)] : 'a';
}

char synth_kind_of(const struct preset *p, int il)
{
    if (synth_is_hybrid(p))
        return (il + 1) % 4 ? 'd' : 'a';
    switch (p->family) {
    case GLM5:   return (il + 1) % 4 ? 'k' : 'a';
    case GEMMA4: return (il + 1) % synth_gemma_of(p).period ? 'w' : 'a';
    case STEP35: return il % 4 ? 'w' : 'a';
    case AFMOE:  return (il + 1) % 4 ? 'w' : 'a';
    case COHERE2: return il % 4 ? 'w' : 'a';
    case MIMO2:  return il > 0 && (il + 1) % 6 ? 'w' : 'a';
    default:     return kind_by_pattern(p, il);
    }
}

struct synth_heads synth_heads_of(const struct preset *p, int il)
{
    struct synth_heads h = { p->n_head, p->n_kv, p->hd, p->hd };
    bool near = synth_kind_of(p, il) == 'w';
    if (p->family == MIMO2)
        h = (struct synth_heads){ p->n_head, near ? 2 * p->n_kv : p->n_kv, p->hd, p->hd * 2 / 3 };
    if (p->family == STEP35 && near)
        h.n_head = p->n_head * 3 / 2;
    if (p->family == GEMMA4 && near) {
        h.hd_k = h.hd_v = p->hd / 2;
        h.n_kv = synth_gemma_of(p).width ? p->n_kv : 4 * p->n_kv;
    }
    return h;
}

struct synth_gemma synth_gemma_of(const struct preset *p)
{
    struct synth_gemma g = { .period = 6, .window = 1024, .n_ff_shared = p->n_ff };
    if (p->n_embd == 1536)
        g = (struct synth_gemma){ 5, 512, 256, 20, 2 * p->n_ff };
    else if (p->n_embd == 2560)
        g = (struct synth_gemma){ 6, 512, 256, 18, p->n_ff };
    int most = p->n_layer - g.period;
    g.n_shared = g.n_shared > most ? (most > 0 ? most : 0) : g.n_shared;
    return g;
}

struct synth_latent synth_latent_of(const struct preset *p)
{
    switch (p->family) {
    case GLM_DSA:    return (struct synth_latent){ 64, 128, 512, 128, 128 };
    case DEEPSEEK32: return (struct synth_latent){ 64, 128, 512, 128, 1536 };
    case MISTRAL4:   return (struct synth_latent){ 64, 64, 256, 128, 1024 };
    case GLM5:       return (struct synth_latent){ 0, 256, 512, 256, 1536 };
    default:         return (struct synth_latent){ 64, 128, 512, 128, 0 };
    }
}

struct synth_index synth_index_of(const struct preset *p)
{
    switch (p->family) {
    case GLM_DSA:    return (struct synth_index){ 4, 96, 270 };
    case DEEPSEEK32: return (struct synth_index){ 64, 128, 2048 };
    case GLM5:       return (struct synth_index){ 32, 128, 2048 };
    case QWEN4:      return (struct synth_index){ 4, 128, 2048 };
    case MINIMAX3:   return (struct synth_index){ 4, 128, 16 };
    default:         return (struct synth_index){ 0 };
    }
}

bool synth_has_indexer(const struct preset *p, int il)
{
    if (p->family == GLM_DSA)
        return il < DSA_FULL_LAYERS;
    if (p->family == MINIMAX3)
        return il >= p->n_dense;
    return synth_index_of(p).n_head > 0 && synth_kind_of(p, il) == 'a';
}

static bool is_prime(uint64_t n)
{
    for (uint64_t d = 2; d * d <= n; d++)
        if (n % d == 0)
            return false;
    return n > 1;
}

/* Tables of different prime sizes from N_GRAM_BASE on, one for each head. */
uint64_t synth_ngram_sizes(uint64_t sizes[NGRAM_HEADS])
{
    enum { N_GRAM_BASE = 20000000, ALIGNED = 128 };
    uint64_t n = N_GRAM_BASE, sum = 0;
    for (int i = 0; i < NGRAM_HEADS; n++)
        if (is_prime(n)) {
            sizes[i++] = n;
            sum += n;
        }
    return (sum + ALIGNED - 1) / ALIGNED * ALIGNED;
}

struct synth_mamba synth_mamba_of(const struct preset *p)
{
    if (p->family == NEMOTRON)
        return p->n_embd < 2048 ? (struct synth_mamba){ 256, 4, 2 } : (struct synth_mamba){ 4096, 64, 8 };
    return (struct synth_mamba){ 2 * p->n_embd, 2 * p->n_embd / 64, 1 };
}

const struct synth_compressed *synth_compressed_of(const struct preset *p)
{
    static const struct synth_compressed flash = { 64, 1024, 8, 1024, 64, 128, 512, 128, 3, 2 };
    static const struct synth_compressed tiny = { 16, 64, 2, 32, 4, 32, 8, 40, 1, 1 };
    return p->n_embd < 4096 ? &tiny : &flash;
}

int synth_ratio_of(const struct preset *p, int il)
{
    int n_plain = synth_compressed_of(p)->n_plain;
    return il < n_plain || il == p->n_layer ? 0 : (il - n_plain) % 2 ? 128 : 4;
}
