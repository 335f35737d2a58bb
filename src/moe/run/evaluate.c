/* The sequence of a session: appending tokens, going back, taking up what is already there. See session.h for the
 * invariants; the steps by which tokens are evaluated are in batch.c. */
#include "base/pf_mem.h"
#include "moe/model/lora.h"
#include "moe/run/batch.h"

/* Whether tok[0..n) may stand at positions from .. */
static pf_status check_tokens(const struct pf_session *s, int64_t from, const int32_t *tok, size_t n)
{
    if (n == 0)
        PF_FAIL(PF_EINVAL, "there are no tokens to evaluate");
    if (n > (size_t)(s->opts.n_ctx - from))
        PF_FAIL(PF_ECONTEXT, "%zu tokens after %lld do not fit a context of %lld", n, (long long)from,
                (long long)s->opts.n_ctx);
    for (size_t i = 0; i < n; i++)
        if (tok[i] < 0 || tok[i] >= s->m->n_vocab)
            PF_FAIL(PF_EINVAL, "token %zu is %d; the vocabulary has ids 0 to %d", i, tok[i], s->m->n_vocab - 1);
    return PF_OK;
}

static pf_status check_files(const struct pf_model *m)
{
    PF_TRY(pf_lora_unchanged(m));
    return pf_gguf_unchanged(m->file);
}

void pf_drop_logits(struct pf_session *s)
{
    pf_free(s->all_logits);
    s->all_logits = NULL;
    s->n_all = 0;
    s->n_ahead = 0;
    s->has_logits = false;
}

void pf_go_back(struct pf_session *s, int64_t pos)
{
    s->pos = pos;
    for (int i = 0; i < s->n_sources; i++)
        s->sources[i].drafter->ops->cut(s->sources[i].drafter, pos);
    if (!pf_session_is_here(s))
        s->computed = s->state_holds = 0;    /* keys, values, state and checkpoints are lost */
    pf_state_rewind(s, pos);
}

/* ---- Several sessions at once ------------------------------------------------------------------------------------ */

static pf_status check_part(const struct pf_batch_part *parts, size_t i)
{
    const struct pf_session *s = parts[i].session;
    if (!s)
        PF_FAIL(PF_EINVAL, "it has no session");
    if (s->m != parts[0].session->m)
        PF_FAIL(PF_EINVAL, "its session is of another model than that of part 0");
    for (size_t j = 0; j < i; j++)
        if (parts[j].session == s)
            PF_FAIL(PF_EINVAL, "its session is that of part %zu, too", j);
    return check_tokens(s, s->pos, parts[i].tok, parts[i].n);
}

static pf_status check_parts(const struct pf_batch_part *parts, size_t n_parts)
{
    if (n_parts < 1 || n_parts > PF_MAX_BATCH_PARTS)
        PF_FAIL(PF_EINVAL, "a batch of %zu parts; 1 to %d are possible", n_parts, PF_MAX_BATCH_PARTS);
    for (size_t i = 0; i < n_parts; i++) {
        pf_status st = check_part(parts, i);
        if (st < 0 && n_parts > 1)
            PF_FAIL(st, "part %zu: %s", i, pf_last_error());
        PF_TRY(st);
    }
    return check_files(parts[0].session->m);
}

/* The part as a piece, with room for the logits of all positions where they are wanted. */
struct pf_piece pf_piece_of(const struct pf_batch_part *part)
{
    struct pf_session *s = part->session;
    struct pf_piece p = { .s = s, .tok = part->tok, .n = part->n };
    pf_drop_logits(s);
    if (!(part->flags & PF_LOGITS_ALL))
        return p;
    p.logits = s->all_logits = pf_alloc_array(PF_MEM_SESSION, p.n * (size_t)s->m->n_vocab, sizeof *p.logits);
    if (!p.logits)
        pf_piece_fail(&p, pf_fail(PF_ENOMEM, "no memory for the logits of all positions"));
    return p;
}

