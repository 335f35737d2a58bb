/* The roofline: figures worked out by hand for the shapes of gpt-oss-20b and qwen3-30b-a3b with their
 * experts in RAM, and what must hold at the ends: all held, nothing shared, a rate that nobody knows. */
#include "bench/roofline.h"

#include "check.h"

static const struct rates machine = { .vram = 4.4e12, .ram = 130e9, .pcie = 55e9, .joint = 150e9 };

static bool near(double x, double y)
{
    return x > 0.999 * y && x < 1.001 * y;
}

int main(void)
{
    struct token_work gpt_oss = { .gpu_bytes = 1.29e9, .rest_bytes = 1269e6, .shared = true, .handoffs_ns = 24 * 8900 };
    struct token_work qwen3 = { .gpu_bytes = 0.89e9, .rest_bytes = 1175e6, .shared = true, .handoffs_ns = 48 * 8900 };
    struct token_work all_held = gpt_oss, cut = { .gpu_bytes = 4.4e9, .rest_bytes = 13e9 },
                      cpu = { .rest_bytes = 1.3e9 };
    struct rates slow_bus = machine, unknown = machine;
    double t = roofline_tok_s(&machine, &gpt_oss);
    CHECK(t > 111 && t < 112, "gpt-oss-20b: %.2f tok/s", t);
    t = roofline_tok_s(&machine, &qwen3);
    CHECK(t > 117.5 && t < 118.5, "qwen3-30b-a3b: %.2f tok/s", t);
    all_held.held = 1;
    t = roofline_tok_s(&machine, &all_held);
    CHECK(near(t, 1 / (2.559e9 / 4.4e12 + 24 * 8.9e-6)), "all experts held: %.2f tok/s", t);
    t = roofline_tok_s(&machine, &cut);
    CHECK(near(t, 1 / (1e-3 + 0.1)), "layers cut: %.3f tok/s", t);
    t = roofline_tok_s(&machine, &cpu);
    CHECK(near(t, 100), "the CPU alone: %.2f tok/s", t);
    slow_bus.pcie = 10e9;                /* the two together are no faster than each for itself */
    t = roofline_tok_s(&slow_bus, &(struct token_work){ .rest_bytes = 140e9, .shared = true });
    CHECK(near(t, 1), "a slow bus: %.3f tok/s", t);
    t = roofline_tok_s(&machine, &(struct token_work){ .gpu_bytes = 4.4e9, .rest_bytes = 1.5e9, .far_bytes = 3e9,
                                                       .shared = true });
    CHECK(near(t, 1 / (1e-3 + 0.01 + 0.02)), "far keys and values, read by both: %.3f tok/s", t);
    t = roofline_tok_s(&machine, &(struct token_work){ .gpu_bytes = 4.4e9, .far_bytes = 5.5e9 });
    CHECK(near(t, 1 / (1e-3 + 0.1)), "far keys and values, over PCIe alone: %.3f tok/s", t);
    unknown.joint = 0;
    CHECK(roofline_tok_s(&unknown, &gpt_oss) == 0, "a rate is missing");
    CHECK(near(roofline_tok_s(&unknown, &cut), 1 / (1e-3 + 0.1)), "a rate is missing that nobody needs");
    return check_status();
}
