/* --plan: where weights would be, and how fast that would be. */
#include <inttypes.h>

#include "program/cards.h"
#include "program/load.h"
#include "cli/modes.h"
#include "program/io/term.h"

static const char *const price_names[] = { [PF_PRICE_ASSUMED] = "assumed", [PF_PRICE_MEASURED] = "measured",
                                           [PF_PRICE_GIVEN] = "given" };

/* Where a tier's speed comes from. To the library a card's are given, which nobody did; main memory may be as fast as
 * copies to the GPU are. */
static const char *origin(const struct settings *s, enum pf_tier tier, const struct pf_plan_tier *t)
{
    bool by_memory = s->ram_gb_s > 0 && t->bytes_s <= s->ram_gb_s * 1e9;
    if (t->price != PF_PRICE_GIVEN || tier == PF_TIER_DISK)
        return price_names[t->price];
    if (tier == PF_TIER_VRAM)
        return s->vram_gb_s > 0 ? "given" : "card";
    return by_memory || s->pcie_gb_s > 0 ? "given" : "card";
}

static void print_tier(struct buf *out, const char *name, const struct pf_plan_tier *t, const char *from)
{
    buf_printf(out, "%-7s %7" PRIu64 " %10.2f %12.1f %9.1f %-9s", name, t->n_slabs, (double)t->bytes * 1e-9,
               t->token_bytes * 1e-6, t->bytes_s * 1e-9, from);
    if (t->tok_s > 0)
        buf_printf(out, " %10.1f\n", t->tok_s);
    else
        buf_printf(out, " %10s\n", "-");
}

static void print_gpu(struct buf *out, const struct pf_plan_gpu *g)
{
    buf_printf(out, "GPU %d: %.2f GB, layers %d to %d", g->gpu, (double)g->budget_bytes * 1e-9, g->first_layer,
               g->first_layer + g->n_layers - 1);
    if (g->n_experts > 0)
        buf_printf(out, ", of each experts %d to %d", g->first_expert, g->first_expert + g->n_experts - 1);
    if (g->rows > 0)
        buf_printf(out, ", of each %.0f%% of the rows", 100 * g->rows);
    buf_printf(out, "\n");
}

static void print_layouts(struct buf *out, const struct pf_plan *p)
{
    static const char *const names[] = { [PF_LAYOUT_AUTO] = "the first GPU alone", [PF_LAYOUT_LAYERS] = "by layers",
                                         [PF_LAYOUT_EXPERTS] = "by experts", [PF_LAYOUT_ROWS] = "by rows" };
    buf_printf(out, "layouts, at most tok/s:");
    for (int i = 0; i < p->n_layouts; i++)
        buf_printf(out, "%s %s %.1f", i > 0 ? "," : "", names[p->layouts[i].layout], p->layouts[i].tok_s);
    buf_printf(out, "; %s is chosen\nan exchange between GPUs: %.1f us, %.1f GB/s %s\n", names[p->layout],
               p->link.seconds * 1e6, p->link.bytes_s * 1e-9, price_names[p->link_price]);
}

static void print_tiers(struct buf *out, const struct settings *s, const struct pf_plan *p)
{
    static const char *const names[] = { [PF_TIER_VRAM] = "GPU", [PF_TIER_RAM] = "memory", [PF_TIER_DISK] = "drive" };
    buf_printf(out, "tier      slabs         GB   MB a token      GB/s           tok/s alone\n");
    for (enum pf_tier t = p->vram_budget_bytes > 0 ? PF_TIER_VRAM : PF_TIER_RAM; t < PF_N_TIERS; t++)
        print_tier(out, names[t], &p->tiers[t], origin(s, t, &p->tiers[t]));
    if (p->tiers[PF_TIER_DISK].price == PF_PRICE_ASSUMED)
        buf_puts(out, "the drive is not measured: the file is short, mostly holes, or not read past the page cache; "
                 "--drive-gb-s says how fast it is\n");
}

