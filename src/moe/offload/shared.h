/* Private to this directory, but what offload.h has for others: a device that shares experts with the CPU. */
#ifndef PF_SHARED_H
#define PF_SHARED_H

#include "backend/among.h"
#include "base/pf_count.h"
#include "base/pf_time.h"
#include "moe/offload/far_deal.h"
#include "moe/offload/offload.h"
#include "moe/offload/postfetch.h"
#include "moe/offload/prompt_deal.h"
#include "moe/offload/vcache.h"
#include "moe/place/residency.h"
#include "moe/place/transit.h"

/* The deal of a layer's experts, and the time it took. */
struct pf_lesson {
    int      n, n_late;                  /* n 0: nothing */
    struct pf_deal deal;
    uint64_t expert_bytes, begin_ns, end_ns;
};

/* Experts of a coming layer that a slot holds already; pinned in the store. */
struct pf_ahead {
    int  n, il;                          /* n 0: nothing */
    int  experts[PF_RESIDENCY_BATCH];
    const uint8_t *at[PF_RESIDENCY_BATCH][3];        /* on the device */
    uint64_t begun_ns;
};

/* A card's own way to experts that lie in RAM: its cache, its copies, slots of prompts. The first one is that of the
 * card that runs the steps; of several cards that have experts of all layers, each has one. */
struct pf_lane {
    pf_backend             *device;      /* NULL: the card was lost */
    struct pf_postfetch     post;
    struct pf_vcache       *cache;       /* NULL: not opened, or the device was left */
    struct pf_vcache_counts cached;
    const char             *seen;        /* where the device sees the arena; NULL: nowhere */
    char                   *slots[PF_TRANSIT_SLOTS];
    uint64_t                slot_bytes;
    uint64_t                sent[PF_TRANSIT_SLOTS];  /* bytes of the last copies, until the bus's price is learned */
    int                     n_slots, turn;
    struct pf_ahead         ahead[PF_TRANSIT_SLOTS];
};

/* What the CPU computes of a prompt's layer. */
struct pf_prompt_cpu {
    struct pf_prompt_prices prices;
    int       n, *experts;               /* those that it computes {n_expert} */
    bool     *others;                    /* [n_expert] all but these */
    uint64_t *missed;                    /* [n_expert] the missed ones, below the numbers of their picks << 32 */
    bool      may;                       /* it may compute some of this layer's, if that pays */
    int      *n_missed;                  /* [n_layer] when the layer was last looked at, with those that were copied
                                            ahead; -1: never */
    int       n_bus;                     /* how many crossed the bus meanwhile; -1: the CPU was not asked */
    uint64_t  ns;                        /* that these took */
    int       max_rows;                  /* of a step of which it may compute something */
    float    *pick_y;                    /* [max_rows * n_used][n_out] memory shared with the device */
};

struct pf_offload {
    struct pf_placement  base;
    int                  first, end;     /* the layers that the device computes */
    struct pf_residency *ram;            /* the placement under this one */
    struct pf_solver     solver;
    struct pf_postfetch_opts opts;
    struct pf_lane       lanes[PF_MAX_GPUS];         /* by card */
    int                  n_lanes, lane_turn;
    const struct pf_among_ops *among;    /* how several cards work together; NULL: there is one */
    int                 *home;           /* {n_expert} which card's cache an expert may be in; NULL: there is one */
    int                  shared_rows;    /* of a step, for which the other cards have memory */
    bool                 force_cpu, is_left;
    const uint8_t       *arena;          /* the store's slots; NULL: not pinned yet */
    bool                 unpins;         /* this card does, of several that have layers of their own */
    uint64_t             last_begin_ns, step_ns;     /* when the last decoding step began; how long one takes */
    uint64_t             gpu_since_ns;   /* up to when the timeline tells what the GPU did */

    /* decode.c: the layer that is being served */
    const struct pf_offer  *offer;
    const struct pf_answer *answer;
    bool                    is_dealt;    /* the device was told what it may begin with */
    int                     served_il, n_served;
    int32_t                *served;      /* [PF_SHARE_ROWS * n_used] its picks, noted when the GPU has its answer */
    bool                   *is_held;     /* [n_expert] by any card, of the layer */
    struct pf_lesson        lesson, earlier;         /* of this layer, and of the layer before, which ended when this
                                            one's picks came */
    int                     n_batches;   /* batches of the layer's experts so far */

    struct pf_far_shares far;            /* of far keys and values: what the CPU attends to, */
    struct pf_far_deal   far_deal[PF_BY_HOST_PARTS];         /* of each sequence in this step, */
    struct pf_far_range  far_range[PF_BY_HOST_PARTS];        /* and which */
    pf_counter           far_bytes;      /* that the CPU has attended to */

