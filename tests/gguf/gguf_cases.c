/* The damaged files. Each is the same small model, two F32 tensors of 32 elements, with one thing changed. The numbers
 * group the kinds of damage: 1-13 header, 14-32 metadata, 33-39 general keys, 41-55 tensor directory, 56-62 tensor
 * data; test_gguf_split.c and test_gguf_get.c have those from 63 on. */
#include "gguf_cases.h"

#include <stdlib.h>
#include <string.h>

#define HUGE_N UINT64_C(0xFFFFFFFFFFFFFFF0)

/* ---- Parts of the small model ---- */

static void arch(struct buf *b)
{
    put_kv_string(b, "general.architecture", "llama");
}

/* Header and architecture; n_more entries are to follow, then the tensors. */
static void head(struct buf *b, uint64_t n_tensors, uint64_t n_more)
{
    put_header(b, 3, n_tensors, 1 + n_more);
    arch(b);
}

static void two_tensors(struct buf *b)
{
    put_tensor(b, "t.first", PF_F32, 32, 1, 0);
    put_tensor(b, "t.second", PF_F32, 32, 1, 128);
    pad_to(b, 32);
    put_zeros(b, 256);
}

static void good(struct buf *b)
{
    head(b, 2, 0);
    two_tensors(b);
}

/* One tensor record of any shape, and data for a small one. */
static void one_tensor(struct buf *b, const char *name, size_t name_n, uint32_t n_dims, const uint64_t *ne,
                       uint32_t type, uint64_t offset)
{
    head(b, 1, 0);
    put_bytes(b, name, name_n);
    put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims && i < 8; i++)
        put_u64(b, ne[i]);
    put_u32(b, type);
    put_u64(b, offset);
    pad_to(b, 32);
    put_zeros(b, 256);
}

static void tensor_of(struct buf *b, uint32_t n_dims, uint64_t ne0, uint64_t ne1, uint64_t ne2, uint32_t type)
{
    uint64_t ne[8] = { ne0, ne1, ne2, 1, 1, 1, 1, 1 };
    one_tensor(b, "t.only", 6, n_dims, ne, type, 0);
}

static void tensor_named(struct buf *b, const char *name, size_t n)
{
    uint64_t ne[4] = { 32, 1, 1, 1 };
    one_tensor(b, name, n, 1, ne, PF_F32, 0);
}

static void two_tensors_at(struct buf *b, uint64_t first, uint64_t second, size_t data_bytes)
{
    head(b, 2, 0);
    put_tensor(b, "t.first", PF_F32, 32, 1, first);
    put_tensor(b, "t.second", PF_F32, 32, 1, second);
    pad_to(b, 32);
    put_zeros(b, data_bytes);
}

/* One more key of raw bytes: the given type and value. */
static void key_value(struct buf *b, uint32_t type, const void *value, size_t n)
{
    head(b, 2, 1);
    put_key(b, "t.key", type);
    put(b, value, n);
    two_tensors(b);
}

static void string_of_length(struct buf *b, uint64_t n)
{
    key_value(b, PF_GGUF_STRING, &n, sizeof n);
}

static void array_of(struct buf *b, uint32_t elem, uint64_t n)
{
    head(b, 2, 1);
    put_array(b, "t.key", elem, n);
    two_tensors(b);
}

static void key_bytes(struct buf *b, const char *key, size_t n)
{
    head(b, 2, 1);
    put_bytes(b, key, n);
    put_u32(b, PF_GGUF_U32);
    put_u32(b, 1);
    two_tensors(b);
}

static void key_of_length(struct buf *b, uint64_t n)
{
    head(b, 2, 1);
    put_u64(b, n);
    two_tensors(b);
}

static void alignment(struct buf *b, enum pf_gguf_type type, int64_t v)
{
    head(b, 2, 1);
    put_kv_int(b, "general.alignment", type, v);
    two_tensors(b);
}

static void other_magic(struct buf *b, const void *magic, size_t n)
{
    good(b);
    memcpy(b->p, magic, n);
}

static void version(struct buf *b, uint32_t v)
{
    good(b);
    memcpy(b->p + 4, &v, sizeof v);
}

