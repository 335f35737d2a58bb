/* One file's header, metadata and tensor directory. See gguf.h for the contract, gguf_priv.h for the parts.
 *
 *     0          magic "GGUF", version u32, number of tensors u64, number of entries u64
 *     24         entries:  key string, type u32, value
 *                tensors:  name string, n_dims u32, dimensions u64 each, type u32, offset u64
 *                padding to a multiple of the alignment
 *     data_start tensors' bytes, each at data_start + offset
 *
 * A string is a u64 length and its bytes. Everything is little-endian, as are the machines pfmoe runs on. An array is a
 * u32 element type, a u64 count and the elements; a scalar is read as an array of one. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/pf_mem.h"
#include "gguf/gguf_priv.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF fields are read as they lie");

#define BAD(r, offset, ...) return pf_gguf_bad((r), PF_EFORMAT, (offset), __VA_ARGS__)
#define UNSUPPORTED(r, offset, ...) return pf_gguf_bad((r), PF_EUNSUPPORTED, (offset), __VA_ARGS__)

/* The least bytes an entry and a tensor's record can take, which bounds how many a file can hold. */
enum { HEADER_BYTES = 24, MIN_ENTRY_BYTES = 14, MIN_TENSOR_BYTES = 33 };

static const struct {
    const char *name;
    unsigned bytes;                  /* 0: not of one size */
} value_types[] = {
    [PF_GGUF_U8] = { "u8", 1 },   [PF_GGUF_I8] = { "i8", 1 },   [PF_GGUF_U16] = { "u16", 2 },
    [PF_GGUF_I16] = { "i16", 2 }, [PF_GGUF_U32] = { "u32", 4 }, [PF_GGUF_I32] = { "i32", 4 },
    [PF_GGUF_F32] = { "f32", 4 }, [PF_GGUF_BOOL] = { "bool", 1 }, [PF_GGUF_STRING] = { "string", 0 },
    [PF_GGUF_ARRAY] = { "array", 0 }, [PF_GGUF_U64] = { "u64", 8 }, [PF_GGUF_I64] = { "i64", 8 },
    [PF_GGUF_F64] = { "f64", 8 },
};
enum { N_VALUE_TYPES = sizeof value_types / sizeof value_types[0] };

const char *pf_gguf_type_name(enum pf_gguf_type t)
{
    return value_types[t].name;
}

static void set_item(struct pf_gguf_reader *r, const char *kind, int64_t no)
{
    r->item_kind = kind;
    r->item_no = no;
    r->item_name = (struct pf_str){ 0 };
}

/* ---- Header ---- */

/* Names the format that a file without GGUF's magic seems to have. */
static const char *guess_format(const uint8_t *head, size_t n)
{
    static const struct {
        const char *magic, *what;
        size_t at;
    } known[] = {
        { "lmgg", "an old ggml file: convert the model again", 0 },
        { "fmgg", "an old ggmf file: convert the model again", 0 },
        { "tjgg", "an old ggjt file: convert the model again", 0 },
        { "PK\3\4", "a zip archive, perhaps a PyTorch checkpoint", 0 },
        { "version https", "a git-lfs pointer: the file itself was not downloaded", 0 },
        { "<", "a web page or XML: the download went wrong", 0 },
        { "{\"", "a safetensors file: convert it to GGUF", 8 },
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        size_t len = strlen(known[i].magic);
        if (known[i].at + len <= n && memcmp(head + known[i].at, known[i].magic, len) == 0)
            return known[i].what;
    }
    return "not a GGUF file, or not the first piece of one";
}

static pf_status check_magic(struct pf_gguf_reader *r)
{
    uint8_t head[16];
    size_t n = r->size < sizeof head ? r->size : sizeof head;
    if (n == 0)
        BAD(r, 0, "the file is empty");
    if (n < 4)
        BAD(r, 0, "the file has %zu bytes, too few for the magic 'GGUF'", n);
    PF_TRY(pf_gguf_take(r, head, n, "the magic"));
    if (memcmp(head, "GGUF", 4) != 0)
        BAD(r, 0, "the magic is %02x %02x %02x %02x, not 'GGUF': this is %s", head[0], head[1], head[2], head[3],
            guess_format(head, n));
    r->pos = 4;
    return PF_OK;
}

