/* Several processes with one model (backend/ranks.h), divided by layers or by rows. Rank 0 has whoever gives tokens and
 * wants logits.
 *
 * By layers each has a run of the model's layers, as a model of its own, with the keys, values and state of these, and
 * rank 0 also the embedding and the output matrix. One rank computes after the other:
 *
 *     rank 0   told | embedding | layers ..  x -->                      --> x  output | logits
 *     rank 1   hears|                        x --> layers ..  x -->       |
 *     rank 2   hears|                                         x --> layers ..
 *
 * By rows each has its card's part of all layers (place/rows.h), and all make a step at the same time. What crosses
 * is work of the cards, and no rank may leave a step in the middle: one that has to takes its leave of the crew.
 *
 *     rank 0   told | embedding | layers: its rows .. | logits | how it has fared
 *     rank 1   hears|             layers: its rows .. | logits | how it has fared
 *
 * Rank 0 decides and the others do the same: for each of its sessions they have one of the same number. They are told
 * (broadcast, in order) of sessions that open and close, of steps with their tokens and positions, and of what becomes
 * of recurrent state and windows; what nobody waits for is told with the next thing that somebody does. Nothing that
 * depends on time, memory or chance is decided anywhere else, so what a session holds is the same on all ranks.
 *
 *     a step     by layers is told when rank 0 has computed its layers, and goes round even if it fails on the way: in
 *                front of x stands a status, with its sentence; by rows it is told before
 *     committed  by rank 0; the others learn it with the next thing that they are told
 *     owed       is the answer to a step of a prompt without logits: rank 0 begins with the next one meanwhile
 *
 * A rank that dies ends whatever is under way with PF_EIO, and the model can do no more. Everything here is for the
 * thread that holds the step lock, or that opens and closes the model. */
#ifndef PF_CREW_H
#define PF_CREW_H

#include "backend/ranks.h"
#include "moe/place/placement.h"
#include "moe/session/step.h"

enum { PF_CREW_SESSIONS = 1024 };            /* numbers of sessions, from 1 on */

enum pf_told_kind {
    PF_TOLD_OPEN,                            /* a session, with opts */
    PF_TOLD_CLOSE,
    PF_TOLD_STEP,                            /* parts and tokens follow */
    PF_TOLD_KEEP, PF_TOLD_TAKE_BACK,         /* a checkpoint is made, or taken back: number, pos, state */
    PF_TOLD_SWAP,                            /* the last step is undone: its state is that before it again */
    PF_TOLD_SETTLE,                          /* pf_settle of so many rows */
    PF_TOLD_END                              /* the model is closed */
};

struct pf_told_part {
    int32_t session, rows, planned;          /* planned: number of the planned checkpoint, or -1 */
    int32_t n_logits, hidden;                /* as in pf_part */
    int64_t computed, planned_pos;
};

struct pf_told {
    uint32_t bytes;                          /* of this with what follows */
    int32_t  kind, committed;                /* committed: the last step was */
    int32_t  session, number, state;
    int32_t  n_parts, rows, back, how, hands_out;    /* of a step: as in pf_step */
    int64_t  pos;
    struct pf_session_opts opts;
};

struct pf_crew {
    pf_ranks   *ranks;
    int         rank, n;
    struct pf_cut cut;                       /* by_rows: of all ranks; otherwise layers are divided */
    bool        is_together;                 /* all have opened the model, and hear what rank 0 tells */
    bool        committed;                   /* rank 0: the others have not been told yet */
    bool        taken[PF_CREW_SESSIONS];     /* rank 0: numbers of open sessions */
    char       *message;                     /* things to tell, or heard, one behind the other: */
    size_t      message_bytes, used, at;     /* room for them; all of them; what was heard up to there is done */
    bool        is_incomplete;               /* rank 0: something is missing in message; nothing is told any more */
    bool        owes;                        /* rank 0: the answer to a step has not been taken yet */
    pf_backend *owner;                       /* of room */
    void       *room;                        /* a status and x, on their way from rank to rank */
    size_t      room_bytes;
};

/* Whether this process is one that follows rank 0. m->crew NULL: there are no others. */
static inline bool pf_crew_follows(const struct pf_model *m)
{
    return m->crew && m->crew->rank > 0;
}

/* Whether the processes make each step at the same time. */
static inline bool pf_crew_by_rows(const struct pf_model *m)
{
    return m->crew && m->crew->cut.by_rows;
}

static inline bool pf_crew_leads(const struct pf_model *m)
{
    return m->crew && m->crew->rank == 0;
}

/* What several processes cannot do: a sentence that ends with `what`. PF_OK: there are no others. */
pf_status pf_crew_refuse(const struct pf_model *m, const char *what);

/* By all ranks: how each has fared. PF_OK if all have fared well; else the first failure, with its rank and
 * sentence. */
pf_status pf_crew_agree(struct pf_crew *crew, pf_status st);

/* By rank 0; without a crew, or in others, they do nothing. Opening waits for the others, which may fail. What is told
 * of state cannot fail here: if ranks are lost, or memory was not enough for it, the next step does. */
pf_status pf_crew_tell_open(struct pf_session *s);
void      pf_crew_tell_close(struct pf_session *s);
void      pf_crew_tell_state(const struct pf_session *s, enum pf_told_kind kind, int number, int64_t pos, bool state);
pf_status pf_crew_tell_step(const struct pf_step *t);
void      pf_crew_note_commit(struct pf_model *m);

/* By rank 0: waits for the answer that is owed, if any, and says how that step has fared. Before anything is told: a
 * rank that owes hears nothing. */
pf_status pf_crew_take_owed(struct pf_model *m);

/* By the others: the next thing told, valid until the next call. Its parts, and the tokens of all parts. */
pf_status pf_crew_hear(struct pf_model *m, const struct pf_told **told);
static inline const struct pf_told_part *pf_told_parts(const struct pf_told *told)
{
    return (const struct pf_told_part *)(told + 1);
}
static inline const int32_t *pf_told_tokens(const struct pf_told *told)
{
    return (const int32_t *)(pf_told_parts(told) + told->n_parts);
}

/* By rows, when this rank leaves a step in the middle: nothing more can be done together. Returns why. At the end of a
 * step: how it has fared here; on rank 0, here or anywhere. */
pf_status pf_crew_leave_step(struct pf_model *m, pf_status st);
pf_status pf_crew_end_step(struct pf_model *m, pf_status st);

/* By layers. Makes room for x of the largest step of all sessions, in memory that devices can copy from and to. */
pf_status pf_crew_fit(struct pf_model *m);

/* x of the unit at work to the next rank, with how the step has fared so far: of all rows, or of those from t->back on
 * if the next one is rank 0. Returns how that has fared: st, or why x could not be sent. */
pf_status pf_crew_hand_on(struct pf_step *t, pf_status st);
/* x from the rank before to the unit at work, likewise. */
pf_status pf_crew_take(struct pf_step *t);

/* Ends the crew; rank 0 tells the others to. NULL-safe. */
void pf_crew_close(struct pf_model *m);

#endif