/* Parts that are checked. */
static void eval_parts(struct pf_batch_part *parts, size_t n_parts)
{
    int64_t before[PF_MAX_BATCH_PARTS];
    struct pf_piece pieces[PF_MAX_BATCH_PARTS];
    for (size_t i = 0; i < n_parts; i++) {
        before[i] = parts[i].session->pos;
        pieces[i] = pf_piece_of(&parts[i]);
    }
    pf_append(pieces, (int)n_parts);
    for (size_t i = 0; i < n_parts; i++) {
        struct pf_session *s = parts[i].session;
        parts[i].status = pieces[i].status;
        if (pieces[i].status < 0) {
            pf_drop_logits(s);
            pf_go_back(s, before[i]);
        } else {
            s->n_all = s->all_logits ? parts[i].n : 0;
            s->has_logits = true;
        }
    }
}

/* Why each part failed, and the first failure. */
static pf_status tell_failures(struct pf_batch_part *parts, size_t n_parts)
{
    size_t first = n_parts;
    for (size_t i = n_parts; i-- > 0;) {
        parts[i].why = parts[i].status < 0 ? parts[i].session->why : NULL;
        first = parts[i].status < 0 ? i : first;
    }
    if (first == n_parts)
        return PF_OK;
    if (n_parts == 1)
        PF_FAIL(parts->status, "%s", parts->why);
    PF_FAIL(parts[first].status, "part %zu: %s", first, parts[first].why);
}

pf_status pf_batch_eval(struct pf_batch_part *parts, size_t n_parts)
{
    pf_status st = check_parts(parts, n_parts);
    for (size_t i = 0; st < 0 && i < n_parts; i++) {
        parts[i].status = st;
        parts[i].why = NULL;
    }
    PF_TRY(st);
    if (pf_ahead_suits(parts, n_parts))
        pf_ahead_eval(parts, n_parts);
    else
        eval_parts(parts, n_parts);
    return tell_failures(parts, n_parts);
}

/* ---- One session ------------------------------------------------------------------------------------------------- */

pf_status pf_session_eval(pf_session *s, const int32_t *tok, size_t n, unsigned flags)
{
    return pf_batch_eval(&(struct pf_batch_part){ .session = s, .tok = tok, .n = n, .flags = flags }, 1);
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
    if (common < n)
        PF_TRY(check_tokens(s, (int64_t)common, tok + common, n - common));
    PF_TRY(check_files(s->m));
    pf_go_back(s, (int64_t)common);
    if (reused)
        *reused = (size_t)s->computed;
    if (common == n)
        return PF_OK;
    pf_drop_logits(s);
    struct pf_piece rest = { .s = s, .tok = tok + common, .n = n - common };
    pf_append(&rest, 1);
    if (rest.status < 0)
        PF_FAIL(rest.status, "%s", s->why);
    s->has_logits = true;
    return PF_OK;
}

pf_status pf_session_rewind(pf_session *s, int64_t pos)
{
    if (pos < 0 || pos > s->pos)
        PF_FAIL(PF_EINVAL, "cannot rewind to position %lld of a sequence of %lld", (long long)pos, (long long)s->pos);
    if (pos < s->pos)
        pf_drop_logits(s);
    pf_go_back(s, pos);
    return PF_OK;
}

int64_t pf_session_pos(const pf_session *s)
{
    return s->pos;
}

int64_t pf_session_computed(const pf_session *s)
{
    return pf_session_is_here(s) ? s->computed : 0;
}

int64_t pf_session_computed_at(const pf_session *s, int64_t pos)
{
    return pf_session_is_here(s) ? pf_state_reach(s, pos) : 0;
}

int64_t pf_session_n_ctx(const pf_session *s)
{
    return s->opts.n_ctx;
}

int pf_session_n_batch(const pf_session *s)
{
    return s->opts.n_batch;
}

const int32_t *pf_session_tokens(const pf_session *s)
{
    return s->tokens;
}

const float *pf_session_logits(const pf_session *s)
{
    if (!s->has_logits)
        return NULL;
    size_t row = s->all_logits ? s->n_all - 1 : s->n_ahead ? (size_t)(s->pos - 1 - s->ahead_from) : 0;
    return (s->all_logits ? s->all_logits : s->logits) + row * (size_t)s->m->n_vocab;
}

const float *pf_session_logits_at(const pf_session *s, size_t i)
{
    return i < s->n_all ? s->all_logits + i * (size_t)s->m->n_vocab : NULL;
}

void pf_session_cancel(pf_session *s)
{
    atomic_store(&s->cancel, true);
}