static pf_status check_version(struct pf_gguf_reader *r, uint32_t version)
{
    if (version != 0 && (version & 0xFFFF) == 0)
        UNSUPPORTED(r, 4, "version %08" PRIx32 " is byte-swapped: a big-endian GGUF, convert it with gguf-py's endian "
                    "converter", version);
    if (version == 1)
        UNSUPPORTED(r, 4, "GGUF version 1 is obsolete since 2023: convert the model again");
    if (version < 2 || version > 3)
        UNSUPPORTED(r, 4, "version %" PRIu32 " is not supported, versions 2 and 3 are", version);
    return PF_OK;
}

static pf_status read_count(struct pf_gguf_reader *r, uint64_t *n, const char *what, uint64_t min_bytes, uint64_t limit)
{
    uint64_t at = r->pos, fits = (r->size - HEADER_BYTES) / min_bytes;
    PF_TRY(pf_gguf_take_u64(r, n, what));
    if (*n >> 63)
        BAD(r, at, "%s is negative (%" PRId64 ")", what, (int64_t)*n);
    if (*n > fits)
        BAD(r, at, "%s is %" PRIu64 ", but a file of %" PRIu64 " bytes holds at most %" PRIu64, what, *n, r->size,
            fits);
    if (*n > limit)
        BAD(r, at, "%s is %" PRIu64 ", above the limit of %" PRIu64, what, *n, limit);
    return PF_OK;
}

static pf_status read_header(struct pf_gguf_reader *r, struct pf_gguf_shard *s)
{
    set_item(r, "header", -1);
    PF_TRY(check_magic(r));
    PF_TRY(pf_gguf_take_u32(r, &s->version, "the version"));
    PF_TRY(check_version(r, s->version));
    if (r->size < HEADER_BYTES)
        BAD(r, 8, "the file ends inside the header, which takes %d bytes where the file has %" PRIu64, HEADER_BYTES,
            r->size);
    PF_TRY(read_count(r, &s->n_tensors, "n_tensors", MIN_TENSOR_BYTES, PF_GGUF_MAX_TENSORS));
    return read_count(r, &s->n_kv, "n_kv", MIN_ENTRY_BYTES, PF_GGUF_MAX_KV);
}

/* ---- Metadata ---- */

static pf_status room(struct pf_gguf_reader *r, uint64_t bytes, size_t align, void **out)
{
    return pf_gguf_arena_alloc(r->arena, r->path, bytes, align, out);
}

/* A length and so many bytes, kept in the arena. */
static pf_status read_string(struct pf_gguf_reader *r, struct pf_str *out, uint64_t limit, const char *what)
{
    uint64_t at = r->pos, n;
    void *p;
    PF_TRY(pf_gguf_take_u64(r, &n, what));
    if (n > pf_gguf_left(r))
        BAD(r, at, "%s is %" PRIu64 " bytes long, but %" PRIu64 " are left in the file", what, n, pf_gguf_left(r));
    if (n > limit)
        BAD(r, at, "%s is %" PRIu64 " bytes long, above the limit of %" PRIu64, what, n, limit);
    PF_TRY(room(r, n, 1, &p));
    PF_TRY(pf_gguf_take(r, p, n, what));
    *out = (struct pf_str){ p, n };
    return PF_OK;
}

static pf_status read_key(struct pf_gguf_reader *r, struct pf_str *key)
{
    uint64_t at = r->pos;
    PF_TRY(read_string(r, key, PF_GGUF_MAX_KEY_BYTES, "the key"));
    if (key->n == 0)
        BAD(r, at, "the key is empty");
    for (size_t i = 0; i < key->n; i++)
        if (key->p[i] < 0x21 || key->p[i] > 0x7E)
            BAD(r, at + 8 + i, "the key '%s' holds the byte 0x%02x, which is not printable ASCII",
                pf_gguf_quote(*key).s, (uint8_t)key->p[i]);
    return PF_OK;
}

