/* Tables: Cohere. See arch.h. */
#include "moe/archs/archs.h"

/* `cohere2moe`: North Mini Code, Command A+. Attention and feed-forward of a layer read one norm of x, which subtracts
 * the mean unless the file says otherwise; layers with a window rotate, and leading dense ones. */
const struct pf_arch pf_arch_cohere2moe = {
    .name = "cohere2moe",
    .window = PF_WINDOW_BY_LAYER,
    .still_far = true,
    .dense_rotates = true,
    .parallel = true,
    .centred = true,
    .leading_dense = PF_OPTIONAL,
    .act = PF_ACT_SWIGLU,
    .gating = PF_GATE_SIGMOID,
    .router_keys = true,
    .shared = PF_OPTIONAL,
    .shared_mean = true,
    .expert_width = PF_WIDTH_FF,
    .logit_factor = true,
};
