/* Keys, values and recurrent state of a session: shapes and bytes. See layout.h. */
#include "moe/layout/layout.h"

enum { CHECKPOINTS_BYTES = 512 << 20 };   /* for all checkpoints together; there are at least two */

/* ---- Recurrent state --------------------------------------------------------------------------------------------- */

size_t pf_state_bytes(const struct pf_model *m, int first, int end)
{
    size_t n = 0;
    for (int il = first; il < end; il++)
        n += m->layers[il].n_state;
    return n * sizeof(float);
}

size_t pf_kept_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end)
{
    return pf_state_bytes(m, first, end) + pf_ring_kept_bytes(m, o, first, end);
}

/* q, k, v, alpha and beta of a delta net; u and dt of a Mamba2; of compressed attention the position, and u and gate of
 * its keys and of its indexer's. Multiples of 16 bytes, as kernels want rows to be. */
static size_t mixer_floats(const struct pf_model *m, const struct pf_layer *layer)
{
    size_t n_v_head = (size_t)m->delta.n_v_head, n_blocks = (size_t)layer->compressed.blocks.u.n_out +
                                                            (size_t)layer->indexer.blocks.u.n_out;
    switch (layer->mixer) {
    case PF_MIXER_DELTA:
        return (size_t)m->delta.n_conv + n_v_head * (layer->delta.q.data ? (size_t)m->delta.d : 1) + n_v_head;
    case PF_MIXER_MAMBA2:
        return (size_t)m->mamba.n_conv + (size_t)m->mamba.n_head;
    case PF_MIXER_SHORT_CONV:
        return (size_t)m->n_embd;
    case PF_MIXER_COMPRESSED:
    case PF_MIXER_LATENT:
        return n_blocks ? PF_INPUT_POS + 2 * n_blocks : 0;
    case PF_MIXER_ATTENTION:
    case PF_MIXER_NONE:
        break;
    }
    return 0;
}

size_t pf_input_floats(const struct pf_model *m, int il)
{
    const struct pf_layer *layer = &m->layers[il];
    return layer->n_state && !layer->ngrams.conv ? (mixer_floats(m, layer) + 3) / 4 * 4 : 0;
}

int pf_logit_rows(const struct pf_session_opts *o)
{
    return o->draft == PF_DRAFT_OFF ? 1 : 1 + o->draft_max;
}

size_t pf_inputs_kept_bytes(const struct pf_model *m, int first, int end, const struct pf_session_opts *o)
{
    size_t n = 0;
    for (int il = first; il < end && o->draft != PF_DRAFT_OFF; il++)
        n += pf_input_floats(m, il);
    return n * (size_t)pf_logit_rows(o) * sizeof(float);
}

/* How many checkpoints of so many bytes a session has. */
static int most_checkpoints(size_t bytes)
{
    size_t n = bytes ? CHECKPOINTS_BYTES / bytes : 0;
    return bytes == 0 ? 0 : n < 2 ? 2 : n > PF_MAX_CHECKPOINTS ? PF_MAX_CHECKPOINTS : (int)n;
}

int pf_n_checkpoints(const struct pf_model *m, const struct pf_session_opts *o)
{
    return most_checkpoints(pf_kept_bytes(m, o, -m->n_before, m->n_layer + m->n_behind));
}

uint64_t pf_states_bytes(const struct pf_model *m, int first, int end, const struct pf_session_opts *o)
{
    return 2 * (uint64_t)pf_state_bytes(m, first, end) + pf_inputs_kept_bytes(m, first, end, o) +
           (uint64_t)pf_kept_bytes(m, o, first, end) * (uint64_t)pf_n_checkpoints(m, o);
}

/* ---- Windows ----------------------------------------------------------------------------------------------------- */

int pf_widest_window(const struct pf_model *m)
{
    int widest = 0;
    for (int il = -m->n_before; il < m->n_layer + m->n_behind; il++)
        widest = m->layers[il].attn.window > widest ? m->layers[il].attn.window : widest;
    return widest;
}

/* Whole numbers are for heads and latents that can be kept so, where all positions are looked at: all layers of latent
 * attention follow what an indexer chooses, if the model has one. */
static enum pf_kv_type type_of(const struct pf_model *m, int il, enum pf_kv_type option)
{
    const struct pf_layer *layer = &m->layers[il];
    const struct pf_attention *a = &layer->attn;
    bool whole = !layer->has_indexer && pf_i16_takes(a->hd_k) && pf_i16_takes(a->hd_v);
    if (a->v_in_k)
        whole = layer->mixer == PF_MIXER_LATENT && !m->index.max_chosen && pf_latent_takes(a->hd_k, a->hd_v);
    return option == PF_KV_I16 && !whole ? PF_KV_F16 : option;
}

/* Bytes of the keys and values of one KV head at a position. */
static size_t position_bytes(const struct pf_attention *a, enum pf_kv_type type)
{
    return a->v_in_k ? pf_kv_latent_bytes(type, a->hd_k)
                     : pf_kv_key_bytes(type, a->hd_k) + pf_kv_value_bytes(type, a->hd_v);
}

