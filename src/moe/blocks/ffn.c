/* Feed-forward: dense, or experts that a router picks and one that all tokens share. */
#include "moe/blocks/blocks.h"
#include "moe/place/placement.h"
#include "moe/session/watch.h"

/* y = down * (act(gate h) * up h), or without gates down * act(up h, up h) */
static pf_status feed_forward(struct pf_step *t, const struct pf_dense_ffn *f, const float *h, int rows, float *y)
{
    const struct pf_backend_ops *ops = ops_of(t);
    struct pf_buffers *b = &t->unit->buf;
    const struct pf_linear gate_up[] = { { &f->gate, b->gate }, { &f->up, b->up } };
    bool gated = f->up.data != NULL;
    PF_TRY(pf_project(t, gate_up, gated ? 2 : 1, h, rows));
    PF_TRY(ops->act(t->unit->backend, f->act, b->gate, gated ? b->up : b->gate, (int64_t)rows * f->gate.n_out,
                    b->gate));
    return pf_project(t, &(struct pf_linear){ &f->down, y }, 1, b->gate, rows);
}

pf_status pf_dense_block(struct pf_step *t, int il, int rows)
{
    return feed_forward(t, &t->m->layers[il].dense, t->unit->buf.h, rows, t->unit->buf.y);
}

/* The router's logits, and what the shared expert is gated by. */
static pf_status ask_router(struct pf_step *t, const struct pf_moe *moe, int rows)
{
    struct pf_buffers *b = &t->unit->buf;
    const struct pf_linear l[] = { { &moe->router, b->router }, { &moe->shared_gate, b->shared_gate } };
    if (moe->router_norm)
        PF_TRY(pf_norm(t, b->x, moe->router_norm, NULL, t->m->eps, rows, b->y));
    return pf_project(t, l, moe->shared_gate.data ? 2 : 1, moe->router_norm ? b->y : b->h, rows);
}

/* y_shared = shared(h), or norm(shared(norm(x))) */
static pf_status run_shared(struct pf_step *t, const struct pf_moe *moe, int rows)
{
    struct pf_buffers *b = &t->unit->buf;
    if (!moe->shared_norm)
        return feed_forward(t, &moe->shared, b->h, rows, b->y_shared);
    PF_TRY(pf_norm(t, b->x, moe->shared_norm, NULL, t->m->eps, rows, b->y_shared));
    PF_TRY(feed_forward(t, &moe->shared, b->y_shared, rows, b->y_shared));
    return pf_norm(t, b->y_shared, moe->shared_post, NULL, t->m->eps, rows, b->y_shared);
}

/* y += y_shared, or half of it where the picks' weights are halved, or y += sigmoid(shared_gate) * y_shared */
static pf_status add_shared(struct pf_step *t, const struct pf_moe *moe, int rows)
{
    const struct pf_backend_ops *ops = ops_of(t);
    struct pf_buffers *b = &t->unit->buf;
    int n_embd = t->m->n_embd;
    if (!moe->shared_gate.data)
        return ops->add(t->unit->backend, b->y, t->m->arch->shared_mean ? 0.5f : 1, b->y_shared,
                        (int64_t)rows * n_embd);
    return ops->add_gated(t->unit->backend, b->y, b->shared_gate, b->y_shared, n_embd, rows);
}

/* Guesses the picks of layer il by its router on the residual stream as it is now. Most guesses are right, since the
 * operations in between change the stream little. Uses buffers that are written anew afterwards. */