static void count_at(struct buf *b, size_t at, uint64_t v)
{
    good(b);
    memcpy(b->p + at, &v, sizeof v);
}

/* ---- The cases ---- */

static void empty(struct buf *b) { put(b, "", 0); }
static void three_bytes(struct buf *b) { put(b, "GGU", 3); }
static void wrong_magic(struct buf *b) { other_magic(b, "BLOB", 4); }
static void old_ggml(struct buf *b) { other_magic(b, "lmgg", 4); }
static void old_ggmf(struct buf *b) { other_magic(b, "fmgg", 4); }
static void old_ggjt(struct buf *b) { other_magic(b, "tjgg", 4); }
static void zip(struct buf *b) { other_magic(b, "PK\3\4", 4); }
static void safetensors(struct buf *b) { other_magic(b, "\x40\0\0\0\0\0\0\0{\"", 10); }
static void lfs_pointer(struct buf *b) { other_magic(b, "version https://git-lfs", 23); }
static void web_page(struct buf *b) { other_magic(b, "<!DOCTYPE html>", 15); }
static void short_header(struct buf *b) { good(b); b->n = 23; }
static void header_of_4(struct buf *b) { good(b); b->n = 4; }
static void version_0(struct buf *b) { version(b, 0); }
static void version_1(struct buf *b) { version(b, 1); }
static void version_4(struct buf *b) { version(b, 4); }
static void big_endian(struct buf *b) { version(b, 0x03000000); }
static void tensors_negative(struct buf *b) { count_at(b, 8, UINT64_C(1) << 63); }
static void tensors_too_many(struct buf *b) { count_at(b, 8, 1000); }
static void kv_negative(struct buf *b) { count_at(b, 16, UINT64_MAX); }
static void kv_too_many(struct buf *b) { count_at(b, 16, 1000); }
static void kv_one_more(struct buf *b) { count_at(b, 16, 2); }

static void key_empty(struct buf *b) { key_bytes(b, "", 0); }
static void key_past_end(struct buf *b) { key_of_length(b, 10000); }
static void key_wraps(struct buf *b) { key_of_length(b, HUGE_N); }
static void key_too_long(struct buf *b)
{
    char *key = calloc(1, 65536);
    memset(key, 'k', 65536);
    key_bytes(b, key, 65536);
    free(key);
}
static void key_with_nul(struct buf *b) { key_bytes(b, "t.a\0x", 5); }
static void key_with_control(struct buf *b) { key_bytes(b, "t.a\n", 4); }
static void key_not_ascii(struct buf *b) { key_bytes(b, "t.\xC3\xA9", 4); }
static void key_with_space(struct buf *b) { key_bytes(b, "t. a", 4); }
static void key_twice(struct buf *b)
{
    head(b, 2, 2);
    put_kv_u32(b, "t.key", 1);
    put_kv_u32(b, "t.key", 2);
    two_tensors(b);
}
static void type_13(struct buf *b) { key_value(b, 13, "\0\0\0\0", 4); }
static void type_max(struct buf *b) { key_value(b, UINT32_MAX, "\0\0\0\0", 4); }
static void bool_2(struct buf *b) { key_value(b, PF_GGUF_BOOL, "\2", 1); }
static void bool_2_in_array(struct buf *b)
{
    head(b, 2, 1);
    put_array(b, "t.key", PF_GGUF_BOOL, 3);
    put(b, "\1\0\xFF", 3);
    two_tensors(b);
}
static void string_past_end(struct buf *b) { string_of_length(b, 100000); }
static void string_2_63(struct buf *b) { string_of_length(b, UINT64_C(1) << 63); }
static void string_2_64(struct buf *b) { string_of_length(b, UINT64_MAX); }
static void elem_13(struct buf *b) { array_of(b, 13, 1); }
static void array_of_arrays(struct buf *b) { array_of(b, PF_GGUF_ARRAY, 1); }
static void array_past_end(struct buf *b) { array_of(b, PF_GGUF_U32, 1000); }
static void array_wraps(struct buf *b) { array_of(b, PF_GGUF_U64, (UINT64_C(1) << 61) + 1); }
static void strings_do_not_fit(struct buf *b) { array_of(b, PF_GGUF_STRING, 100); }
static void third_string_past_end(struct buf *b)
{
    head(b, 2, 1);
    put_array(b, "t.key", PF_GGUF_STRING, 3);
    put_string(b, "a");
    put_string(b, "b");
    put_u64(b, 5000);
    two_tensors(b);
}
static void ends_in_scalar(struct buf *b)
{
    head(b, 0, 1);
    put_key(b, "t.long.enough.a.key", PF_GGUF_U64);
    put_u32(b, 0);
}
static void ends_in_type(struct buf *b)
{
    head(b, 0, 1);
    put_string(b, "t.long.enough.a.key");
    put(b, "\0", 1);
}

