/* One tensor to one weight or vector, its shape and type checked.
 *
 * A tensor is marked as it is found, so that what nobody asked for can be refused in the end. Vectors (norms, biases)
 * may be F32, F16 or BF16 and are handed out as float32: the mapping itself where it is F32, else a converted copy. */
#ifndef PF_TENSORS_H
#define PF_TENSORS_H

#include "moe/load/loader.h"

enum { PF_TENSOR_BYTES = 96 };

#define PF_EMBEDDING "token_embd"       /* whose adapters come the other way round */

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* NULL: the file has no such tensor. */
const struct pf_tensor *pf_tensor_find(const struct pf_loader *l, const char *name);
/* The first of two names, of which the file may have the other: in full with `ending` behind it,
 * il < 0: outside of layers. */
const char *pf_tensor_spelling(const struct pf_loader *l, int il, const char *name, const char *other,
                               const char *ending);
/* Refusals: of a tensor that is not there, that is not {n0, n1, n2}, that is not of the type expected or of any that
 * weights have. */
pf_status pf_tensor_missing(const struct pf_loader *l, const char *name);
pf_status pf_tensor_check_shape(const struct pf_loader *l, const struct pf_tensor *t, int64_t n0, int64_t n1,
                                int64_t n2);
pf_status pf_tensor_wrong_type(const struct pf_loader *l, const struct pf_tensor *t, const char *expected);
pf_status pf_tensor_check_weight(const struct pf_loader *l, const struct pf_tensor *t);
/* The tensor's n values as float32. */
pf_status pf_tensor_floats(const struct pf_loader *l, const struct pf_tensor *t, int64_t n, const float **out);

/* ---- Outside of layers ------------------------------------------------------------------------------------------- */

/* The tensor `name` {n0, n1}; *out is NULL where it may be absent and is. */
pf_status pf_bind_vector(const struct pf_loader *l, enum pf_need need, const char *name, int64_t n0, int64_t n1,
                         const float **out);
/* The tensor <name>.weight {n_in, n_out} with its optional <name>.scale and, as `bias` says, <name>.bias. */
pf_status pf_bind_matrix(const struct pf_loader *l, enum pf_need need, const char *name, int64_t n_in, int64_t n_out,
                         enum pf_need bias, struct pf_weight *w);

/* ---- Of layer il: blk.<il>.<suffix> ------------------------------------------------------------------------------ */

pf_status pf_layer_vector(const struct pf_loader *l, enum pf_need need, int il, const char *suffix, int64_t n0,
                          int64_t n1, const float **out);
/* A weight of the layer. */
pf_status pf_layer_matrix(const struct pf_loader *l, enum pf_need need, int il, const char *suffix, int64_t n_in,
                          int64_t n_out, enum pf_need bias, struct pf_weight *w);
/* A matrix that several weights of the layer are cut out of. */
pf_status pf_layer_whole(const struct pf_loader *l, enum pf_need need, int il, const char *suffix, int64_t n_in,
                         int64_t n_out, enum pf_need bias, struct pf_weight *w);
/* A weight of the layer, which is rows of a whole matrix. */
pf_status pf_layer_rows(const struct pf_loader *l, int il, const struct pf_weight *w, int first, int n,
                        struct pf_weight *out);
/* A matrix per head, {n_in, n_out, n_head} or {n_in, n_out * n_head}, which is not listed; no data if it is absent. */
pf_status pf_layer_by_head(const struct pf_loader *l, int il, const char *suffix, int64_t n_in, int64_t n_out,
                           int64_t n_head, struct pf_weight *w);
/* Puts a bound weight on the list of its layer. */
void pf_layer_list(const struct pf_loader *l, int il, struct pf_weight *w);

/* Rows [first, first + n) of a matrix, as the model has it: without what adapters add. */
struct pf_weight pf_weight_rows(const struct pf_weight *w, int first, int n);

#endif
