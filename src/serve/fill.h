/* A text that is filled in between two others, as editors complete code: models that were trained for it know it by
 * marks around what is there. Any thread. */
#ifndef PF_SERVE_FILL_H
#define PF_SERVE_FILL_H

#include "pfmoe.h"
#include "program/io/buf.h"

/* Makes of the text in front the prompt whose answer goes between it and the suffix. False: the model has no marks that
 * are known here, and the text is as it was. */
bool fill_between(const pf_model *m, const char *suffix, struct buf *text);

#endif