static pf_status read_value_type(struct pf_gguf_reader *r, enum pf_gguf_type *type, const char *what)
{
    uint64_t at = r->pos;
    uint32_t id;
    PF_TRY(pf_gguf_take_u32(r, &id, what));
    if (id >= N_VALUE_TYPES)
        BAD(r, at, "%s is %" PRIu32 ", which GGUF does not have", what, id);
    *type = (enum pf_gguf_type)id;
    return PF_OK;
}

static pf_status read_array_head(struct pf_gguf_reader *r, struct pf_gguf_kv *kv)
{
    uint64_t at = r->pos;
    PF_TRY(read_value_type(r, &kv->elem, "the array's element type"));
    if (kv->elem == PF_GGUF_ARRAY)
        UNSUPPORTED(r, at, "the value is an array of arrays");
    at = r->pos;
    PF_TRY(pf_gguf_take_u64(r, &kv->n, "the array's count"));
    uint64_t least = kv->elem == PF_GGUF_STRING ? 8 : value_types[kv->elem].bytes;
    if (kv->n > pf_gguf_left(r) / least)
        BAD(r, at, "the array's count is %" PRIu64 " (%s), but %" PRIu64 " bytes are left in the file", kv->n,
            pf_gguf_type_name(kv->elem), pf_gguf_left(r));
    if (kv->n > PF_GGUF_MAX_ELEMENTS)
        BAD(r, at, "the array's count is %" PRIu64 ", above the limit of %" PRIu64, kv->n, PF_GGUF_MAX_ELEMENTS);
    return PF_OK;
}

static pf_status read_strings(struct pf_gguf_reader *r, struct pf_gguf_kv *kv)
{
    struct pf_str *strings;
    void *p;
    PF_TRY(room(r, kv->n * sizeof *strings, _Alignof(struct pf_str), &p));
    strings = p;
    for (uint64_t i = 0; i < kv->n; i++)
        PF_TRY(read_string(r, &strings[i], PF_GGUF_MAX_STRING_BYTES, "a string"));
    kv->strings = strings;
    return PF_OK;
}

static pf_status read_numbers(struct pf_gguf_reader *r, struct pf_gguf_kv *kv)
{
    uint64_t at = r->pos, bytes = kv->n * value_types[kv->elem].bytes;
    void *p;
    PF_TRY(room(r, bytes, 8, &p));
    PF_TRY(pf_gguf_take(r, p, bytes, "the value"));
    kv->data = p;
    const uint8_t *b = p;
    for (uint64_t i = 0; kv->elem == PF_GGUF_BOOL && i < kv->n; i++)
        if (b[i] > 1)
            BAD(r, at + i, "a bool is %d, neither 0 nor 1", b[i]);
    return PF_OK;
}

static pf_status read_entry(struct pf_gguf_reader *r, struct pf_gguf_kv *kv)
{
    kv->offset = r->pos;
    PF_TRY(read_key(r, &kv->key));
    r->item_name = kv->key;
    PF_TRY(read_value_type(r, &kv->type, "the value's type"));
    kv->elem = kv->type;
    kv->n = 1;
    if (kv->type == PF_GGUF_ARRAY)
        PF_TRY(read_array_head(r, kv));
    return kv->elem == PF_GGUF_STRING ? read_strings(r, kv) : read_numbers(r, kv);
}

static pf_status read_metadata(struct pf_gguf_reader *r, struct pf_gguf_shard *s)
{
    const struct pf_str *twice[2];
    void *p;
    PF_TRY(room(r, s->n_kv * sizeof *s->kv, _Alignof(struct pf_gguf_kv), &p));
    s->kv = p;
    for (uint64_t i = 0; i < s->n_kv; i++) {
        set_item(r, "key", (int64_t)i);
        PF_TRY(read_entry(r, &s->kv[i]));
    }
    PF_TRY(pf_gguf_index_build(&s->keys, r->arena, r->path, s->kv, s->n_kv, sizeof *s->kv, twice));
    if (twice[0]) {
        const struct pf_gguf_kv *a = (const void *)twice[0], *b = (const void *)twice[1];
        r->item_name = a->key;
        BAD(r, b->offset, "the key stands there a second time, first at byte %" PRIu64, a->offset);
    }
    return PF_OK;
}

