/* Layers with a window keep a ring of positions. Wherever the ring comes round, the bits are those of a session that
 * keeps the whole context: however the text is cut, over steps that fail where the ring comes round, going back within
 * what it holds and further, saving and loading, and on a device.
 *
 * Windows of thousands of positions are tried in part. Where the way does not say how many threads there are it is one:
 * tests/engine/bits.c tries others, and two would spend some of their time on waiting for each other.
 *
 * usage: rings MODEL.gguf */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "kernels/sim/sim.h"
#include "memory_file.h"
#include "moe/place/placement.h"
#include "moe/session/session.h"

enum { MOST = 9000, N_BACK = 40, WHOLE = 8192 /* a batch for which there is no ring */ };

static const char *path;
static int     window, n_text, n_ctx;
static int     tight;                    /* rows of a batch so that window and batch fill the ring */
static int32_t tokens[MOST];
static float  *want;                     /* [n_text][n_vocab] */
static size_t  n_vocab;

static pf_model *open_model(int n_threads, uint32_t isa, struct pf_residency_setup *setup)
{
    pf_model *m = NULL;
    struct pf_model_opts o;
    static struct pf_residency_setup none;
    pf_model_opts_init(&o);
    o.n_threads = n_threads;
    o.isa = isa;
    o.streaming = setup != NULL;         /* without it everything would fit the device */
    CHECK(pf_model_open_with(&m, path, &o, setup ? setup : &none) == PF_OK, "%s", pf_last_error());
    return m;
}

static pf_session *open_session(pf_model *m, int n_batch, enum pf_kv_type type)
{
    pf_session *s = NULL;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = n_batch == WHOLE && n_text > WHOLE ? n_text : n_ctx;
    o.n_batch = n_batch;
    o.kv_type = type;
    CHECK(pf_session_open(&s, m, &o) == PF_OK, "%s", pf_last_error());
    CHECK((s->ring_positions == 0) == (n_batch == WHOLE), "a batch of %d and a ring of %d", n_batch,
          (int)s->ring_positions);
    return s;
}

static bool same(const float *a, int pos)
{
    return a && memcmp(a, want + (size_t)pos * n_vocab, n_vocab * sizeof *a) == 0;
}

/* From where the session stands, pieces of at most `piece` tokens up to end; false once bits differ. */
static bool go_on(pf_session *s, int piece, int end, const char *name)
{
    for (int pos = (int)pf_session_pos(s), n; pos < end; pos += n) {
        n = piece < end - pos ? piece : end - pos;
        CHECK(pf_session_eval(s, tokens + pos, (size_t)n, PF_LOGITS_ALL) == PF_OK, "%s: %s", name, pf_last_error());
        for (int i = 0; i < n; i++)
            if (!same(pf_session_logits_at(s, (size_t)i), pos + i)) {
                CHECK(false, "%s: other bits at %d, in %d tokens from %d on", name, pos + i, n, pos);
                return false;
            }
    }
    return true;
}