    /* prompts.c */
    const uint8_t **on_device[3];        /* [n_expert] */
    int            *held;                /* [n_expert] */
    bool           *skip;                /* [n_expert] */
    int             max_rows;
    size_t          host_bytes;
    uint64_t        left_ns;             /* since when copies for layer left_il are under way whose end nobody has */
    int             left_il;             /* seen; 0: there are none */
    float          *x, *y, *weights;     /* [max_rows][..] of the host, for transfers */
    int32_t        *picks;
    struct pf_prompt_cpu cpu;

    bool            measures;            /* deals are tried out; the cache takes no notice of picks */
    uint64_t        n_looks;
    pf_counter      stream_bytes;        /* bytes that went through the slots */
    pf_counter      n_in_place, in_place_bytes;
};

static inline struct pf_offload *pf_offload_of(struct pf_placement *p)
{
    return (struct pf_offload *)p;
}

/* The next lane whose card is there, from number k on; the number of all: there is none. */
static inline int pf_lane_there(const struct pf_offload *f, int k)
{
    while (k < f->n_lanes && !f->lanes[k].device)
        k++;
    return k;
}

#define PF_FOR_LANES(f, k) \
    for (int k = pf_lane_there((f), 0); k < (f)->n_lanes; k = pf_lane_there((f), k + 1))

/* Lanes in turn. */
static inline int pf_next_lane(struct pf_offload *f)
{
    int k = pf_lane_there(f, f->lane_turn);
    k = k < f->n_lanes ? k : pf_lane_there(f, 0);
    f->lane_turn = k + 1;
    return k;
}

/* Which card holds an expert of a layer, -1: none. Sets f->is_held for all experts of the layer. */
int  pf_offload_holder(const struct pf_offload *f, int il, int expert);
void pf_offload_find_held(struct pf_offload *f, int il);

/* Shares the experts of card k's layers. Its placement has one under it, which is not closed with it. */
pf_status pf_offload_open_card(struct pf_placement **out, struct pf_placement *under, const struct pf_cards *cards,
                               const struct pf_cut *cut, int k, const struct pf_model_opts *o);

/* spread.c. Several cards over one placement of the CPU; parts are pf_offload_open_card's. */
pf_status pf_spread_open(struct pf_placement **out, struct pf_placement *under, const struct pf_cards *cards,
                         const struct pf_cut *cut, const struct pf_model_opts *o);

/* Adds a span to the timeline: the device did `what` since it was last heard of. */
void pf_offload_note(struct pf_offload *f, const char *what, int il);

/* decode.c. The functions that the device calls (share.h). ended: the last layer's deal is over, with no layer after
 * it. */
pf_status pf_decode_serve(void *ctx, const struct pf_offer *offer, const struct pf_answer *answer);
void      pf_decode_served(void *ctx);
pf_status pf_decode_attend(void *ctx, int il, int part, const struct pf_partials_op *p);
void      pf_decode_ended(struct pf_offload *f);

/* prompts.c. The experts of a layer for more rows than can be served; drops what was copied ahead, of a step that
 * failed; host memory for batches. copied: as in pf_place_ops. */
pf_status pf_prompts_experts(struct pf_offload *f, int il, const struct pf_experts_op *e);
pf_status pf_prompts_copied(struct pf_offload *f);
void      pf_prompts_drop_ahead(struct pf_offload *f);
pf_status pf_prompts_reserve(struct pf_offload *f, const struct pf_backend_sizes *sizes);

/* The ticket of copies to a slot. */
static inline int pf_slot_ticket(int slot)
{
    return PF_MAX_TRANSFERS + slot;
}

/* prompts_cpu.c. ask: whether the CPU is to compute some experts of a layer, for which it needs x and weights. choose:
 * where f->cpu.may, counts what is missed; if it was asked, names its part in f->cpu, and in f->skip beside those that
 * nobody has to bring. run: computes them, to f->cpu.pick_y. learn_bus: when copies to all slots are over. open, close:
 * tables. */
bool      pf_prompts_ask_cpu(struct pf_offload *f, int il, int rows);
void      pf_prompts_choose_cpu(struct pf_offload *f, int il, const struct pf_experts_op *shown, bool asks);
pf_status pf_prompts_run_cpu(struct pf_offload *f, int il, const struct pf_experts_op *shown);
void      pf_prompts_learn_bus(struct pf_offload *f);
pf_status pf_prompts_open_cpu(struct pf_offload *f);
void      pf_prompts_close_cpu(struct pf_offload *f);

#endif
