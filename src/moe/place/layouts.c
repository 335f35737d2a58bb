/* See layouts.h. */
#include "moe/place/layouts.h"

#include "backend/team.h"
#include "moe/place/rows.h"

/* What a layer takes beside its bytes: on one H100 a token of qwen3-30b-a3b and of gpt-oss-20b takes 29 and 31 us a
 * layer more than its bytes do at the rate that its memory's clock and width say. */
static const double LAYER_SECONDS = 28e-6;

/* One token. */
struct load {
    const struct pf_cut *cut;
    double bytes_s[PF_MAX_GPUS];
    double all, experts, divided;        /* bytes that the cards read; of them of routed experts; of rows */
    double exchanges, exchanged;         /* their number and bytes */
};

static double larger(double a, double b)
{
    return a > b ? a : b;
}

/* Bytes of routed experts that a token reads, wherever they are. */
static double token_experts(const struct pf_model *m)
{
    uint64_t bytes[3], sum = 0;
    for (int il = 0; il < m->n_layer; il++)
        if (m->layers[il].is_moe) {
            pf_expert_bytes(m, il, bytes);
            sum += (bytes[0] + bytes[1] + bytes[2]) * (uint64_t)m->n_used;
        }
    return (double)sum;
}

/* Card k's part of the routed experts; where they are in RAM, too, all hold as many. */
static double part_of_experts(const struct pf_model *m, const struct pf_cut *c, int k)
{
    int end = k < c->n_more ? c->first_expert[k + 1] : m->n_expert;
    return c->apart ? 1.0 / (1 + c->n_more) : (double)(end - c->first_expert[k]) / m->n_expert;
}

static double part_of_rows(const struct pf_cut *c, int k)
{
    int end = k < c->n_more ? c->first_share[k + 1] : PF_TEAM_SHARES;
    return (double)(end - c->first_share[k]) / PF_TEAM_SHARES;
}

static double part_of_layers(const struct pf_cut *c, int k)
{
    int first, end;
    pf_cut_card(c, k, &first, &end);
    return c->n_more > 0 && c->n_layers > 0 ? (double)(end - first) / c->n_layers : k == 0;
}

/* The cards' time for what every token reads, and for experts. */
static void cards_seconds(const struct pf_model *m, const struct load *l, double *fixed, double *experts)
{
    const struct pf_cut *c = l->cut;
    double rest = l->all - l->experts;
    *fixed = *experts = 0;
    for (int k = 0; k <= c->n_more; k++) {
        double r = l->bytes_s[k];
        if (c->by_rows) {
            *fixed = larger(*fixed, (l->all - l->divided + part_of_rows(c, k) * l->divided) / r);
        } else if (c->by_experts) {
            *fixed += k == 0 ? rest / r : 0;
            *experts = larger(*experts, part_of_experts(m, c, k) * l->experts / r);
        } else {
            *fixed += part_of_layers(c, k) * rest / r;
            *experts += part_of_layers(c, k) * l->experts / r;
        }
    }
}

static void count_exchanges(const struct pf_model *m, struct load *l)
{
    const struct pf_cut *c = l->cut;
    double x = sizeof(float) * (double)m->n_embd, others = (double)c->n_more / (1 + c->n_more);
    for (int il = 0; il < m->n_layer; il++) {
        const struct pf_layer *layer = &m->layers[il];
        if (c->by_experts && layer->is_moe) {
            l->exchanges += 2;
            l->exchanged += x + others * m->n_used * x;
        } else if (c->by_rows) {
            double n_ff = layer->is_moe ? (double)m->n_used * layer->moe.gate.n_out : layer->dense.up.n_out;
            l->exchanges += 4;
            l->exchanged += others * (2 * x + sizeof(float) * (layer->attn.out.n_in + n_ff));
        }
    }
    if (c->by_rows) {
        l->exchanges += 2;
        l->exchanged += others * (x + sizeof(float) * (double)m->n_vocab);
    } else if (!c->by_experts) {
        l->exchanges += c->n_more;
        l->exchanged += c->n_more * x * m->streams.n;
    }
}

pf_status pf_layout_seconds(const struct pf_model *m, const struct pf_cards *cards, const struct pf_placing *what,
                            const struct pf_plan *plan, const struct pf_speeds *speeds, const struct pf_link *link,
                            double *seconds)
{
    const struct pf_plan_tier *t = plan->tiers;
    struct load l = { .cut = &what->cut, .all = t[PF_TIER_VRAM].token_bytes };
    double ram = t[PF_TIER_RAM].token_bytes / t[PF_TIER_RAM].bytes_s,
           disk = t[PF_TIER_DISK].token_bytes / t[PF_TIER_DISK].bytes_s, fixed, experts;
    uint64_t divided = 0;
    if (what->how == PF_HOW_CPU) {
        *seconds = 1 / plan->tok_s;
        return PF_OK;
    }
    for (int k = 0; k <= what->cut.n_more; k++)
        l.bytes_s[k] = cards->bytes_s[k] > 0 ? cards->bytes_s[k] : speeds->vram_bytes_s;
    if (m->n_expert > 0)
        l.experts = larger(0, l.all - ((double)m->info.bytes_per_token - token_experts(m)));
    if (what->cut.by_rows)
        PF_TRY(pf_rows_token_bytes(m, &what->cut, &divided));
    l.divided = (double)divided;
    count_exchanges(m, &l);
    cards_seconds(m, &l, &fixed, &experts);
    double exchange = what->cut.by_rows && cards->swap_seconds > 0 ? cards->swap_seconds : link->seconds;
    double beside = what->how == PF_HOW_CUT ? 0 : larger(ram, disk), after = larger(ram, disk) - beside;
    double exchanging = l.exchanges * exchange + l.exchanged / link->bytes_s;
    *seconds = m->n_layer * LAYER_SECONDS + fixed + larger(experts, beside) + after + exchanging;
    return PF_OK;
}
