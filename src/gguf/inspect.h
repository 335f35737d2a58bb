/* The contents of a file, from its metadata and tensor names alone, for any architecture. Any thread. */
#ifndef PF_INSPECT_H
#define PF_INSPECT_H

#include "base/pf_status.h"

/* pf_file_inspect of pfmoe.h, but for out->supported, which stays false: only the model layer knows the
 * architectures. On failure *out is all zero. */
pf_status pf_gguf_inspect(const char *path, unsigned flags, struct pf_file_info *out);

#endif