/* The two general keys that say how the rest of the file is to be read. */
static pf_status check_general(struct pf_gguf_reader *r, struct pf_gguf_shard *s)
{
    const struct pf_gguf_kv *kv = pf_gguf_shard_find(s, "general.alignment");
    s->align = PF_GGUF_DEFAULT_ALIGN;
    if (kv) {
        uint32_t align = 0;
        r->item_name = kv->key;
        if (kv->type != PF_GGUF_U32)
            BAD(r, kv->offset, "the value is of type %s, not u32", pf_gguf_type_name(kv->type));
        memcpy(&align, kv->data, sizeof align);
        if (align < PF_GGUF_MIN_ALIGN || align > PF_GGUF_MAX_ALIGN || (align & (align - 1)))
            BAD(r, kv->offset, "the alignment is %" PRIu32 ", not a power of two from %d to %d", align,
                PF_GGUF_MIN_ALIGN, PF_GGUF_MAX_ALIGN);
        s->align = align;
    }
    int64_t version = 2;
    PF_TRY(pf_gguf_shard_int_opt(s, "general.quantization_version", 0, INT32_MAX, &version, NULL));
    if (version != 2) {
        kv = pf_gguf_shard_find(s, "general.quantization_version");
        r->item_name = kv->key;
        UNSUPPORTED(r, kv->offset, "the value is %" PRId64 ", and only 2 is supported", version);
    }
    return PF_OK;
}

/* ---- Tensor directory ---- */

static pf_status read_tensor_name(struct pf_gguf_reader *r, struct pf_tensor *t)
{
    uint64_t at = r->pos;
    PF_TRY(read_string(r, &t->name, PF_GGUF_MAX_NAME_BYTES, "the tensor's name"));
    if (t->name.n == 0)
        BAD(r, at, "the tensor's name is empty");
    if (memchr(t->name.p, 0, t->name.n))
        BAD(r, at, "the tensor's name '%s' holds a NUL byte", pf_gguf_quote(t->name).s);
    return PF_OK;
}

/* Multiplied step by step: a product of everything at once could wrap to a harmless number. */
static pf_status read_dimensions(struct pf_gguf_reader *r, struct pf_tensor *t)
{
    uint64_t at = r->pos, dim;
    uint32_t n_dims;
    int64_t n_elements = 1;
    PF_TRY(pf_gguf_take_u32(r, &n_dims, "n_dims"));
    if (n_dims < 1 || n_dims > 4)
        BAD(r, at, "n_dims is %" PRIu32 ", not from 1 to 4", n_dims);
    t->n_dims = (int)n_dims;
    for (int i = 0; i < 4; i++)
        t->ne[i] = 1;
    for (int i = 0; i < t->n_dims; i++) {
        at = r->pos;
        PF_TRY(pf_gguf_take_u64(r, &dim, "a dimension"));
        if (dim < 1 || dim > PF_GGUF_MAX_DIM)
            BAD(r, at, "dimension %d is %" PRIu64 ", not from 1 to 2^40", i, dim);
        t->ne[i] = (int64_t)dim;
        if (__builtin_mul_overflow(n_elements, t->ne[i], &n_elements))
            BAD(r, at, "the product of the dimensions up to dimension %d overflows", i);
    }
    return PF_OK;
}