/* Whether a layer has no keys and values of its own. */
static bool sees_another(const struct pf_model *m, int il)
{
    return m->layers[il].mixer == PF_MIXER_ATTENTION && m->layers[il].attn.kv_layer != il;
}

int pf_window_span(enum pf_kv_type type, int window)
{
    int block = pf_kv_block(type);
    return ((window + block - 2) / block + 1) * block;
}

/* Bytes of one window of the layers [first, end) that have one. */
static size_t window_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end)
{
    int window = pf_widest_window(m);
    size_t bytes = 0;
    for (int il = first; il < end; il++) {
        const struct pf_attention *a = &m->layers[il].attn;
        enum pf_kv_type type = type_of(m, il, o->kv_type);
        if (a->window && !sees_another(m, il))
            bytes += (size_t)pf_window_span(type, window) * (size_t)a->n_kv_head * position_bytes(a, type);
    }
    return bytes;
}

static int64_t whole_chunks(int64_t positions)
{
    return (positions + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS * PF_KV_CHUNK_POSITIONS;
}

int64_t pf_ring_positions(const struct pf_model *m, const struct pf_session_opts *o)
{
    int64_t window = pf_widest_window(m), ring = whole_chunks(window + o->n_batch);
    if (window == 0 || window > o->n_ctx)
        return 0;
    int first = -m->n_before, end = m->n_layer + m->n_behind;
    int64_t kept = window * most_checkpoints(pf_state_bytes(m, first, end) + window_bytes(m, o, first, end));
    return ring + kept < whole_chunks(o->n_ctx) ? ring : 0;
}

int pf_ring_chunks(const struct pf_model *m, int il, const struct pf_session_opts *o)
{
    int64_t ring = m->layers[il].attn.window ? pf_ring_positions(m, o) : 0;
    return (int)((ring ? ring : whole_chunks(o->n_ctx)) / PF_KV_CHUNK_POSITIONS);
}

size_t pf_ring_kept_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end)
{
    return pf_ring_positions(m, o) ? window_bytes(m, o, first, end) : 0;
}

/* ---- Keys and values --------------------------------------------------------------------------------------------- */

/* Chunks that lie in the memory of the layer's unit: all, unless positions are far. A window is too small to bother, a
 * latent too. */
static int near_chunks(const struct pf_attention *a, enum pf_kv_type type, int n_chunks,
                       const struct pf_session_opts *o)
{
    int64_t near = o->n_near / PF_KV_CHUNK_POSITIONS + (o->n_near % PF_KV_CHUNK_POSITIONS != 0);
    bool all = o->n_near == 0 || type != PF_KV_I16 || a->v_in_k || a->window || near >= n_chunks;
    return all ? n_chunks : (int)near;
}

struct pf_kv_layer pf_kv_layer_of(const struct pf_model *m, int il, const struct pf_session_opts *o)
{
    const struct pf_attention *a = &m->layers[il].attn;
    int n_chunks = pf_ring_chunks(m, il, o);
    enum pf_kv_type type = type_of(m, il, o->kv_type);
    if (sees_another(m, il))
        return (struct pf_kv_layer){ .k_bytes = 0 };
    int n_near = near_chunks(a, type, n_chunks, o);
    size_t chunk = PF_KV_CHUNK_POSITIONS * (size_t)a->n_kv_head;
    size_t v_chunk = a->v_in_k ? 0 : chunk * pf_kv_value_bytes(type, a->hd_v),
           k_chunk = chunk * position_bytes(a, type) - v_chunk;
    return (struct pf_kv_layer){
        .view = { .type = type, .n_kv_head = a->n_kv_head, .hd_k = a->hd_k, .hd_v = a->hd_v,
                  .n_chunks = n_chunks, .n_near = n_near },
        .k_bytes = (size_t)n_near * k_chunk,
        .v_bytes = (size_t)n_near * v_chunk,
        .k_far = (size_t)(n_chunks - n_near) * k_chunk,
        .v_far = (size_t)(n_chunks - n_near) * v_chunk,
    };
}

uint64_t pf_kv_far_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end)
{
    uint64_t bytes = 0;
    for (int il = first; il < end; il++) {
        struct pf_kv_layer kv = pf_kv_layer_of(m, il, o);
        bytes += kv.k_far + kv.v_far;
    }
    return bytes;
}

uint64_t pf_kv_stage_bytes(const struct pf_model *m, const struct pf_session_opts *o, int first, int end)
{
    uint64_t most = 0, near = 0;
    for (int il = first; il < end; il++) {
        struct pf_kv_layer kv = pf_kv_layer_of(m, il, o);
        most = kv.k_far + kv.v_far > most ? kv.k_far + kv.v_far : most;
        near += kv.k_bytes + kv.v_bytes;
    }
    return most <= near ? most : 0;
}

