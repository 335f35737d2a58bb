/* The sequence of a session: evaluation in batches, going back, taking up what is already there. See session.h for the
 * invariants. */
#include <string.h>

#include "base/pf_fp.h"
#include "base/pf_mem.h"
#include "base/pf_time.h"
#include "moe/model/lora.h"
#include "moe/place/placement.h"
#include "moe/run/session.h"

/* Takes over what the backends have counted. */
static void take_counts(struct pf_model *m)
{
    const struct pf_placement *left = m->left;
    const pf_backend *all[] = { m->cpu, m->backend != m->cpu ? m->backend : NULL, left ? left->device : NULL };
    uint64_t bytes = 0, launches = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        bytes += all[i] ? all[i]->weight_bytes_read : 0;
        launches += all[i] ? all[i]->n_launches : 0;
    }
    atomic_store(&m->counted.weight_bytes, bytes);
    atomic_store(&m->counted.launches, launches);
}

static pf_status step(struct pf_session *s, const struct pf_batch *batch)
{
    struct pf_model *m = s->m;
    uint64_t begin = pf_now_ns();
    unsigned fp = pf_fp_begin();
    pf_status st = pf_forward(s, batch);
    pf_fp_end(fp);
    pf_place_ended(m->place, begin, st == PF_OK);
    atomic_fetch_add(&m->step_ns, pf_now_ns() - begin);
    atomic_fetch_add(&m->n_steps, 1);
    atomic_fetch_add(&m->n_tokens, (uint64_t)batch->rows);
    take_counts(m);
    return st;
}

/* Whether tok[0..n) may stand at positions from .. */
static pf_status check_tokens(const struct pf_session *s, int64_t from, const int32_t *tok, size_t n)
{
    if (n > (size_t)(s->opts.n_ctx - from))
        PF_FAIL(PF_ECONTEXT, "%zu tokens after %lld do not fit a context of %lld", n, (long long)from,
                (long long)s->opts.n_ctx);
    for (size_t i = 0; i < n; i++)
        if (tok[i] < 0 || tok[i] >= s->m->n_vocab)
            PF_FAIL(PF_EINVAL, "token %zu is %d; the vocabulary has ids 0 to %d", i, tok[i], s->m->n_vocab - 1);
    PF_TRY(pf_lora_unchanged(s->m));
    return pf_gguf_unchanged(s->m->file);
}

/* Evaluates the next batch of the tokens up to end and commits it, if the file stayed what it is; see run_to. */
static pf_status run_batch(struct pf_session *s, int64_t end, int64_t first, bool last)
{
    int64_t from = s->computed, left = end - from;
    int rows = left < s->opts.n_batch ? (int)left : s->opts.n_batch;
    struct pf_batch batch = { .tokens = s->tokens + from, .rows = rows, .n_logits = last && left == rows,
                              .logits = s->logits };
    if (s->all_logits && from + rows > first) {
        int64_t begin = from > first ? from : first;
        batch.n_logits = (int)(from + rows - begin);
        batch.logits = s->all_logits + (size_t)(begin - first) * (size_t)s->m->n_vocab;
    }
    pf_ring_advance(s, rows);
    pf_status st = step(s, &batch);
    PF_TRY(pf_gguf_unchanged(s->m->file));       /* whatever st is: the weights may have been others than before */
    PF_TRY(st);
    pf_state_commit(s, rows);
    s->pos = s->computed > s->pos ? s->computed : s->pos;
    return PF_OK;
}

/* Evaluates s->tokens from computed up to end, batch by batch; each batch that succeeds is committed. Positions from
 * `first` on get logits if all are wanted, otherwise the last one does, if any: first == end. If the device is lost,
 * the CPU computes anew what went with it, and goes on. */
static pf_status run_to(struct pf_session *s, int64_t end, int64_t first, bool last)
{
    pf_status st = PF_OK;
    while (st == PF_OK && s->computed < end) {
        pthread_mutex_lock(&s->m->step_lock);
        st = pf_session_follow(s);
        if (st == PF_OK)
            st = run_batch(s, end, first, last);
        if (st == PF_EDEVICE && pf_model_leave_device(s->m))
            st = PF_OK;
        pthread_mutex_unlock(&s->m->step_lock);
    }
    return st;
}

/* Appends tok[0..n), after what the session has to catch up with. Where there are checkpoints, it keeps some where a
 * conversation may be taken up again: where the tokens begin, unless the last one is little before that; where they
 * end; and a little before that, since what a template puts in front of an answer is not always what it leaves there
 * afterwards. A recurrent state must be kept as it passes there; of windows, the rings still have it at the end. */