static void align_u64(struct buf *b) { alignment(b, PF_GGUF_U64, 32); }
static void align_i32(struct buf *b) { alignment(b, PF_GGUF_I32, 32); }
static void align_0(struct buf *b) { alignment(b, PF_GGUF_U32, 0); }
static void align_48(struct buf *b) { alignment(b, PF_GGUF_U32, 48); }
static void align_1(struct buf *b) { alignment(b, PF_GGUF_U32, 1); }
static void align_4(struct buf *b) { alignment(b, PF_GGUF_U32, 4); }
static void align_2_31(struct buf *b) { alignment(b, PF_GGUF_U32, INT64_C(1) << 31); }
static void align_2_17(struct buf *b) { alignment(b, PF_GGUF_U32, INT64_C(1) << 17); }
static void quantization_3(struct buf *b)
{
    head(b, 2, 1);
    put_kv_u32(b, "general.quantization_version", 3);
    two_tensors(b);
}
static void quantization_string(struct buf *b)
{
    head(b, 2, 1);
    put_kv_string(b, "general.quantization_version", "2");
    two_tensors(b);
}

static void name_empty(struct buf *b) { tensor_named(b, "", 0); }
static void name_64(struct buf *b)
{
    tensor_named(b, "a234567890123456789012345678901234567890123456789012345678901234", 64);
}
static void name_with_nul(struct buf *b) { tensor_named(b, "t.a\0b", 5); }
static void name_twice(struct buf *b)
{
    head(b, 2, 0);
    put_tensor(b, "t.same", PF_F32, 32, 1, 0);
    put_tensor(b, "t.same", PF_F32, 32, 1, 128);
    pad_to(b, 32);
    put_zeros(b, 256);
}
static void dims_0(struct buf *b) { tensor_of(b, 0, 0, 0, 0, PF_F32); }
static void dims_5(struct buf *b) { tensor_of(b, 5, 1, 1, 1, PF_F32); }
static void dims_max(struct buf *b) { tensor_of(b, UINT32_MAX, 1, 1, 1, PF_F32); }
static void dim_zero(struct buf *b) { tensor_of(b, 2, 32, 0, 1, PF_F32); }
static void dim_2_63(struct buf *b) { tensor_of(b, 2, 32, UINT64_C(1) << 63, 1, PF_F32); }
static void dims_wrap_to_zero(struct buf *b) { tensor_of(b, 2, UINT64_C(1) << 32, UINT64_C(1) << 32, 1, PF_F32); }
static void dims_wrap(struct buf *b) { tensor_of(b, 3, UINT64_C(1) << 40, 3, UINT64_C(1) << 23, PF_F32); }
static void bytes_wrap(struct buf *b) { tensor_of(b, 3, UINT64_C(1) << 40, 3, UINT64_C(1) << 21, PF_F64); }
static void row_not_blocks(struct buf *b) { tensor_of(b, 2, 48, 2, 1, PF_Q4_0); }
static void type_of_ollama(struct buf *b) { tensor_of(b, 1, 32, 1, 1, 4); }
static void type_5(struct buf *b) { tensor_of(b, 1, 32, 1, 1, 5); }
static void type_31(struct buf *b) { tensor_of(b, 1, 32, 1, 1, 31); }
static void type_33(struct buf *b) { tensor_of(b, 1, 32, 1, 1, 33); }
static void type_36(struct buf *b) { tensor_of(b, 1, 32, 1, 1, 36); }
static void type_38(struct buf *b) { tensor_of(b, 1, 32, 1, 1, 38); }
static void type_43(struct buf *b) { tensor_of(b, 1, 32, 1, 1, 43); }
static void type_ffffffff(struct buf *b) { tensor_of(b, 1, 32, 1, 1, UINT32_MAX); }
static void type_139(struct buf *b) { tensor_of(b, 1, 256, 1, 1, 139); }
static void type_152(struct buf *b) { tensor_of(b, 1, 256, 1, 1, 152); }
static void type_97(struct buf *b) { tensor_of(b, 1, 256, 1, 1, 97); }
static void type_212(struct buf *b) { tensor_of(b, 1, 256, 1, 1, 212); }
static void type_398(struct buf *b) { tensor_of(b, 1, 256, 1, 1, 398); }
static void directory_cut(struct buf *b)
{
    head(b, 2, 0);
    put_tensor(b, "t.first", PF_F32, 32, 1, 0);
    put_string(b, "t.second.that.is.cut.short");
}

