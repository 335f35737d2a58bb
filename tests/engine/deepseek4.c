/* DeepSeek-V4 once more, in double, from its formulas alone: all positions at once, every block from its positions' own
 * values, an ordinary softmax, choices by sorting. No reference logits at hand fill a block of 128 or let an indexer
 * leave blocks out; here both happen. Nor are there any of the layer that guesses ahead.
 *
 * usage: deepseek4 MODEL.gguf, with all weights in F32 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "gguf/gguf.h"
#include "moe/session/session.h"

enum { N = 300, S = 4, MIX = S * (2 + S) };

static const pf_gguf *file;
static int D, H, hd, n_rot, q_lora, n_group, group_out, window, Hi, di, top_k, E, k_used, F, n_layer, V, n_hash, rounds;
static int n_ctx_orig;
static double eps, hc_eps, base, far_base, factor, limit, weight_scale;
static int32_t tokens[N];

/* ---- The file ---------------------------------------------------------------------------------------------------- */

static int key_int(const char *suffix)
{
    char name[96];
    int64_t v = 0;
    snprintf(name, sizeof name, "deepseek4.%s", suffix);
    CHECK(pf_gguf_int(file, name, 0, INT32_MAX, &v) == PF_OK, "%s", pf_last_error());
    return (int)v;
}

static double key_real(const char *suffix)
{
    char name[96];
    float v = 0;
    snprintf(name, sizeof name, "deepseek4.%s", suffix);
    CHECK(pf_gguf_real(file, name, &v) == PF_OK, "%s", pf_last_error());
    return (double)v;
}

static const void *tensor(int il, const char *suffix)
{
    char name[96];
    if (il < 0)
        snprintf(name, sizeof name, "%s", suffix);
    else
        snprintf(name, sizeof name, "blk.%d.%s", il, suffix);
    const struct pf_tensor *t = pf_gguf_tensor(file, name);
    if (!t) {
        printf("no tensor %s\n", name);
        exit(1);
    }
    return t->data;
}

