/* A model's identity, for saved sessions: a digest of all metadata that changes a result, of every tensor's name, type
 * and shape, and of samples of every tensor; likewise of adapters, with their scales; and of the picks of a trace that
 * takes the router's place.
 *
 * To read all weights would take minutes, so samples have to do: tensors of up to 64 KiB whole, of larger ones 16 pages
 * spread over their length, and of stacks of experts two more for each. Training changes nearly every weight of each
 * matrix that it touches, and so does adding a low-rank product to a matrix; quantised again, a page of some thousand
 * weights that is the same by chance is rare, and all of a matrix's pages would have to be. Metadata under "general."
 * counts, too: whoever changes so little that samples miss it gives the file another name. */
#ifndef PF_IDENTITY_H
#define PF_IDENTITY_H

#include "moe/model/model.h"

/* Reads a page here and there of the whole file, the first time; from any thread. That may take seconds, so whoever
 * holds the step lock asks before. PF_ECHANGED: the file is not what it was at open. */
pf_status pf_model_identity(struct pf_model *m, struct pf_digest *out);

#endif
