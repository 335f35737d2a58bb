/* What a reply of a chat may be, as a grammar: reasoning where it may come, then content that a schema allows, or calls
 * of tools in the family's own form with arguments by each tool's schema.
 *
 *     reply      [ reasoning ] ( content | calls )
 *     calls      begin  call { between call }  end            by the family's row in forms.c
 *     call       ... name ... arguments ...                   arguments: JSON, or a tag a parameter (params.c)
 *
 * Markers that are tokens of their own in the vocabulary are such tokens in the grammar (PF_TOKEN_MARK of
 * grammar/tokens.h); what stands around them, and markers that a vocabulary spells in ordinary tokens, is text. One
 * thread at a time. */
#ifndef PF_SHAPE_H
#define PF_SHAPE_H

#include "grammar/rules.h"
#include "text/vocab.h"

/* PF_EINVAL: no such family or tool, tools that are no JSON array, a schema that is none. */
pf_status pf_shape_rules(struct pf_rules *r, const pf_vocab *v, const struct pf_reply_shape *o, int32_t *root);

#endif
