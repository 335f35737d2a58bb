/* Replies of models, taken apart: what pfmoe.h does not say of pf_reply. */
#ifndef PF_REPLY_H
#define PF_REPLY_H

#include "base/pf_status.h"

/* Name of the family whose markers a chat template has; static. */
const char *pf_reply_family_of(const char *tmpl, size_t n);

#endif