pf_status pf_moe_guess(struct pf_step *t, int il, int rows, int depth)
{
    const struct pf_backend_ops *ops = ops_of(t);
    struct pf_model *m = t->m;
    struct pf_buffers *b = &t->unit->buf;
    enum pf_guess how = pf_place_guesses(m->place, il, rows);
    if (how == PF_GUESS_ALL)
        pf_place_guess(m->place, il, NULL, 1, depth);
    if (how != PF_GUESS_PICKS)
        return PF_OK;
    const struct pf_moe *moe = &m->layers[il].moe;
    const struct pf_layer *next = &m->layers[il];
    const float *norm = moe->router_norm ? moe->router_norm : next->ffn_norm;
    PF_TRY(pf_block_input(t, &next->ffn_mix, norm, next->ffn_norm_bias, b->x, rows, b->guess_mix, b->y));
    PF_TRY(pf_project(t, &(struct pf_linear){ &moe->router, b->router }, 1, b->y, rows));
    PF_TRY(ops->route(t->unit->backend, &(struct pf_route_op){
        .how = &moe->routing, .logits = b->router, .select_bias = moe->select_bias, .table = moe->table, .ids = b->ids,
        .rows = rows, .picks = b->guess, .weights = b->guess_weights }));
    pf_place_guess(m->place, il, b->guess, rows, depth);
    return PF_OK;
}

/* Whoever is slow learns early what was picked: the CPU beside a GPU, or the drive. */
static pf_status announce(struct pf_step *t, int il, const struct pf_experts_op *e)
{
    PF_TRY(pf_place_want(t->m->place, il, e));
    return pf_moe_guess(t, il + 1, e->rows, PF_GUESS_EARLY);
}

static pf_status run_experts(struct pf_step *t, int il, const struct pf_experts_op *e)
{
    pf_spans_enter(t->m->spans, "experts", il);
    if (pf_watch_inside(t->m))
        return pf_watch_experts(t, il, e);
    return pf_place_experts(t->m->place, t->unit->backend, il, e);
}

/* y = sum over the experts that the router picks of weight * expert(h), and the shared one, which is computed while
 * those that were picked are on their way. Latent experts work on latent_down h, and latent_up makes y of their sum. */
pf_status pf_moe_block(struct pf_step *t, int il, int rows)
{
    const struct pf_moe *moe = &t->m->layers[il].moe;
    struct pf_buffers *b = &t->unit->buf;
    bool has_shared = moe->shared.gate.data != NULL, latent = moe->latent_down.data != NULL;
    PF_TRY(ask_router(t, moe, rows));
    if (latent)
        PF_TRY(pf_project(t, &(struct pf_linear){ &moe->latent_down, b->latent }, 1, b->h, rows));
    const struct pf_picks routed = pf_routed_at(t, moe->ordinal), used = pf_picks_at(t, moe->ordinal);
    const struct pf_experts_op e = {
        .gate = &moe->gate, .up = &moe->up, .down = &moe->down, .act = moe->act,
        .weigh_input = t->m->arch->weigh_input, .n_expert = moe->routing.n_expert, .n_used = moe->routing.n_used,
        .rows = rows, .picks = used.picks, .weights = used.weights, .x = latent ? b->latent : b->h,
        .y = latent ? b->latent_y : b->y };
    if (!pf_watch_inside(t->m)) {
        PF_TRY(ops_of(t)->route(t->unit->backend, &(struct pf_route_op){
            .how = &moe->routing, .logits = b->router, .select_bias = moe->select_bias, .table = moe->table,
            .ids = b->ids, .rows = rows, .picks = routed.picks, .weights = routed.weights }));
        PF_TRY(announce(t, il, &e));
    }
    if (has_shared) {
        pf_spans_enter(t->m->spans, "shared expert", il);
        PF_TRY(run_shared(t, moe, rows));
    }
    PF_TRY(run_experts(t, il, &e));
    if (latent)
        PF_TRY(pf_project(t, &(struct pf_linear){ &moe->latent_up, b->y }, 1, b->latent_y, rows));
    if (moe->experts_post)
        PF_TRY(pf_norm(t, b->y, moe->experts_post, NULL, t->m->eps, rows, b->y));
    return has_shared ? add_shared(t, moe, rows) : PF_OK;
}
