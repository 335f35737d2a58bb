/* Whether two models speak of the same tokens: a smaller one may then draft for a larger one. Pure; any thread. */
#ifndef PF_SAME_TOKENS_H
#define PF_SAME_TOKENS_H

#include "moe/model/model.h"

/* PF_OK, or PF_EUNSUPPORTED and a sentence that names the first difference. Files often have unused tokens at the end,
 * so one vocabulary may go on where the other ends. */
pf_status pf_same_tokens(const struct pf_model *m, const struct pf_model *smaller);

#endif
