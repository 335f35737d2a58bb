/* Prices at the start: how the missed experts of a layer are best dealt out between a GPU and the CPU, measured under
 * the contention that there will be, since it is measured on tokens.
 *
 *     some made-up tokens, one by one: in each layer the solver tries a deal that it has not seen often enough
 *     until a token has brought nothing new, or for so long at most
 *
 * The tokens have a session of their own, which nobody watches; the expert cache takes no notice of what they pick. */

#include "base/pf_time.h"
#include "moe/place/placement.h"
#include "moe/session/session.h"
#include "moe/session/watch.h"

/* In the first ones graphs are captured, which is slow. */
enum { MOST_TOKENS = 256, FIRST_TOKENS = 3, FEWEST_TOKENS = FIRST_TOKENS + 4 };
static const uint64_t LONGEST_NS = 20000000000u;

static pf_status measure(struct pf_session *s)
{
    static const struct pf_learned nothing;
    uint64_t begin = pf_now_ns(), n_looks = 1;
    for (int i = 0; i < MOST_TOKENS && (i < FEWEST_TOKENS || n_looks > 0) && pf_now_ns() - begin < LONGEST_NS; i++) {
        PF_TRY(pf_cancel_check(&s->m->cancel));
        int32_t token = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)s->m->n_vocab);
        pf_place_measure(s->m->place, true);
        if (i == FIRST_TOKENS)
            pf_place_recall(s->m->place, &nothing);
        PF_TRY(pf_session_eval(s, &token, 1, 0));
        n_looks = pf_place_measure(s->m->place, true);
    }
    return PF_OK;
}

pf_status pf_model_measure(pf_model *m)
{
    struct pf_session_opts o;
    struct pf_session *s;
    if (!pf_place_can_measure(m->place) || pf_watch_inside(m) || !pf_place_holds(m->place, -1))
        return PF_OK;
    pf_session_opts_init(&o);
    o.n_ctx = MOST_TOKENS;
    o.n_batch = 1;
    if (pf_session_open(&s, m, &o) < 0)
        return PF_OK;                        /* a GPU that is so full learns while it runs */
    s->unwatched = true;
    pf_status st = measure(s);
    pf_place_measure(m->place, false);
    pf_session_close(&s);
    pf_lock_take(&m->step_lock);
    pf_place_use_room(m->place);         /* the cache gave some of its memory to the session */
    st = st < 0 ? st : pf_place_fill(m->place);
    pf_lock_give(&m->step_lock);
    pf_stats_reset(m);
    return st;
}
