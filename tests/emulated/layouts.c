/* Which layout is chosen for two cards, by the price of an exchange and of their memory: only planned, or opened, where
 * the exchange is measured.
 *
 * usage: layouts DENSE.gguf EXPERTS.gguf */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "pfmoe.h"

static const struct pf_link FAST = { 1e-9, 1e12 }, MIDDLE = { 5e-4, 1e10 }, SLOW = { 1e-3, 1e8 };

static struct pf_model_opts two_cards(void)
{
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.n_gpus = 2;
    o.gpus[1] = 1;
    o.speeds = (struct pf_speeds){ 0, 20e9, 30e9, 2e9 };
    return o;
}

static double price_of(const struct pf_plan *p, enum pf_layout layout)
{
    for (int i = 0; i < p->n_layouts; i++)
        if (p->layouts[i].layout == layout)
            return p->layouts[i].tok_s;
    return 0;
}

static void check(const char *name, const char *path, const struct pf_model_opts *o, enum pf_layout wanted)
{
    struct pf_plan p;
    pf_status st = pf_model_plan(path, o, NULL, &p);
    CHECK(st == PF_OK, "%s: %s", name, pf_last_error());
    if (st < 0)
        return;
    for (int i = 0; i < p.n_layouts; i++)
        printf("%s: layout %d, %.1f tok/s\n", name, (int)p.layouts[i].layout, p.layouts[i].tok_s);
    CHECK(p.layout == wanted, "%s: layout %d is chosen instead of %d", name, (int)p.layout, (int)wanted);
    CHECK(p.n_gpus == (wanted == PF_LAYOUT_AUTO ? 1 : 2), "%s: %d GPUs are used", name, p.n_gpus);
    CHECK(p.link.seconds > 0 && p.link.bytes_s > 0, "%s: an exchange has no price", name);
    CHECK(p.tok_s == price_of(&p, wanted), "%s: %g tok/s, of the layout %g", name, p.tok_s, price_of(&p, wanted));
}

/* With room for everything on the first card; with `less` bytes on each, on both together. Memory is so slow that the
 * small model's bytes count, beside what its layers take anyway. */
static void check_links(const char *path, uint64_t less)
{
    struct pf_model_opts o = two_cards();
    o.speeds = (struct pf_speeds){ 1e9, 1e8, 5e7, 2e7 };
    o.link = FAST;
    check("a fast link", path, &o, PF_LAYOUT_ROWS);
    o.link = SLOW;
    check("a slow link", path, &o, PF_LAYOUT_AUTO);
    o.link = MIDDLE;
    check("a link that pays for no exchange in each layer", path, &o, PF_LAYOUT_AUTO);
    o.gpu_bytes[0] = o.gpu_bytes[1] = less;
    check("such a link, and less room", path, &o, PF_LAYOUT_LAYERS);
}

/* The second card has most of the bandwidth, or next to none. */
static void check_uneven(const char *path, const char *slow, enum pf_layout wanted)
{
    struct pf_model_opts o = two_cards();
    o.link = (struct pf_link){ 1e-7, 1e11 };
    setenv("PFMOE_EMULATED_SLOW", slow, 1);
    check(slow[0] == '0' ? "the first card is slow" : "the second card is slow", path, &o, wanted);
    unsetenv("PFMOE_EMULATED_SLOW");
}

static void find_one(void *ctx, enum pf_log_level level, const char *text)
{
    *(bool *)ctx |= level == PF_LOG_WARN && strstr(text, "one is used, since more would not be faster: ms a token");
}

/* The emulated link takes longer than any such model. */
static void check_opened(const char *path)
{
    struct pf_model_opts o = two_cards();
    struct pf_plan p;
    pf_model *m = NULL;
    bool said = false;
    o.log = find_one;
    o.log_ctx = &said;
    CHECK(pf_model_open(&m, path, &o) == PF_OK, "%s", pf_last_error());
    if (!m)
        return;
    CHECK(pf_model_plan(path, &o, NULL, &p) == PF_OK && p.link_price == PF_PRICE_MEASURED, "the link is not measured");
    printf("the emulated link: %.1f us, %.3f GB/s\n", p.link.seconds * 1e6, p.link.bytes_s * 1e-9);
    CHECK(said && pf_model_info(m)->n_gpus == 1, "%d GPUs are used, or nothing is said", pf_model_info(m)->n_gpus);
    pf_model_close(&m);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const char *dense = argv[1], *experts = argv[2];
    check_links(dense, 10000000);
    check_links(experts, 17000000);
    check_uneven(dense, "0", PF_LAYOUT_LAYERS);
    check_uneven(dense, "1", PF_LAYOUT_AUTO);
    check_opened(experts);
    return check_status();
}