static void offset_odd(struct buf *b) { two_tensors_at(b, 0, 136, 512); }
static void offset_past_end(struct buf *b) { two_tensors_at(b, 0, 1 << 20, 256); }
static void offset_wraps(struct buf *b) { two_tensors_at(b, 0, UINT64_MAX - 31, 256); }
static void end_wraps(struct buf *b) { two_tensors_at(b, 0, UINT64_MAX - 511, 256); }
static void data_cut(struct buf *b) { good(b); b->n -= 1; }
static void overlap(struct buf *b) { two_tensors_at(b, 0, 96, 256); }
static void overlap_backwards(struct buf *b) { two_tensors_at(b, 96, 0, 256); }
static void same_offset(struct buf *b) { two_tensors_at(b, 0, 0, 256); }
static void no_padding(struct buf *b)
{
    head(b, 1, 0);
    put_tensor(b, "t.only", PF_F32, 32, 1, 0);
    put_zeros(b, b->n % 32 == 0 ? 0 : 1);
}
static void no_tensors(struct buf *b) { head(b, 0, 0); }

const struct bad_case bad_cases[] = {
    { 1, "empty", empty, PF_EFORMAT, "empty", "byte 0" },
    { 2, "three-bytes", three_bytes, PF_EFORMAT, "magic", "3 bytes" },
    { 3, "wrong-magic", wrong_magic, PF_EFORMAT, "magic", "42 4c 4f 42" },
    { 3, "old-ggml", old_ggml, PF_EFORMAT, "magic", "old ggml" },
    { 3, "old-ggmf", old_ggmf, PF_EFORMAT, "magic", "old ggmf" },
    { 3, "old-ggjt", old_ggjt, PF_EFORMAT, "magic", "old ggjt" },
    { 3, "zip", zip, PF_EFORMAT, "magic", "zip" },
    { 3, "safetensors", safetensors, PF_EFORMAT, "magic", "safetensors" },
    { 3, "lfs-pointer", lfs_pointer, PF_EFORMAT, "magic", "git-lfs" },
    { 3, "web-page", web_page, PF_EFORMAT, "magic", "web page" },
    { 4, "header-of-4", header_of_4, PF_EFORMAT, "the version", "byte 4" },
    { 4, "short-header", short_header, PF_EFORMAT, "header", "23" },
    { 5, "version-0", version_0, PF_EUNSUPPORTED, "version 0", "2 and 3" },
    { 6, "version-1", version_1, PF_EUNSUPPORTED, "version 1 is obsolete", "convert" },
    { 7, "version-4", version_4, PF_EUNSUPPORTED, "version 4", "2 and 3" },
    { 8, "big-endian", big_endian, PF_EUNSUPPORTED, "big-endian", "convert" },
    { 9, "tensors-negative", tensors_negative, PF_EFORMAT, "n_tensors", "negative" },
    { 10, "tensors-too-many", tensors_too_many, PF_EFORMAT, "n_tensors is 1000", "byte 8" },
    { 11, "kv-negative", kv_negative, PF_EFORMAT, "n_kv", "negative" },
    { 12, "kv-too-many", kv_too_many, PF_EFORMAT, "n_kv is 1000", "byte 16" },
    { 13, "kv-one-more", kv_one_more, PF_EFORMAT, "tensor 0", "name is 281474976710656 bytes long" },
    { 14, "key-empty", key_empty, PF_EFORMAT, "key 1", "empty" },
    { 15, "key-past-end", key_past_end, PF_EFORMAT, "key 1", "10000 bytes long" },
    { 16, "key-wraps", key_wraps, PF_EFORMAT, "key 1", "18446744073709551600 bytes long" },
    { 17, "key-too-long", key_too_long, PF_EFORMAT, "key 1", "limit of 65535" },
    { 18, "key-with-nul", key_with_nul, PF_EFORMAT, "t.a?x", "0x00" },
    { 19, "key-with-control", key_with_control, PF_EFORMAT, "t.a?", "0x0a" },
    { 19, "key-not-ascii", key_not_ascii, PF_EFORMAT, "key 1", "0xc3" },
    { 19, "key-with-space", key_with_space, PF_EFORMAT, "key 1", "0x20" },
    { 20, "key-twice", key_twice, PF_EFORMAT, "key 't.key'", "second time" },
    { 21, "type-13", type_13, PF_EFORMAT, "key 't.key'", "type is 13" },
    { 21, "type-max", type_max, PF_EFORMAT, "key 't.key'", "type is 4294967295" },
    { 22, "bool-2", bool_2, PF_EFORMAT, "key 't.key'", "bool is 2" },
    { 23, "bool-2-in-array", bool_2_in_array, PF_EFORMAT, "key 't.key'", "bool is 255" },
    { 24, "string-past-end", string_past_end, PF_EFORMAT, "key 't.key'", "100000 bytes long" },
    { 25, "string-2-63", string_2_63, PF_EFORMAT, "key 't.key'", "9223372036854775808 bytes long" },
    { 25, "string-2-64", string_2_64, PF_EFORMAT, "key 't.key'", "18446744073709551615 bytes long" },
    { 26, "elem-13", elem_13, PF_EFORMAT, "key 't.key'", "element type is 13" },
    { 27, "array-of-arrays", array_of_arrays, PF_EUNSUPPORTED, "key 't.key'", "array of arrays" },
    { 28, "array-past-end", array_past_end, PF_EFORMAT, "key 't.key'", "count is 1000" },
    { 29, "array-wraps", array_wraps, PF_EFORMAT, "key 't.key'", "count is 2305843009213693953" },
    { 30, "strings-do-not-fit", strings_do_not_fit, PF_EFORMAT, "key 't.key'", "count is 100 (string)" },
    { 31, "third-string-past-end", third_string_past_end, PF_EFORMAT, "key 't.key'", "5000 bytes long" },
    { 32, "ends-in-scalar", ends_in_scalar, PF_EFORMAT, "key 't.long.enough.a.key'", "ends inside the value" },
    { 32, "ends-in-type", ends_in_type, PF_EFORMAT, "key 't.long.enough.a.key'", "ends inside the value's type" },
    { 33, "align-u64", align_u64, PF_EFORMAT, "general.alignment", "type u64, not u32" },
    { 33, "align-i32", align_i32, PF_EFORMAT, "general.alignment", "type i32, not u32" },
    { 34, "align-0", align_0, PF_EFORMAT, "general.alignment", "is 0, not a power of two" },
    { 35, "align-48", align_48, PF_EFORMAT, "general.alignment", "is 48, not a power of two" },
    { 36, "align-1", align_1, PF_EFORMAT, "general.alignment", "is 1, not a power of two" },
    { 36, "align-4", align_4, PF_EFORMAT, "general.alignment", "is 4, not a power of two" },
    { 37, "align-2-31", align_2_31, PF_EFORMAT, "general.alignment", "is 2147483648, not" },
    { 37, "align-2-17", align_2_17, PF_EFORMAT, "general.alignment", "is 131072, not" },
    { 39, "quantization-3", quantization_3, PF_EUNSUPPORTED, "general.quantization_version", "is 3" },
    { 39, "quantization-string", quantization_string, PF_EFORMAT, "general.quantization_version", "type string" },
    { 41, "name-empty", name_empty, PF_EFORMAT, "tensor 0", "name is empty" },
    { 42, "name-64", name_64, PF_EFORMAT, "tensor 0", "64 bytes long, above the limit of 63" },
    { 43, "name-with-nul", name_with_nul, PF_EFORMAT, "t.a?b", "NUL" },
    { 44, "name-twice", name_twice, PF_EFORMAT, "tensor 't.same'", "twice" },
    { 45, "dims-0", dims_0, PF_EFORMAT, "tensor 't.only'", "n_dims is 0" },
    { 46, "dims-5", dims_5, PF_EFORMAT, "tensor 't.only'", "n_dims is 5" },
    { 46, "dims-max", dims_max, PF_EFORMAT, "tensor 't.only'", "n_dims is 4294967295" },
    { 47, "dim-zero", dim_zero, PF_EFORMAT, "tensor 't.only'", "dimension 1 is 0" },
    { 48, "dim-2-63", dim_2_63, PF_EFORMAT, "tensor 't.only'", "dimension 1 is 9223372036854775808" },
    { 49, "dims-wrap-to-zero", dims_wrap_to_zero, PF_EFORMAT, "tensor 't.only'", "product of the dimensions" },
    { 50, "dims-wrap", dims_wrap, PF_EFORMAT, "tensor 't.only'", "product of the dimensions" },
    { 50, "bytes-wrap", bytes_wrap, PF_EFORMAT, "tensor 't.only'", "size in bytes overflows" },
    { 51, "row-not-blocks", row_not_blocks, PF_EFORMAT, "tensor 't.only'", "not a multiple of the 32" },
    { 52, "type-of-ollama", type_of_ollama, PF_EUNSUPPORTED, "tensor type 4", "ollama" },
    { 52, "type-5", type_5, PF_EUNSUPPORTED, "tensor type 5", "removed type Q4_3" },
    { 52, "type-31", type_31, PF_EUNSUPPORTED, "tensor type 31", "removed" },
    { 52, "type-33", type_33, PF_EUNSUPPORTED, "tensor type 33", "removed" },
    { 52, "type-36", type_36, PF_EUNSUPPORTED, "tensor type 36", "removed" },
    { 52, "type-38", type_38, PF_EUNSUPPORTED, "tensor type 38", "removed" },
    { 53, "type-43", type_43, PF_EUNSUPPORTED, "tensor type 43", "unknown" },
    { 53, "type-ffffffff", type_ffffffff, PF_EUNSUPPORTED, "tensor type 4294967295", "unknown" },
    { 54, "type-139", type_139, PF_EUNSUPPORTED, "tensor type 139", "ik_llama.cpp type IQ4_K" },
    { 54, "type-152", type_152, PF_EUNSUPPORTED, "tensor type 152", "ik_llama.cpp type IQ5_KS" },
    { 54, "type-97", type_97, PF_EUNSUPPORTED, "tensor type 97", "ik_llama.cpp type for activations" },
    { 54, "type-212", type_212, PF_EUNSUPPORTED, "tensor type 212", "row-interleaved ik_llama.cpp type" },
    { 54, "type-398", type_398, PF_EUNSUPPORTED, "tensor type 398", "row-interleaved ik_llama.cpp type" },
    { 55, "directory-cut", directory_cut, PF_EFORMAT, "tensor 't.second.that.is.cut.short'", "ends inside n_dims" },
    { 56, "offset-odd", offset_odd, PF_EFORMAT, "tensor 't.second'", "offset 136 is not a multiple" },
    { 57, "offset-past-end", offset_past_end, PF_EFORMAT, "tensor 't.second'", "past the end" },
    { 58, "offset-wraps", offset_wraps, PF_EFORMAT, "tensor 't.second'", "64 bits" },
    { 58, "end-wraps", end_wraps, PF_EFORMAT, "tensor 't.second'", "past the end" },
    { 59, "data-cut", data_cut, PF_EFORMAT, "tensor 't.second'", "incomplete download" },
    { 60, "overlap", overlap, PF_EFORMAT, "tensor 't.second'", "overlaps tensor 't.first'" },
    { 60, "overlap-backwards", overlap_backwards, PF_EFORMAT, "tensor 't.first'", "overlaps tensor 't.second'" },
    { 60, "same-offset", same_offset, PF_EFORMAT, "overlaps", "t.first" },
    { 61, "no-padding", no_padding, PF_EFORMAT, "tensor 't.only'", "before the tensor data" },
    { 62, "no-tensors", no_tensors, PF_EFORMAT, "n_tensors", "no model" },
};
const int n_bad_cases = sizeof bad_cases / sizeof bad_cases[0];