static void read_keys(void)
{
    const struct { int *to; const char *key; } keys[] = {
        { &D, "embedding_length" }, { &H, "attention.head_count" }, { &hd, "attention.key_length" },
        { &n_rot, "rope.dimension_count" },
        { &q_lora, "attention.q_lora_rank" }, { &n_group, "attention.output_group_count" },
        { &group_out, "attention.output_lora_rank" }, { &window, "attention.sliding_window" },
        { &Hi, "attention.indexer.head_count" }, { &di, "attention.indexer.key_length" },
        { &top_k, "attention.indexer.top_k" },
        { &E, "expert_count" }, { &k_used, "expert_used_count" }, { &F, "expert_feed_forward_length" },
        { &n_layer, "block_count" }, { &V, "vocab_size" }, { &n_hash, "hash_layer_count" },
        { &rounds, "hyper_connection.sinkhorn_iterations" },
        { &n_ctx_orig, "rope.scaling.original_context_length" },
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        *keys[i].to = key_int(keys[i].key);
    n_layer -= key_int("nextn_predict_layers");
    eps = key_real("attention.layer_norm_rms_epsilon");
    hc_eps = key_real("hyper_connection.epsilon");
    base = key_real("rope.freq_base");
    far_base = key_real("attention.compress_rope_freq_base");
    factor = key_real("rope.scaling.factor");
    limit = key_real("swiglu_clamp_exp");
    weight_scale = key_real("expert_weights_scale");
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

static double *zeros(size_t n)
{
    double *p = calloc(n, sizeof *p);
    if (!p)
        exit(1);
    return p;
}

static void product(const float *w, int n_in, int n_out, const double *x, double *y)
{
    for (int r = 0; r < n_out; r++) {
        y[r] = 0;
        for (int i = 0; i < n_in; i++)
            y[r] += (double)w[(size_t)r * (size_t)n_in + (size_t)i] * x[i];
    }
}

static void norm(const double *x, const float *w, int n, double *y)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (int i = 0; i < n; i++)
        y[i] = x[i] / sqrt(sum / n + eps) * (w ? (double)w[i] : 1);
}

/* Angle of pair i at a position; YaRN where there are blocks. */
static double angle(int i, int pos, bool far)
{
    double b = far ? far_base : base, freq = pow(b, -2.0 * i / n_rot);
    if (!far)
        return pos * freq;
    double low = floor(n_rot * log(n_ctx_orig / (32 * 2 * acos(-1))) / (2 * log(b)));
    double high = ceil(n_rot * log(n_ctx_orig / (1 * 2 * acos(-1))) / (2 * log(b)));
    low = fmax(low, 0);
    high = fmin(high, n_rot - 1);
    double stretched = fmin(1, fmax(0, (i - low) / fmax(0.001, high - low)));
    return pos * (freq * (1 - stretched) + freq / factor * stretched);
}

static void rotate(double *x, int n, int pos, bool far, int sign)
{
    double *tail = x + n - n_rot;
    for (int i = 0; i < n_rot / 2; i++) {
        double t = sign * angle(i, pos, far), a = tail[2 * i], b = tail[2 * i + 1];
        tail[2 * i] = a * cos(t) - b * sin(t);
        tail[2 * i + 1] = a * sin(t) + b * cos(t);
    }
}

static double sigmoid(double z)
{
    return 1 / (1 + exp(-z));
}

/* ---- Streams ----------------------------------------------------------------------------------------------------- */

struct mix {
    double read[S], write[S], of[S][S];      /* of[from][to] */
};

static struct mix mix_of(const double *s, const char *prefix, int il, int n_weights)
{
    char name[64];
    struct mix m = { 0 };
    double *f = zeros((size_t)(S * D)), L[MIX];
    snprintf(name, sizeof name, "%s_fn.weight", prefix);
    norm(s, NULL, S * D, f);
    product(tensor(il, name), S * D, n_weights, f, L);
    snprintf(name, sizeof name, "%s_base.weight", prefix);
    const float *b = tensor(il, name);
    snprintf(name, sizeof name, "%s_scale.weight", prefix);
    const float *scale = tensor(il, name);
    for (int i = 0; i < S; i++)
        m.read[i] = sigmoid(L[i] * (double)scale[0] + (double)b[i]) + hc_eps;
    for (int i = 0; n_weights == MIX && i < S; i++) {
        double sum = 0;
        m.write[i] = 2 * sigmoid(L[S + i] * (double)scale[1] + (double)b[S + i]);
        for (int j = 0; j < S; j++)
            sum += m.of[i][j] = exp(L[2 * S + S * i + j] * (double)scale[2] + (double)b[2 * S + S * i + j]);
        for (int j = 0; j < S; j++)
            m.of[i][j] = m.of[i][j] / sum + hc_eps;
    }
    for (int round = 0; n_weights == MIX && round < rounds; round++) {
        for (int i = 0; round > 0 && i < S; i++) {
            double sum = m.of[i][0] + m.of[i][1] + m.of[i][2] + m.of[i][3];
            for (int j = 0; j < S; j++)
                m.of[i][j] /= sum + hc_eps;
        }
        for (int j = 0; j < S; j++) {
            double sum = m.of[0][j] + m.of[1][j] + m.of[2][j] + m.of[3][j];
            for (int i = 0; i < S; i++)
                m.of[i][j] /= sum + hc_eps;
        }
    }
    free(f);
    return m;
}

static void read_streams(const struct mix *m, const double *s, double *x)
{
    for (int i = 0; i < D; i++)
        x[i] = m->read[0] * s[i] + m->read[1] * s[D + i] + m->read[2] * s[2 * D + i] + m->read[3] * s[3 * D + i];
}

static void write_streams(const struct mix *m, const double *y, double *s)
{
    for (int i = 0; i < D; i++) {
        double old[S] = { s[i], s[D + i], s[2 * D + i], s[3 * D + i] };
        for (int to = 0; to < S; to++) {
            s[to * D + i] = m->write[to] * y[i];
            for (int from = 0; from < S; from++)
                s[to * D + i] += m->of[from][to] * old[from];
        }
    }
}

/* ---- Attention --------------------------------------------------------------------------------------------------- */

/* Keys of the full blocks of `ratio` positions, [N / ratio][n], from a [N][D]. */
static double *block_keys(const double *a, int il, const char *prefix, int n, int ratio)
{
    char name[64];
    int parts = ratio == 4 ? 2 : 1, width = parts * n;
    double *u = zeros((size_t)(N * width)), *t = zeros((size_t)(N * width)), *rows = zeros((size_t)(N / ratio * n));
    snprintf(name, sizeof name, "%s_kv.weight", prefix);
    const float *wu = tensor(il, name);
    snprintf(name, sizeof name, "%s_gate.weight", prefix);
    const float *wt = tensor(il, name);
    snprintf(name, sizeof name, "%s_ape.weight", prefix);
    const float *ape = tensor(il, name);
    snprintf(name, sizeof name, "%s_norm.weight", prefix);
    for (int p = 0; p < N; p++) {
        product(wu, D, width, a + p * D, u + p * width);
        product(wt, D, width, a + p * D, t + p * width);
        for (int d = 0; d < width; d++)
            t[p * width + d] += (double)ape[p % ratio * width + d];
    }
    for (int b = 0; b < N / ratio; b++) {
        for (int d = 0; d < n; d++) {
            double z = 0, sum = 0;
            for (int p = (b > 0 && parts == 2 ? b - 1 : b) * ratio; p < (b + 1) * ratio; p++) {
                int at = p * width + d + (p >= b * ratio ? width - n : 0);
                z += exp(t[at]);
                sum += exp(t[at]) * u[at];
            }
            rows[b * n + d] = sum / z;
        }
        norm(rows + b * n, tensor(il, name), n, rows + b * n);
        rotate(rows + b * n, n, b * ratio, true, 1);
    }
    free(u);
    free(t);
    return rows;
}

/* Which of n blocks position p looks at, from its query latent and h. */
static void choose(int il, int p, int n, const double *ql, const double *h, const double *keys, bool *chosen)
{
    double q[64 * 128], w[64], *score = zeros((size_t)n + 1);
    product(tensor(il, "indexer.attn_q_b.weight"), q_lora, Hi * di, ql, q);
    product(tensor(il, "indexer.proj.weight"), D, Hi, h, w);
    for (int i = 0; i < Hi; i++)
        rotate(q + i * di, di, p, true, 1);
    for (int b = 0; b < n; b++)
        for (int i = 0; i < Hi; i++) {
            double dot = 0;
            for (int d = 0; d < di; d++)
                dot += q[i * di + d] * keys[b * di + d];
            score[b] += w[i] / sqrt((double)di * Hi) * fmax(dot, 0);
        }
    for (int b = 0; b < n; b++) {
        int better = 0;
        for (int c = 0; c < n; c++)
            better += score[c] > score[b] || (score[c] == score[b] && c < b);
        chosen[b] = better < top_k;
    }
    free(score);
}

/* One head: adds a key that is its value to the sums; without a key, the sink. */
static void see(const double *q, const double *key, double sink, double *z, double *sum)
{
    double logit = sink;
    if (key) {
        logit = 0;
        for (int d = 0; d < hd; d++)
            logit += q[d] * key[d];
        logit /= sqrt((double)hd);
    }
    *z += exp(logit);
    for (int d = 0; key && d < hd; d++)
        sum[d] += exp(logit) * key[d];
}

static void attention(int il, int ratio, const double *a, double *y)
{
    double *kv = zeros((size_t)(N * hd)), *q = zeros((size_t)(H * hd)), *o = zeros((size_t)(H * hd));
    double *ql = zeros((size_t)q_lora), *low = zeros((size_t)(n_group * group_out));
    double *blocks = ratio ? block_keys(a, il, "attn_compressor", hd, ratio) : NULL;
    double *index = ratio == 4 ? block_keys(a, il, "indexer_compressor", di, ratio) : NULL;
    const float *sinks = tensor(il, "attn_sinks.weight"), *out_a = tensor(il, "attn_output_a.weight");
    int group = H / n_group * hd;
    for (int p = 0; p < N; p++) {
        product(tensor(il, "attn_kv.weight"), D, hd, a + p * D, kv + p * hd);
        norm(kv + p * hd, tensor(il, "attn_kv_a_norm.weight"), hd, kv + p * hd);
        rotate(kv + p * hd, hd, p, ratio > 0, 1);
    }
    for (int p = 0; p < N; p++) {
        int n_blocks = ratio ? (p + 1) / ratio : 0;
        bool chosen[N];
        memset(chosen, true, sizeof chosen);
        product(tensor(il, "attn_q_a.weight"), D, q_lora, a + p * D, ql);
        norm(ql, tensor(il, "attn_q_a_norm.weight"), q_lora, ql);
        product(tensor(il, "attn_q_b.weight"), q_lora, H * hd, ql, q);
        if (index)
            choose(il, p, n_blocks, ql, a + p * D, index, chosen);
        for (int h = 0; h < H; h++) {
            double z = 0, *sum = o + h * hd;
            memset(sum, 0, (size_t)hd * sizeof *sum);
            norm(q + h * hd, NULL, hd, q + h * hd);
            rotate(q + h * hd, hd, p, ratio > 0, 1);
            see(NULL, NULL, (double)sinks[h], &z, NULL);
            for (int k = p < window ? 0 : p - window + 1; k <= p; k++)
                see(q + h * hd, kv + k * hd, 0, &z, sum);
            for (int b = 0; b < n_blocks; b++)
                if (chosen[b])
                    see(q + h * hd, blocks + b * hd, 0, &z, sum);
            for (int d = 0; d < hd; d++)
                sum[d] /= z;
            rotate(sum, hd, p, ratio > 0, -1);
        }
        for (int g = 0; g < n_group; g++)
            product(out_a + (size_t)g * (size_t)group_out * (size_t)group, group, group_out, o + g * group,
                    low + g * group_out);
        product(tensor(il, "attn_output_b.weight"), n_group * group_out, D, low, y + p * D);
    }
    double *all[] = { kv, q, o, ql, blocks, low, index };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* ---- Experts ----------------------------------------------------------------------------------------------------- */

static void add_expert(const float *gate, const float *up, const float *down, double weight, const double *h, double *y)
{
    double *g = zeros((size_t)F), *u = zeros((size_t)F), *out = zeros((size_t)D);
    product(gate, D, F, h, g);
    product(up, D, F, h, u);
    for (int i = 0; i < F; i++) {
        double z = fmin(g[i], limit);
        g[i] = z * sigmoid(z) * fmax(-limit, fmin(u[i], limit));
    }
    product(down, F, D, g, out);
    for (int i = 0; i < D; i++)
        y[i] += weight * out[i];
    free(g);
    free(u);
    free(out);
}

static void experts(int il, int32_t token, const double *h, double *y)
{
    double P[256], sum = 0;
    int picks[64];
    size_t n = (size_t)D * (size_t)F;
    product(tensor(il, "ffn_gate_inp.weight"), D, E, h, P);
    for (int e = 0; e < E; e++)
        P[e] = sqrt(log1p(exp(P[e])));
    if (il < n_hash) {
        for (int i = 0; i < k_used; i++)
            picks[i] = ((const int32_t *)tensor(il, "ffn_gate_tid2eid.weight"))[token * k_used + i];
    } else {
        const float *bias = tensor(il, "exp_probs_b.bias");
        for (int e = 0; e < E; e++) {
            int better = 0;
            for (int f = 0; f < E; f++)
                better += P[f] + (double)bias[f] > P[e] + (double)bias[e];
            if (better < k_used)
                picks[better] = e;
        }
    }
    for (int i = 0; i < k_used; i++)
        sum += P[picks[i]];
    memset(y, 0, (size_t)D * sizeof *y);
    const float *gate = tensor(il, "ffn_gate_exps.weight"), *up = tensor(il, "ffn_up_exps.weight");
    const float *down = tensor(il, "ffn_down_exps.weight");
    for (int i = 0; i < k_used; i++)
        add_expert(gate + (size_t)picks[i] * n, up + (size_t)picks[i] * n, down + (size_t)picks[i] * n,
                   P[picks[i]] / sum * weight_scale, h, y);
    gate = tensor(il, "ffn_gate_shexp.weight");
    up = tensor(il, "ffn_up_shexp.weight");
    add_expert(gate, up, tensor(il, "ffn_down_shexp.weight"), 1, h, y);
}

/* ---- The model --------------------------------------------------------------------------------------------------- */

static void layer(int il, int ratio, double *s)
{
    double *a = zeros((size_t)(N * D)), *y = zeros((size_t)(N * D)), *x = zeros((size_t)D);
    struct mix m[N];
    for (int p = 0; p < N; p++) {
        m[p] = mix_of(s + p * S * D, "hc_attn", il, MIX);
        read_streams(&m[p], s + p * S * D, x);
        norm(x, tensor(il, "attn_norm.weight"), D, a + p * D);
    }
    attention(il, ratio, a, y);
    for (int p = 0; p < N; p++) {
        write_streams(&m[p], y + p * D, s + p * S * D);
        m[p] = mix_of(s + p * S * D, "hc_ffn", il, MIX);
        read_streams(&m[p], s + p * S * D, x);
        norm(x, tensor(il, "ffn_norm.weight"), D, x);
        experts(il, tokens[p], x, y);
        write_streams(&m[p], y, s + p * S * D);
    }
    free(a);
    free(y);
    free(x);
}

/* Logits of all positions, [N][V], from their streams. */
static double *logits_of(const double *s, const char *mix, const char *output_norm, int il)
{
    double *logits = zeros((size_t)(N * V)), *x = zeros((size_t)D);
    for (int p = 0; p < N; p++) {
        struct mix m = mix_of(s + p * S * D, mix, il, S);
        read_streams(&m, s + p * S * D, x);
        norm(x, tensor(il, output_norm), D, x);
        product(tensor(-1, "output.weight"), D, V, x, logits + p * V);
    }
    free(x);
    return logits;
}

/* The streams that the layers leave, [N][S][D]. */
static double *layers(void)
{
    double *s = zeros((size_t)(N * S * D));
    int64_t ratios[64];
    const float *embed = tensor(-1, "token_embd.weight");
    CHECK(pf_gguf_ints_opt(file, "deepseek4.attention.compress_ratios", n_layer + 1, 0, 128, ratios, NULL) == PF_OK);
    CHECK(ratios[n_layer] == 0);
    for (int p = 0; p < N; p++)
        for (int i = 0; i < S * D; i++)
            s[p * S * D + i] = (double)embed[tokens[p] * D + i % D];
    for (int il = 0; il < n_layer; il++)
        layer(il, (int)ratios[il], s);
    return s;
}

/* What the layer that guesses ahead makes of them: at p, of the token and of the streams at p - 1, which are 0 in front
 * of the first position. */
static double *guess(const double *s)
{
    double *z = zeros((size_t)(N * S * D)), *pair = zeros((size_t)(2 * D));
    const float *embed = tensor(-1, "token_embd.weight");
    for (int p = 0; p < N; p++) {
        for (int i = 0; i < D; i++)
            pair[i] = (double)embed[tokens[p] * D + i];
        norm(pair, tensor(n_layer, "nextn.enorm.weight"), D, pair);
        for (int k = 0; k < S; k++) {
            memset(pair + D, 0, (size_t)D * sizeof *pair);
            if (p > 0)
                norm(s + ((p - 1) * S + k) * D, tensor(n_layer, "nextn.hnorm.weight"), D, pair + D);
            product(tensor(n_layer, "nextn.eh_proj.weight"), 2 * D, D, pair, z + (p * S + k) * D);
        }
    }
    layer(n_layer, 0, z);
    free(pair);
    return z;
}

/* ---- Comparing --------------------------------------------------------------------------------------------------- */

static pf_session *open_session(pf_model *m, enum pf_draft draft)
{
    pf_session *s;
    struct pf_session_opts o;
    pf_session_opts_init(&o);
    o.n_ctx = N;
    o.kv_type = PF_KV_F32;
    o.draft = draft;
    if (pf_session_open(&s, m, &o) < 0) {
        CHECK(false, "%s", pf_last_error());
        exit(check_status());
    }
    return s;
}

static void compare(pf_session *s, const char *what, const double *want)
{
    double error = 0, signal = 0;
    int worst = -1;
    CHECK(pf_session_eval(s, tokens, N, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
    for (int p = 0; p < N; p++)
        for (int i = 0; i < V; i++) {
            double e = (double)pf_session_logits_at(s, (size_t)p)[i] - want[p * V + i];
            error += e * e;
            signal += want[p * V + i] * want[p * V + i];
            if (worst < 0 && e * e > 1e-6)
                worst = p;
        }
    printf("%s: nmse %.1e\n", what, error / signal);
    CHECK(error / signal < 1e-10 && worst < 0, "%s: nmse %g; the first position that is off is %d", what,
          error / signal, worst);
}

/* What the layer that guesses ahead gets: the streams behind each position, [N][S][D]. */
static float *hidden_of(pf_model *m)
{
    float *rows = calloc((size_t)(N * S * D), sizeof *rows);
    pf_session *s = open_session(m, PF_DRAFT_MTP);
    for (int p = 0; rows && p < N; p++) {
        CHECK(pf_session_eval(s, &tokens[p], 1, PF_LOGITS_ALL) == PF_OK, "%s", pf_last_error());
        memcpy(rows + p * S * D, s->hidden, (size_t)(S * D) * sizeof *rows);
    }
    pf_session_close(&s);
    return rows;
}

static void compare_all(const char *path, const double *want, const double *want_guess)
{
    pf_model *m;
    struct pf_model_opts o;
    pf_model_opts_init(&o);
    o.nextn = true;
    o.device = -1;
    if (pf_model_open(&m, path, &o) < 0 || !m->nextn) {
        CHECK(false, "%s", pf_last_error());
        exit(check_status());
    }
    pf_session *s = open_session(m, PF_DRAFT_OFF), *own = open_session(m->nextn, PF_DRAFT_OFF);
    float *hidden = hidden_of(m);
    compare(s, "the model", want);
    own->given = (struct pf_given_rows){ hidden, 0, N };
    compare(own, "the layer that guesses ahead", want_guess);
    free(hidden);
    pf_session_close(&own);
    pf_session_close(&s);
    pf_model_close(&m);
}

int main(int argc, char **argv)
{
    pf_gguf *g;
    if (argc != 2)
        return 2;
    CHECK(pf_gguf_open(&g, argv[1], 0) == PF_OK, "%s", pf_last_error());
    file = g;
    read_keys();
    for (int p = 0; p < N; p++)
        tokens[p] = (int32_t)((unsigned)p * 2654435761u >> 7) % V;
    double *s = layers(), *z = guess(s);
    double *want = logits_of(s, "output_hc", "output_norm.weight", -1);
    double *want_guess = logits_of(z, "nextn.hc_head", "nextn.shared_head_norm.weight", n_layer);
    compare_all(argv[1], want, want_guess);
    double *all[] = { s, z, want, want_guess };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
    pf_gguf_close(&g);
    return check_status();
}
