/* Where the fields lie that the Python binding writes down, a line each: struct, field, offset; and the size of the one
 * struct of which it makes arrays. */
#include <stdio.h>

#include "pfmoe.h"

#define SHOW(type, field) printf("%s %s %zu\n", #type, #field, offsetof(struct type, field))

int main(void)
{
    SHOW(pf_model_opts, n_threads);
    SHOW(pf_model_opts, isa);
    SHOW(pf_model_opts, device);
    SHOW(pf_model_opts, vram_bytes);
    SHOW(pf_model_opts, vocab_only);
    SHOW(pf_model_opts, ram_bytes);
    SHOW(pf_model_opts, streaming);
    SHOW(pf_model_info, architecture);
    SHOW(pf_model_info, name);
    SHOW(pf_model_info, backend);
    SHOW(pf_model_info, n_threads);
    SHOW(pf_model_info, n_layers);
    SHOW(pf_model_info, n_ctx_train);
    SHOW(pf_model_info, n_vocab);
    SHOW(pf_model_info, n_experts_used);
    SHOW(pf_message, role);
    SHOW(pf_message, content);
    SHOW(pf_message, name);
    SHOW(pf_session_opts, n_ctx);
    SHOW(pf_session_opts, n_batch);
    SHOW(pf_session_opts, kv_type);
    SHOW(pf_sampler, temp);
    SHOW(pf_sampler, top_k);
    SHOW(pf_sampler, top_p);
    SHOW(pf_sampler, min_p);
    printf("pf_message size %zu\n", sizeof(struct pf_message));
    return 0;
}
