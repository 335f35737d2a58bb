/* What to say of a file whose architecture is not known. Pure functions; any thread. */
#ifndef PF_NEAREST_H
#define PF_NEAREST_H

#include <stddef.h>

#include "gguf/gguf.h"

/* Writes which known architecture the names of g's tensors are most like, and what speaks against it. */
void pf_nearest_arch(const pf_gguf *g, char *text, size_t cap);

#endif