static pf_status read_type(struct pf_gguf_reader *r, struct pf_tensor *t)
{
    uint64_t at = r->pos;
    uint32_t id;
    PF_TRY(pf_gguf_take_u32(r, &id, "the tensor's type"));
    const struct pf_qtype_info *info = pf_qtype_info(id);
    if (!info)
        UNSUPPORTED(r, at, "tensor type %" PRIu32 ": %s", id, pf_qtype_refusal(id));
    t->type = (enum pf_qtype)id;
    if (t->ne[0] % info->block_len)
        BAD(r, at, "dimension 0 is %" PRId64 ", not a multiple of the %d elements in a block of %s", t->ne[0],
            info->block_len, info->name);
    t->row_bytes = pf_qtype_row_bytes(t->type, (uint64_t)t->ne[0]);
    t->n_bytes = t->row_bytes;
    for (int i = 1; i < 4; i++)
        if (__builtin_mul_overflow(t->n_bytes, (uint64_t)t->ne[i], &t->n_bytes))
            BAD(r, at, "the tensor's size in bytes overflows");
    return PF_OK;
}

static pf_status read_tensor(struct pf_gguf_reader *r, struct pf_tensor *t, uint64_t align)
{
    PF_TRY(read_tensor_name(r, t));
    r->item_name = t->name;
    PF_TRY(read_dimensions(r, t));
    PF_TRY(read_type(r, t));
    uint64_t at = r->pos;
    PF_TRY(pf_gguf_take_u64(r, &t->offset, "the tensor's offset"));
    if (t->offset % align)
        BAD(r, at, "the offset %" PRIu64 " is not a multiple of the alignment %" PRIu64, t->offset, align);
    return PF_OK;
}

static pf_status read_directory(struct pf_gguf_reader *r, pf_gguf *g, int shard)
{
    struct pf_gguf_shard *s = &g->shards[shard];
    if (s->n_tensors > PF_GGUF_MAX_TENSORS - g->n_tensors) {
        set_item(r, "header", -1);
        BAD(r, 8, "n_tensors is %" PRIu64 ", which makes more than %d in all shards", s->n_tensors,
            PF_GGUF_MAX_TENSORS);
    }
    uint64_t total = g->n_tensors + s->n_tensors;
    struct pf_tensor *grown = pf_realloc(PF_MEM_GGUF, g->tensors, total * sizeof *grown);
    if (!grown)
        PF_FAIL(PF_ENOMEM, "%s: no memory for the directory of %" PRIu64 " tensors", r->path, total);
    g->tensors = grown;
    s->first_tensor = g->n_tensors;
    for (uint64_t i = 0; i < s->n_tensors; i++) {
        struct pf_tensor *t = &g->tensors[g->n_tensors];
        *t = (struct pf_tensor){ .shard = shard };
        set_item(r, "tensor", (int64_t)i);
        PF_TRY(read_tensor(r, t, s->align));
        g->n_tensors++;
    }
    return PF_OK;
}

/* ---- Where the tensors lie ---- */

static uint64_t padded(uint64_t n, uint64_t align)
{
    return n + (align - n % align) % align;
}