/* ---- Odd, and right ---- */

static void rich(struct buf *b) { put_rich_file(b, 256, 1); }
static void version_2(struct buf *b) { version(b, 2); }
static void strange_keys(struct buf *b)
{
    put_header(b, 3, 2, 4);
    put_kv_string(b, "Upper-Case.and-dashes_2", "");
    put_array(b, "general.tags", PF_GGUF_STRING, 0);
    put_array(b, "t.empty", PF_GGUF_F64, 0);
    arch(b);
    two_tensors(b);
}
static void unaligned_array(struct buf *b)
{
    head(b, 2, 2);
    put_kv_int(b, "t.x", PF_GGUF_U8, 7);
    put_array(b, "t.key", PF_GGUF_U64, 2);
    put_u64(b, 1);
    put_u64(b, 2);
    two_tensors(b);
}
static void no_final_padding(struct buf *b)
{
    head(b, 1, 0);
    put_tensor(b, "t.only", PF_Q8_0, 32, 1, 0);
    pad_to(b, 32);
    put_zeros(b, 34);
}
static void few_trailing_bytes(struct buf *b) { good(b); put_zeros(b, 32); }
static void many_trailing_bytes(struct buf *b) { good(b); put_zeros(b, 33); }
static void gap(struct buf *b) { two_tensors_at(b, 0, 256, 384); }
static void first_not_at_0(struct buf *b) { two_tensors_at(b, 32, 160, 288); }
static void backwards(struct buf *b) { two_tensors_at(b, 128, 0, 256); }
static void align_64(struct buf *b)
{
    head(b, 2, 1);
    put_kv_u32(b, "general.alignment", 64);
    put_tensor(b, "t.first", PF_F32, 8, 1, 0);
    put_tensor(b, "t.second", PF_F32, 8, 1, 64);
    pad_to(b, 64);
    put_zeros(b, 96);
}
static void no_metadata(struct buf *b)
{
    put_header(b, 3, 2, 0);
    two_tensors(b);
}
static void name_63(struct buf *b)
{
    tensor_named(b, "a23456789012345678901234567890123456789012345678901234567890123", 63);
}
static void four_dims(struct buf *b)
{
    uint64_t ne[4] = { 2, 2, 2, 8 };
    one_tensor(b, "t.only", 6, 4, ne, PF_F32, 0);
}
static void split_of_one(struct buf *b)
{
    head(b, 2, 3);
    put_kv_int(b, "split.no", PF_GGUF_U16, 0);
    put_kv_int(b, "split.count", PF_GGUF_U16, 1);
    put_kv_int(b, "split.tensors.count", PF_GGUF_I32, 2);
    two_tensors(b);
}
static void quantization_2_as_u64(struct buf *b)
{
    head(b, 2, 1);
    put_kv_int(b, "general.quantization_version", PF_GGUF_U64, 2);
    two_tensors(b);
}

const struct odd_case odd_cases[] = {
    { "good", good, NULL },
    { "rich", rich, NULL },
    { "version-2", version_2, NULL },
    { "strange-keys", strange_keys, NULL },
    { "unaligned-array", unaligned_array, NULL },
    { "no-final-padding", no_final_padding, NULL },
    { "few-trailing-bytes", few_trailing_bytes, NULL },
    { "many-trailing-bytes", many_trailing_bytes, "33 bytes after the last tensor" },
    { "gap", gap, "back to back" },
    { "first-not-at-0", first_not_at_0, "back to back" },
    { "backwards", backwards, "back to back" },
    { "align-64", align_64, NULL },
    { "no-metadata", no_metadata, NULL },
    { "name-63", name_63, "128 bytes after the last tensor" },
    { "four-dims", four_dims, NULL },
    { "split-of-one", split_of_one, NULL },
    { "quantization-2-as-u64", quantization_2_as_u64, NULL },
};
const int n_odd_cases = sizeof odd_cases / sizeof odd_cases[0];
