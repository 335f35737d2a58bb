/* The architectures pfmoe has, in the order in which messages name them: (table, without its pf_arch_). To add one,
 * write its table in a file arch_*.c here, its line in this list and its row in models.md. */
#ifndef PF_ARCHS_H
#define PF_ARCHS_H

#include "moe/archs/arch.h"

#define PF_ARCHS(A) \
    A(llama) \
    A(qwen2) \
    A(qwen2moe) \
    A(qwen3) \
    A(qwen3moe) \
    A(qwen3vlmoe) \
    A(qwen3next) \
    A(qwen35) \
    A(qwen35moe) \
    A(qwen4exp) \
    A(gpt_oss) \
    A(deepseek2) \
    A(deepseek4) \
    A(glm_dsa) \
    A(deepseek32) \
    A(glm5_next) \
    A(glm4moe) \
    A(olmoe) \
    A(granite) \
    A(granitemoe) \
    A(minimax_m2) \
    A(minimax_m3) \
    A(bailingmoe) \
    A(bailingmoe2) \
    A(exaone_moe) \
    A(ernie4_5) \
    A(ernie4_5_moe) \
    A(hunyuan_moe) \
    A(hy_v3) \
    A(dots1) \
    A(afmoe) \
    A(cohere2moe) \
    A(llama4) \
    A(nemotron_h_moe) \
    A(lfm2moe) \
    A(granitehybrid) \
    A(phimoe) \
    A(kimi_linear) \
    A(smollm3) \
    A(mistral3) \
    A(mistral4) \
    A(gemma4) \
    A(step35) \
    A(mimo2) \
    A(mellum)

#define PF_ARCH_DECLARE(table) extern const struct pf_arch pf_arch_##table;
PF_ARCHS(PF_ARCH_DECLARE)

#endif
