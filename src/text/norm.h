/* Normalisation of a fragment of text before byte-level BPE cuts it. Pure but for memory; any thread. */
#ifndef PF_NORM_H
#define PF_NORM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/pf_status.h"

/* Makes text well-formed UTF-8, each ill-formed byte becoming U+FFFD, and, if asked, brings it to normalisation form C.
 * *out is NULL when the text is so already; else *n bytes that the caller frees with pf_free. Linear but for sorting
 * runs of combining marks. */
pf_status pf_normalise(const char *text, size_t len, bool nfc, char **out, size_t *n);

#endif