static void print_plan(struct buf *out, const struct pf_plan *p)
{
    bool gpu = p->vram_budget_bytes > 0;
    if (gpu)
        buf_printf(
            out, "the GPU's memory: %.2f GB, of it %.2f for keys, values and scratch, %.2f for experts or layers\n",
            (double)p->vram_budget_bytes * 1e-9, (double)p->other_bytes * 1e-9, (double)p->vram_slot_bytes * 1e-9);
    for (int i = 0; p->n_gpus > 1 && i < p->n_gpus; i++)
        print_gpu(out, &p->gpus[i]);
    if (p->n_layouts > 1)
        print_layouts(out, p);
    buf_printf(out, "main memory: %.2f GB, of it ", (double)p->ram_budget_bytes * 1e-9);
    if (!gpu)
        buf_printf(out, "%.2f for keys, values and scratch, ", (double)p->other_bytes * 1e-9);
    buf_printf(out, "%.2f for weights that come and go\n", (double)p->slot_bytes * 1e-9);
    buf_printf(out, "a context of %" PRId64 " tokens", p->n_ctx);
    if (p->far_bytes > 0)
        buf_printf(out, ", %.2f GB of its keys and values in main memory", (double)p->far_bytes * 1e-9);
    buf_printf(out, "\n");
    if (p->visit_bytes > 0)
        buf_printf(out, "prompts: for each %d tokens %.2f GB of layers cross to the GPU; at most %.1f tok/s, limited "
                   "by PCIe\n", p->visit_rows, (double)p->visit_bytes * 1e-9, p->visit_tok_s);
    buf_printf(out, "%s; at most %.1f tok/s, limited by %s\n",
               p->resident ? "everything is in memory" : "part of the weights is read while running", p->tok_s,
               p->limit == PF_TIER_VRAM ? "the GPU's memory" : p->limit == PF_TIER_RAM ? "main memory" : "the drive");
}

/* The options for a machine with the card that is asked about; flags that say how it is win. */
static void take_card(const char *name, struct pf_model_opts *o, struct buf *out)
{
    const char *why;
    double vram, pcie;
    const struct card *c = card_named(name, &why);
    if (!c)
        die(EXIT_USAGE, "--card: %s", why);
    card_speeds(c, &vram, &pcie);
    buf_printf(out, "%s, %d GB at %d GB/s, PCIe %d with %d lanes, compute capability %d.%d\n", c->name, c->gb, c->gb_s,
               c->pcie, c->lanes, c->arch / 10, c->arch % 10);
    o->n_gpus = 0;
    o->device = -1;                      /* no GPU of this machine is asked */
    o->vram_bytes = o->vram_bytes ? o->vram_bytes : card_room(c);
    o->speeds.vram_bytes_s = o->speeds.vram_bytes_s > 0 ? o->speeds.vram_bytes_s : vram;
    o->speeds.pcie_bytes_s = o->speeds.pcie_bytes_s > 0 ? o->speeds.pcie_bytes_s : pcie;
}

/* Speeds of a GPU are for one that is planned for. */
static void check_gpu(const struct settings *s)
{
    struct pf_device devices[2];
    bool is_cpu = s->gpus.n == 1 && s->gpus.v[0] < 0;
    bool has_gpu = !is_cpu && (s->vram_mb.n > 0 || pf_devices(devices, 2) > 1);
    if (!s->card && !has_gpu && (s->vram_gb_s > 0 || s->pcie_gb_s > 0))
        die(EXIT_USAGE, "%s: no GPU is planned for; --vram-mb or --card describes one",
            s->vram_gb_s > 0 ? "--vram-gb-s" : "--pcie-gb-s");
}

int mode_plan(const struct settings *s)
{
    struct buf out = { 0 };
    struct pf_model_opts o;
    struct pf_session_opts so;
    struct pf_plan p;
    check_gpu(s);
    load_model_opts(s, &o);
    load_session_opts(s, s->n_ctx, &so);
    if (s->card)
        take_card(s->card, &o, &out);
    if (pf_model_plan(load_path(s), &o, &so, &p) < 0)
        die_failed(NULL);
    print_tiers(&out, s, &p);
    print_plan(&out, &p);
    out_puts(buf_text(&out));
    buf_free(&out);
    return EXIT_DONE;
}