/* Keys of so many positions each. A step writes those of all blocks that its rows may touch, so there are two more. */
static struct pf_kv_layer keys_of(const struct pf_session_opts *o, enum pf_kv_type type, int ratio, int hd)
{
    int64_t n = ratio == 1 ? o->n_ctx : o->n_ctx / ratio + 2;
    int n_chunks = (int)((n + PF_KV_CHUNK_POSITIONS - 1) / PF_KV_CHUNK_POSITIONS);
    return (struct pf_kv_layer){ .view = { .type = type, .n_kv_head = 1, .hd_k = hd, .hd_v = hd, .n_chunks = n_chunks },
                                 .k_bytes = (size_t)n_chunks * PF_KV_CHUNK_POSITIONS * pf_kv_row_bytes(type, hd) };
}

/* Shape and bytes of the layer's keys of blocks; 0 bytes: it has none. */
struct pf_kv_layer pf_block_kv_layer_of(const struct pf_model *m, int il, const struct pf_session_opts *o)
{
    const struct pf_compressor *c = &m->layers[il].compressed.blocks;
    enum pf_kv_type type = o->kv_type == PF_KV_I16 ? PF_KV_F16 : o->kv_type;
    return c->ratio ? keys_of(o, type, c->ratio, c->width) : (struct pf_kv_layer){ .k_bytes = 0 };
}

/* Shape and bytes of the keys of a layer's indexer; 0 bytes: it has none. Not Q8_0: the choice must not depend on the
 * rounding of small keys. */
struct pf_kv_layer pf_index_kv_layer_of(const struct pf_model *m, int il, const struct pf_session_opts *o)
{
    enum pf_kv_type type = o->kv_type == PF_KV_F32 ? PF_KV_F32 : PF_KV_F16;
    return m->layers[il].has_indexer ? keys_of(o, type, m->index.ratio, m->index.width)
                                     : (struct pf_kv_layer){ .k_bytes = 0 };
}

uint64_t pf_kv_bytes_of(const struct pf_model *m, int il, const struct pf_session_opts *o)
{
    struct pf_kv_layer kv = pf_kv_layer_of(m, il, o);
    return kv.k_bytes + kv.v_bytes + pf_block_kv_layer_of(m, il, o).k_bytes + pf_index_kv_layer_of(m, il, o).k_bytes;
}

/* ---- What a row goes over ---------------------------------------------------------------------------------------- */

/* Positions whose own keys a row at position pos sees. */
static int64_t positions_seen(const struct pf_attention *a, int64_t pos)
{
    if (a->window == 0)
        return pos + 1;
    if (a->chunked)
        return pos % a->window + 1;
    return pos < a->window ? pos + 1 : a->window;
}

static int64_t at_most(int64_t n, int64_t most)
{
    return n < most ? n : most;
}

/* An indexer goes over all its keys, once there are more than it may choose. It chooses blocks where a layer has
 * them, otherwise positions or runs of them, for layers without an indexer too. */
uint64_t pf_kv_read_bytes_of(const struct pf_model *m, int il, const struct pf_session_opts *o, int64_t pos)
{
    const struct pf_layer *layer = &m->layers[il];
    const struct pf_attention *a = &layer->attn;
    enum pf_kv_type type = type_of(m, il, o->kv_type);
    struct pf_kv_layer of_blocks = pf_block_kv_layer_of(m, il, o), of_index = pf_index_kv_layer_of(m, il, o);
    int ratio = of_blocks.k_bytes ? layer->compressed.blocks.ratio : 0;
    int64_t positions = positions_seen(a, pos), blocks = ratio ? (pos + 1) / ratio : 0, keys = 0;
    bool open = m->arch->index_runs;
    int64_t span = (int64_t)m->index.ratio * m->index.run, n_runs = span ? (pos + (open ? span : 1)) / span : 0;
    bool choosing = m->index.max_chosen > 0 && n_runs > m->index.max_chosen;
    if (choosing && layer->has_indexer)
        keys = (pos + 1) / m->index.ratio;
    if (choosing && layer->has_indexer && ratio)
        blocks = at_most(blocks, m->index.max_chosen);
    else if (choosing && (m->arch->mla || layer->has_indexer))
        positions = m->index.max_chosen * span + pos + 1 - n_runs * span;
    return (uint64_t)positions * (uint64_t)a->n_kv_head * position_bytes(a, type) +
           (uint64_t)blocks * (ratio ? pf_kv_row_bytes(of_blocks.view.type, of_blocks.view.hd_k) : 0) +
           (uint64_t)keys * (keys ? pf_kv_row_bytes(of_index.view.type, of_index.view.hd_k) : 0);
}

pf_status pf_session_read_bytes(const pf_model *m, const struct pf_session_opts *opts, int64_t pos, uint64_t *bytes)
{
    struct pf_session_opts o;
    PF_TRY(pf_session_opts_resolve(m, opts, &o));
    if (pos < 0 || pos >= o.n_ctx)
        PF_FAIL(PF_EINVAL, "pos is %lld; the context has positions 0 to %lld", (long long)pos, (long long)o.n_ctx - 1);
    *bytes = 0;
    for (int il = 0; il < m->n_layer; il++)
        *bytes += pf_kv_read_bytes_of(m, il, &o, pos);
    return PF_OK;
}