static void make_want(enum pf_kv_type type)
{
    pf_model *m = open_model(1, PF_ISA_ALL, NULL);
    pf_session *s = open_session(m, WHOLE, type);
    want = realloc(want, (size_t)n_text * n_vocab * sizeof *want);
    CHECK(pf_session_eval(s, tokens, (size_t)n_text, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
    for (size_t i = 0; i < (size_t)n_text; i++)
        memcpy(want + i * n_vocab, pf_session_logits_at(s, i), n_vocab * sizeof *want);
    pf_session_close(&s);
    pf_model_close(&m);
}

static void test_way(const char *name, enum pf_kv_type type, int n_threads, int n_batch, int piece, uint32_t isa)
{
    pf_model *m = open_model(n_threads, isa, NULL);
    pf_session *s = open_session(m, n_batch, type);
    go_on(s, piece, n_text, name);
    pf_session_close(&s);
    pf_model_close(&m);
}

static void test_ways(enum pf_kv_type type)
{
    test_way("whole", type, 2, tight, n_text, PF_ISA_ALL);
    test_way("token by token", type, 2, tight, 1, PF_ISA_ALL);
    test_way("pieces of 37", type, 1, tight, 37, PF_ISA_ALL);
    test_way("pieces of 5 in batches of 1", type, 3, 1, 5, PF_ISA_ALL);
    test_way("batches of 300", type, 2, 300, n_text, PF_ISA_ALL);
    test_way("AVX2", type, 2, 48, 11, PF_ISA_SCALAR | PF_ISA_AVX2);
}

/* Less memory, as the planner is told. */
static void test_bytes(pf_model *m)
{
    uint64_t kv[2], work[2];
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = n_ctx;
    for (int i = 0; i < 2; i++) {
        o.n_batch = i ? WHOLE : tight;
        CHECK(pf_session_bytes(m, &o, &kv[i], &work[i]) == PF_OK, "%s", pf_last_error());
    }
    CHECK(kv[0] < kv[1], "%llu and %llu", (unsigned long long)kv[0], (unsigned long long)kv[1]);
}

/* The last layer but one, or before, that has a router to watch; -1: none has. */
static int last_watched(const pf_model *m)
{
    int il = m->n_layer - 2;
    while (il >= 0 && !m->layers[il].is_moe)
        il--;
    return il;
}

/* A step that fails in one of its last layers, after it has written over what no row will see any more. */
static void cancel_late(void *ctx, const struct pf_stage_data *d)
{
    pf_session *s = ctx;
    if (d->layer == last_watched(s->m))
        pf_session_cancel(s);
}

static void test_faults(pf_model *m)
{
    if (last_watched(m) < 0)
        return;
    for (int pos = 120; pos < 300; pos += 17) {
        pf_session *s = open_session(m, tight, PF_KV_I16);
        struct pf_trace_opts late = { .stages = 1u << PF_STAGE_GATE, .fn = cancel_late, .ctx = s };
        go_on(s, n_text, pos, "before the fault");
        CHECK(pf_trace_set(m, &late) == PF_OK, "%s", pf_last_error());
        CHECK(pf_session_eval(s, tokens + pos, tight, 0) == PF_ECANCEL && pf_session_pos(s) == pos &&
              s->computed == pos, "%d", pos);
        CHECK(pf_session_eval(s, tokens + pos, 1, 0) == PF_ECANCEL && s->computed == pos);
        CHECK(pf_trace_set(m, NULL) == PF_OK, "%s", pf_last_error());
        go_on(s, 1, pos + 3, "after the fault");
        go_on(s, n_text, pos + tight, "after the fault");
        pf_session_close(&s);
    }
}

static void test_rewind(pf_model *m)
{
    pf_session *s = open_session(m, tight, PF_KV_I16);
    unsigned state = 4711;
    go_on(s, n_text, 300, "the beginning");
    go_on(s, 1, 420, "an answer");
    CHECK(pf_session_rewind(s, 415) == PF_OK && (m->recurrent || s->computed == 415), "%d: the ring holds this",
          (int)s->computed);
    CHECK(pf_session_rewind(s, 301) == PF_OK && s->computed >= 268, "%d: a checkpoint is at 300", (int)s->computed);
    go_on(s, 1, 310, "after a checkpoint");
    for (int i = 0; i < N_BACK; i++) {
        state = state * 1664525u + 1013904223u;
        int pos = (int)pf_session_pos(s), back = i % 3 ? (int)(state >> 24) % 64 : (int)(state >> 16) % pos;
        CHECK(pf_session_rewind(s, back < pos ? pos - back : 0) == PF_OK, "%s", pf_last_error());
        pos = (int)pf_session_pos(s);
        int end = pos + 1 + (int)(state >> 8) % 150;
        if (!go_on(s, i % 4 == 1 ? 1 : n_text, end < n_text ? end : n_text, "going back"))
            break;
    }
    pf_session_close(&s);
}

enum { N_TURNS = 8, FIRST_ASKED = 400, ASKED = 40, ANSWERED = 180, LEFT_OUT = 150 };

/* Answers longer than the ring can go back, of which the template leaves out the beginning once the next question
 * comes. */
static void test_conversation(pf_model *m)
{
    pf_session *s = open_session(m, tight, PF_KV_I16), *fresh = open_session(m, WHOLE, PF_KV_I16);
    int32_t text[MOST];
    size_t n = 0, asked = 0, reused;
    for (int turn = 0; turn < N_TURNS; turn++) {
        for (int i = 0; i < (turn ? ASKED : FIRST_ASKED); i++)
            text[n++] = tokens[(turn * 31 + i * 7) % n_text];
        CHECK(pf_session_sync(s, text, n, &reused) == PF_OK, "%s", pf_last_error());
        CHECK(reused >= asked, "turn %d: %zu kept, %zu stood before the answer", turn, reused, asked);
        CHECK(pf_session_sync(fresh, text, n, NULL) == PF_OK, "%s", pf_last_error());
        CHECK(memcmp(pf_session_logits(s), pf_session_logits(fresh), n_vocab * sizeof *want) == 0, "turn %d", turn);
        asked = n;
        for (int i = 0; i < ANSWERED; i++) {
            text[n] = tokens[(turn * 17 + i * 5) % n_text];
            CHECK(pf_session_eval(s, text + n++, 1, 0) == PF_OK, "%s", pf_last_error());
        }
        memmove(text + asked, text + asked + LEFT_OUT, (ANSWERED - LEFT_OUT) * sizeof *text);
        n -= LEFT_OUT;
    }
    pf_session_close(&s);
    pf_session_close(&fresh);
}

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

static void save(pf_model *m, int n_batch, int pos, struct file *f)
{
    pf_session *s = open_session(m, n_batch, PF_KV_I16);
    go_on(s, n_text, pos, "before saving");
    CHECK(pf_session_save(s, write_file, f) == PF_OK, "%s", pf_last_error());
    pf_session_close(&s);
}

/* Into a session of another ring, or of none, and back a little and far. */
static void test_save(pf_model *m, int from_batch, int to_batch, int pos)
{
    struct file f = { 0 };
    pf_session *s = open_session(m, to_batch, PF_KV_I16);
    save(m, from_batch, pos, &f);
    go_on(s, n_text, 77, "before loading");
    CHECK(pf_session_load(s, read_file, &f) == PF_OK && pf_session_pos(s) == pos && s->computed == pos, "%s",
          pf_last_error());
    go_on(s, 1, pos + 3, "loaded");
    go_on(s, n_text, pos + 100, "loaded");
    for (int back = 5; back <= 605; back += 200) {
        f.at = 0;
        CHECK(pf_session_load(s, read_file, &f) == PF_OK, "%s", pf_last_error());
        CHECK(pf_session_rewind(s, pos > back ? pos - back : 0) == PF_OK, "%s", pf_last_error());
        go_on(s, n_text, pos + 20, "loaded and gone back");
    }
    free(f.data);
    pf_session_close(&s);
}

static void test_save_refused(pf_model *m)
{
    enum { AT_VERSION = 8, AT_HELD_FROM = 40 };
    struct file ring = { 0 }, whole = { 0 };
    pf_session *s = open_session(m, tight, PF_KV_I16);
    save(m, tight, 700, &ring);
    save(m, WHOLE, 700, &whole);
    CHECK(ring.n < whole.n, "%zu and %zu bytes", ring.n, whole.n);
    ring.data[AT_VERSION]--;
    CHECK(pf_session_load(s, read_file, &ring) == PF_EUNSUPPORTED, "an older version");
    printf("an older version: %s\n", pf_last_error());
    ring.data[AT_VERSION]++;
    static const uint64_t late[] = { 690, 701, UINT64_MAX, UINT64_MAX - 20 };
    for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
        ring.at = 0;
        memcpy(ring.data + AT_HELD_FROM, &late[i], sizeof late[i]);
        CHECK(pf_session_load(s, read_file, &ring) == PF_EFORMAT && pf_session_pos(s) == 0, "held from %d",
              (int)late[i]);
    }
    go_on(s, n_text, 20, "after refusals");
    free(ring.data);
    free(whole.data);
    pf_session_close(&s);
}

/* A sequence is copied wherever its ring is in its round, up to a little before its end and far before; into a ring of
 * another length, too. */
static void test_copy(pf_model *m)
{
    pf_session *a = open_session(m, tight, PF_KV_I16), *b = open_session(m, tight, PF_KV_I16),
               *other = open_session(m, 300, PF_KV_I16), *whole = open_session(m, WHOLE, PF_KV_I16);
    go_on(whole, n_text, 77, "before a copy");
    for (int pos = 90; pos <= 750; pos += 110) {
        go_on(a, pos % 4 ? 37 : 1, pos, "to be copied");
        for (int back = 0; back < pos; back += 5 + back) {
            int n = pos - back;
            CHECK(pf_session_copy(b, a, n, NULL, NULL) == PF_OK && pf_session_pos(b) == n, "%s", pf_last_error());
            CHECK(m->recurrent || pf_session_computed(b) == pf_session_computed_at(a, n), "%d of %d computed, %d back",
                  (int)pf_session_computed(b), n, back);
            go_on(b, back % 3 ? n_text : 1, n + 12, "copied");
        }
        CHECK(pf_session_copy(b, a, pos, NULL, NULL) == PF_OK && pf_session_rewind(b, pos - 60) == PF_OK, "%s",
              pf_last_error());
        go_on(b, n_text, pos + 20, "copied and gone back");
    }
    CHECK(pf_session_copy(other, a, 745, NULL, NULL) == PF_OK, "%s", pf_last_error());
    CHECK(pf_session_copy(b, other, 740, NULL, NULL) == PF_OK, "%s", pf_last_error());
    go_on(other, n_text, 800, "copied to another ring");
    go_on(b, n_text, 800, "copied from another ring");
    CHECK(pf_session_copy(whole, a, 740, NULL, NULL) == PF_EINVAL && pf_session_pos(whole) == 77, "no ring");
    go_on(whole, 1, 80, "after a refusal");
    pf_session_close(&a);
    pf_session_close(&b);
    pf_session_close(&other);
    pf_session_close(&whole);
}

/* Scalar kernels where the ring comes round: they take over what others have computed of the positions before, which
 * would take them as long as everything else here. */
static void test_scalar(void)
{
    enum { FROM = 430, TO = 670 };
    struct file f = { 0 };
    pf_model *m = open_model(1, PF_ISA_ALL, NULL);
    save(m, tight, FROM, &f);
    pf_model_close(&m);
    m = open_model(1, PF_ISA_SCALAR, NULL);
    pf_session *s = open_session(m, tight, PF_KV_I16);
    CHECK(FROM / s->ring_positions < TO / s->ring_positions, "a ring of %d does not come round",
          (int)s->ring_positions);
    CHECK(pf_session_load(s, read_file, &f) == PF_OK, "%s", pf_last_error());
    go_on(s, n_text, TO, "scalar");
    free(f.data);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* ---- On a device ------------------------------------------------------------------------------------------------- */

static pf_status open_device(pf_backend **out, void *ctx)
{
    return pf_backend_sim_open(out, ctx);
}

/* The device shares experts with the CPU; lost in the middle of the text, if at all. */
static void test_device(bool lose)
{
    struct pf_sim sim = { .memory_bytes = 64 << 20 };
    struct pf_residency_setup setup = { .device = open_device, .device_ctx = &sim };
    struct pf_stats stats;
    pf_model *m = open_model(1, PF_ISA_ALL, &setup);
    pf_session *s = open_session(m, tight, PF_KV_I16);
    go_on(s, n_text, 290, "device, prompt");
    go_on(s, 1, 300, "device, tokens");
    sim.lose_at = lose ? sim.n_ops + 200 : 0;
    go_on(s, 1, 420, "device, tokens");
    CHECK(pf_session_rewind(s, 200) == PF_OK, "%s", pf_last_error());
    go_on(s, n_text, 500, "device, back and on");
    pf_stats_get(m, &stats);
    CHECK(stats.device_lost == lose);
    pf_session_close(&s);
    pf_model_close(&m);
}

/* False if the model has no windows. */
static bool find_sizes(void)
{
    pf_model *m = open_model(1, PF_ISA_ALL, NULL);
    n_vocab = m ? (size_t)pf_model_info(m)->n_vocab : 0;
    window = m ? pf_widest_window(m) : 0;
    pf_model_close(&m);
    tight = PF_KV_CHUNK_POSITIONS - window % PF_KV_CHUNK_POSITIONS;
    n_text = window < PF_KV_CHUNK_POSITIONS ? 900 : window + 2 * tight;
    n_ctx = window < PF_KV_CHUNK_POSITIONS ? 2048 : 10 * window;
    for (int i = 0; i < n_text && n_text <= MOST; i++)
        tokens[i] = (int32_t)((unsigned)i * 2654435761u % n_vocab);
    return window > 0 && n_text <= MOST;
}

static void test_all(pf_model *m)
{
    test_bytes(m);
    test_faults(m);
    test_rewind(m);
    test_conversation(m);
    test_save(m, tight, tight, 700);
    test_save(m, tight, 300, 700);
    test_save(m, 300, tight, 260);
    test_save(m, tight, WHOLE, 700);
    test_save(m, WHOLE, tight, 700);
    test_save_refused(m);
    test_copy(m);
}

static void test_long(pf_model *m)
{
    pf_session *s = open_session(m, tight, PF_KV_I16);
    go_on(s, n_text, n_text - 20, "a long window");
    go_on(s, 1, n_text, "a long window");
    CHECK(pf_session_rewind(s, n_text - 100) == PF_OK && s->computed == n_text - 100);
    go_on(s, n_text, n_text, "back in a long window");
    CHECK(pf_session_rewind(s, 100) == PF_OK && s->computed == 0);
    go_on(s, n_text, n_text, "from the beginning");
    pf_session_close(&s);
    test_save(m, tight, tight, n_text - 100);
}

/* Whether the heads of all layers can be kept so. */
static bool is_taken(enum pf_kv_type type)
{
    pf_model *m = open_model(1, PF_ISA_ALL, NULL);
    bool taken = true;
    for (int il = 0; m && type == PF_KV_Q8_0 && il < m->n_layer; il++)
        taken &= m->layers[il].attn.hd_k % 32 == 0 && m->layers[il].attn.hd_v % 32 == 0;
    pf_model_close(&m);
    return taken;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    path = argv[1];
    if (!find_sizes())
        return check_status() ? 1 : 2;
    bool is_long = n_ctx > 2048;
    for (enum pf_kv_type type = PF_KV_F32; !is_long && type <= PF_KV_Q8_0; type++) {
        if (!is_taken(type))
            continue;
        make_want(type);
        test_way(type == PF_KV_F32 ? "F32" : "Q8_0", type, 2, tight, 37, PF_ISA_ALL);
    }
    make_want(PF_KV_I16);
    pf_model *m = open_model(1, PF_ISA_ALL, NULL);
    (is_long ? test_long : test_all)(m);
    pf_model_close(&m);
    if (!is_long) {
        test_ways(PF_KV_I16);
        test_scalar();
        test_device(false);
        test_device(true);
    }
    free(want);
    return check_status();
}
