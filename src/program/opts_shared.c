/* Settings of the programs that become options of the library. See opts.h. */
#include "program/opts.h"

#include <string.h>

int opts_thinking(const struct settings *s)
{
    return s->think == THINK_AUTO ? -1 : s->think == THINK_ON;
}

static enum pf_draft draft_of(const struct settings *s)
{
    static const struct { const char *name; enum pf_draft draft; } kinds[] = {
        { "off", PF_DRAFT_OFF }, { "auto", PF_DRAFT_AUTO }, { "lookup", PF_DRAFT_LOOKUP }, { "mtp", PF_DRAFT_MTP } };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(s->draft, kinds[i].name) == 0)
            return kinds[i].draft;
    return PF_DRAFT_MODEL;
}

void opts_shared_session(const struct settings *s, struct pf_session_opts *o)
{
    o->draft = draft_of(s);
    o->draft_max = (int)s->draft_max;
}

static uint32_t isa_mask(int level)
{
    static const uint32_t bits[] = { PF_ISA_SCALAR, PF_ISA_AVX2, PF_ISA_AVXVNNI, PF_ISA_AVX512, PF_ISA_VNNI,
                                     PF_ISA_VBMI, PF_ISA_AMX };
    if (level == ISA_AMX)
        return PF_ISA_ALL;
    uint32_t mask = 0;
    for (int i = 0; i <= level; i++)
        mask |= bits[i];
    return mask;
}

void opts_shared_model(const struct settings *s, struct pf_model_opts *o)
{
    static const int block[] = { [CHOSE_AUTO] = PF_AUTO, [CHOSE_0] = 0, [CHOSE_1] = 1 };
    o->isa = isa_mask(s->isa);
    o->nextn = draft_of(s) == PF_DRAFT_AUTO || draft_of(s) == PF_DRAFT_MTP;
    o->draft_path = draft_of(s) == PF_DRAFT_MODEL ? s->draft : NULL;
    o->postfetch = (struct pf_postfetch_opts){
        .enable = s->postfetch, .force_cpu = s->force_cpu, .block_on_miss = block[s->block_on_miss],
        .max_transfers = (int)s->max_transfers, .scratchpad_mb = (uint32_t)s->scratchpad_mb,
        .dedicated_streams = s->dedicated_streams, .cpu_limit = s->cpu_limit == UNSET ? PF_AUTO : (int)s->cpu_limit,
        .debug = s->postfetch_debug,
    };
    o->adapters = s->loras.v;
    o->n_adapters = s->loras.n;
    report_model_opts(&s->report, o);
}

void opts_check_gpus(const struct whole_list *gpus)
{
    bool fine = gpus->n <= PF_MAX_GPUS;
    for (int i = 0; fine && gpus->n > 1 && i < gpus->n; i++)
        fine = gpus->v[i] >= 0;
    if (!fine)
        die(EXIT_USAGE, "--gpus: up to %d numbers are wanted, or -1 alone", (int)PF_MAX_GPUS);
}
