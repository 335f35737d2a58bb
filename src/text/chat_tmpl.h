/* Chat templates: a small interpreter for the Jinja that models' templates are written in.
 *
 * pf_tmpl_parse compiles a template's text; pf_tmpl_render runs it over a JSON object. A pf_tmpl owns its tree and a
 * copy of the text, is immutable, and may be rendered from any thread; everything a render allocates is freed in it.
 *
 * Templates come from files that anybody may have made: sizes, steps, depth and output are bounded, and any text at all
 * gives a result or one sentence with the line it is about. Behaviour is that of Jinja2 as Hugging Face transformers
 * sets it up (trim_blocks, lstrip_blocks, loop controls, no autoescape, tojson without HTML escapes). */
#ifndef PF_CHAT_TMPL_H
#define PF_CHAT_TMPL_H

#include <stddef.h>
#include <stdint.h>

#include "base/pf_cancel.h"

typedef struct pf_tmpl pf_tmpl;

/* PF_ETEMPLATE with the line number when the text is not a template. */
pf_status pf_tmpl_parse(pf_tmpl **out, const char *text, size_t len);
void      pf_tmpl_close(pf_tmpl **t);

/* context: a JSON object; its keys become the template's variables. now as in pf_template_render (pfmoe.h). A template
 * that prints more than max_bytes ends there with PF_ECONTEXT (0: the interpreter's own limit, PF_ETEMPLATE). cancel
 * may be NULL. The result is malloc-like memory of *out (freed with pf_free), *len bytes. A raise_exception(msg) is
 * PF_ETEMPLATE with exactly msg as the message of pf_last_error(). */
pf_status pf_tmpl_render(const pf_tmpl *t, const char *context, size_t context_len, int64_t now, size_t max_bytes,
                         const struct pf_cancel *cancel, char **out, size_t *len);

/* Built-in templates by name ("chatml", ...): text and length, or NULL. */
const char *pf_tmpl_builtin(const char *name, size_t *len);

#endif
