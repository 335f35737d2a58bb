/* The architectures pfmoe has: to add one, write its file and put its name here. */
#include <string.h>

#include "moe/model.h"

#define PF_ARCH_LIST(X) \
    X(llama)            \
    X(qwen2)            \
    X(qwen2moe)         \
    X(qwen3)            \
    X(qwen3moe)         \
    X(qwen3next)        \
    X(qwen35)           \
    X(qwen35moe)        \
    X(gptoss)           \
    X(deepseek2)        \
    X(deepseek4)        \
    X(glm_dsa)          \
    X(glm4moe)          \
    X(olmoe)            \
    X(granite)          \
    X(granitemoe)       \
    X(minimax_m2)       \
    X(bailingmoe2)      \
    X(ernie4_5)         \
    X(ernie4_5_moe)     \
    X(hunyuan_moe)      \
    X(dots1)            \
    X(llama4)

#define X(name) extern const struct pf_arch pf_arch_##name;
PF_ARCH_LIST(X)
#undef X

static const struct pf_arch *const archs[] = {
#define X(name) &pf_arch_##name,
    PF_ARCH_LIST(X)
#undef X
};

const struct pf_arch *pf_arch_at(int i)
{
    return i >= 0 && (size_t)i < sizeof archs / sizeof *archs ? archs[i] : NULL;
}

const struct pf_arch *pf_arch_find(struct pf_str name)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (strlen(archs[i]->name) == name.n && memcmp(archs[i]->name, name.p, name.n) == 0)
            return archs[i];
    return NULL;
}