static pf_status append(struct pf_session *s, const int32_t *tok, size_t n)
{
    enum { TAIL = 32 };
    int64_t first = s->pos, end = first + (int64_t)n;
    pthread_mutex_lock(&s->m->step_lock);
    pf_status st = pf_session_follow(s);
    pthread_mutex_unlock(&s->m->step_lock);
    PF_TRY(st);
    memmove(s->tokens + first, tok, n * sizeof *tok);
    if (n == 1 && s->computed == first)
        return run_to(s, end, first, true);
    PF_TRY(first - s->computed > TAIL ? run_to(s, first, first, false) : PF_OK);
    pf_state_keep(s, s->computed);
    if (n > 2 * TAIL && pf_state_can_cut(s->m)) {
        pf_state_plan(s, end - TAIL);
    } else if (n > 2 * TAIL && s->m->recurrent) {
        PF_TRY(run_to(s, end - TAIL, first, false));
        pf_state_keep(s, end - TAIL);
    }
    st = run_to(s, end, first, true);
    pf_state_plan(s, 0);
    PF_TRY(st);
    if (n > 2 * TAIL)
        pf_state_keep(s, end - TAIL);
    pf_state_keep(s, end);
    return PF_OK;
}

static void drop_logits(struct pf_session *s)
{
    pf_free(s->all_logits);
    s->all_logits = NULL;
    s->n_all = 0;
    s->has_logits = false;
}

static void go_back(struct pf_session *s, int64_t pos)
{
    s->pos = pos;
    if (s->units[0].backend != s->m->backend)
        s->computed = 0;                     /* keys, values, state and checkpoints are lost */
    pf_state_rewind(s, pos);
}

pf_status pf_session_eval(pf_session *s, const int32_t *tok, size_t n, unsigned flags)
{
    if (n == 0)
        PF_FAIL(PF_EINVAL, "there are no tokens to evaluate");
    PF_TRY(check_tokens(s, s->pos, tok, n));
    float *all = NULL;
    if (flags & PF_LOGITS_ALL) {
        all = pf_alloc_array(PF_MEM_SESSION, n * (size_t)s->m->n_vocab, sizeof *all);
        if (!all)
            PF_FAIL(PF_ENOMEM, "no memory for the logits of %zu positions", n);
    }
    int64_t before = s->pos;
    drop_logits(s);
    s->all_logits = all;
    pf_status st = append(s, tok, n);
    if (st < 0) {
        drop_logits(s);
        go_back(s, before);
        return st;
    }
    s->n_all = all ? n : 0;
    s->has_logits = true;
    return PF_OK;
}

pf_status pf_session_sync(pf_session *s, const int32_t *tok, size_t n, size_t *reused)
{
    if (n == 0)
        PF_FAIL(PF_EINVAL, "there are no tokens to evaluate");
    size_t common = 0;
    while (common < n && common < (size_t)s->pos && s->tokens[common] == tok[common])
        common++;
    if (common == n && !(s->has_logits && s->pos == (int64_t)n))
        common--;                            /* the last token is evaluated again: its logits are needed */
    if (n > (size_t)s->opts.n_ctx)
        PF_FAIL(PF_ECONTEXT, "%zu tokens do not fit a context of %lld", n, (long long)s->opts.n_ctx);
    PF_TRY(check_tokens(s, (int64_t)common, tok + common, n - common));
    go_back(s, (int64_t)common);
    if (reused)
        *reused = (size_t)s->computed;
    if (common == n)
        return PF_OK;
    drop_logits(s);
    PF_TRY(append(s, tok + common, n - common));
    s->has_logits = true;
    return PF_OK;
}

pf_status pf_session_rewind(pf_session *s, int64_t pos)
{
    if (pos < 0 || pos > s->pos)
        PF_FAIL(PF_EINVAL, "cannot rewind to position %lld of a sequence of %lld", (long long)pos, (long long)s->pos);
    if (pos < s->pos)
        drop_logits(s);
    go_back(s, pos);
    return PF_OK;
}

int64_t pf_session_pos(const pf_session *s)
{
    return s->pos;
}

int64_t pf_session_n_ctx(const pf_session *s)
{
    return s->opts.n_ctx;
}

const int32_t *pf_session_tokens(const pf_session *s)
{
    return s->tokens;
}

const float *pf_session_logits(const pf_session *s)
{
    if (!s->has_logits)
        return NULL;
    return s->all_logits ? s->all_logits + (s->n_all - 1) * (size_t)s->m->n_vocab : s->logits;
}

const float *pf_session_logits_at(const pf_session *s, size_t i)
{
    return i < s->n_all ? s->all_logits + i * (size_t)s->m->n_vocab : NULL;
}

void pf_session_cancel(pf_session *s)
{
    atomic_store(&s->cancel, true);
}