/* Turns the tensors' offsets into absolute ones, all inside the file. */
static pf_status check_bounds(struct pf_gguf_reader *r, const struct pf_gguf_shard *s, struct pf_tensor *tensors)
{
    const struct pf_tensor *first_past = NULL;
    uint64_t end_of_all = 0;
    for (uint64_t i = 0; i < s->n_tensors; i++) {
        struct pf_tensor *t = &tensors[i];
        uint64_t end;
        r->item_name = t->name;
        if (__builtin_add_overflow(t->offset, s->data_start, &t->offset) ||
            __builtin_add_overflow(t->offset, t->n_bytes, &end))
            BAD(r, s->data_start, "the tensor's offset and its %" PRIu64 " bytes add up to more than 64 bits",
                t->n_bytes);
        if (end > end_of_all)
            end_of_all = end;
        if (end > r->size && (!first_past || t->offset < first_past->offset))
            first_past = t;
    }
    if (first_past) {
        r->item_name = first_past->name;
        BAD(r, first_past->offset, "the tensor's %" PRIu64 " bytes run past the end of the file, which has %" PRIu64
            " bytes and should have %" PRIu64 ": an incomplete download?", first_past->n_bytes, r->size, end_of_all);
    }
    return PF_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct pf_tensor *x = *(const struct pf_tensor *const *)a, *y = *(const struct pf_tensor *const *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static pf_status check_overlaps(struct pf_gguf_reader *r, const struct pf_tensor *tensors, uint64_t n)
{
    const struct pf_tensor **order = pf_alloc_array(PF_MEM_GGUF, n, sizeof *order);
    if (!order)
        PF_FAIL(PF_ENOMEM, "%s: no memory to sort %" PRIu64 " tensors", r->path, n);
    for (uint64_t i = 0; i < n; i++)
        order[i] = &tensors[i];
    qsort(order, n, sizeof *order, by_offset);
    pf_status st = PF_OK;
    for (uint64_t i = 1; i < n && st == PF_OK; i++) {
        const struct pf_tensor *a = order[i - 1], *b = order[i];
        r->item_name = b->name;
        if (b->offset - a->offset < a->n_bytes)
            st = pf_gguf_bad(r, PF_EFORMAT, b->offset, "the tensor overlaps tensor '%s', which begins at byte %" PRIu64,
                             pf_gguf_quote(a->name).s, a->offset);
    }
    pf_free(order);
    return st;
}

/* Most files have their tensors back to back in the order of the directory, and then nothing can overlap. Any other
 * order is fine here, but other readers refuse it. */
static pf_status check_placement(struct pf_gguf_reader *r, pf_gguf *g, int shard)
{
    const struct pf_gguf_shard *s = &g->shards[shard];
    struct pf_tensor *tensors = g->tensors + s->first_tensor;
    uint64_t next, end = 0;
    bool in_order = true;
    if (s->n_tensors == 0)
        return PF_OK;
    set_item(r, "tensor", 0);
    if (s->data_start > r->size) {
        r->item_name = tensors[0].name;
        BAD(r, r->pos, "the file ends at byte %" PRIu64 ", before the tensor data at byte %" PRIu64, r->size,
            s->data_start);
    }
    PF_TRY(check_bounds(r, s, tensors));
    next = s->data_start;
    for (uint64_t i = 0; i < s->n_tensors; i++) {
        in_order = in_order && tensors[i].offset == next;
        next = s->data_start + padded(tensors[i].offset + tensors[i].n_bytes - s->data_start, s->align);
        end = next > end ? next : end;
    }
    if (!in_order) {
        PF_TRY(check_overlaps(r, tensors, s->n_tensors));
        pf_gguf_warn(g, shard, "the tensors do not lie back to back in the order of their directory; other programs "
                     "may refuse the file");
    }
    if (r->size > end && r->size - end > s->align)
        pf_gguf_warn(g, shard, "%" PRIu64 " bytes after the last tensor, from byte %" PRIu64 " on, belong to nothing",
                     r->size - end, end);
    return PF_OK;
}

static pf_status parse(struct pf_gguf_reader *r, pf_gguf *g, int shard, unsigned flags)
{
    struct pf_gguf_shard *s = &g->shards[shard];
    PF_TRY(read_header(r, s));
    PF_TRY(read_metadata(r, s));
    PF_TRY(check_general(r, s));
    if (flags & PF_GGUF_VOCAB_ONLY) {
        s->n_tensors = 0;
        return PF_OK;
    }
    PF_TRY(read_directory(r, g, shard));
    s->data_start = padded(r->pos, s->align);
    return check_placement(r, g, shard);
}

pf_status pf_gguf_parse(pf_gguf *g, int shard, int fd, unsigned flags)
{
    const struct pf_gguf_shard *s = &g->shards[shard];
    struct pf_gguf_reader *r = pf_alloc(PF_MEM_GGUF, sizeof *r);
    if (!r)
        PF_FAIL(PF_ENOMEM, "%s: no memory to read the file", s->path);
    r->path = s->path;
    r->fd = fd;
    r->size = (uint64_t)s->id.st_size;
    r->arena = &g->arena;
    pf_status st = parse(r, g, shard, flags);
    pf_free(r);
    return st;
}
