/* Learned deals (pf_learned), kept from run to run: one file for each machine, model and number of threads,
 * $XDG_CACHE_HOME/pfmoe/ (or ~/.cache/pfmoe/) HASH.json. A file that is damaged or cannot be read is ignored without a
 * message: the run learns anew. */
#ifndef PF_PROGRAM_LEARNED_H
#define PF_PROGRAM_LEARNED_H

#include "program/io/buf.h"
#include "pfmoe.h"

/* Called after opening the model, and before closing it. Without experts shared with GPU number gpu both do nothing. */
void learned_load(pf_model *m, int gpu);
void learned_store(pf_model *m, int gpu);

/* Writes and reads the file's text. key: machine, model and threads; a text with another key is refused (false). */
void learned_print(const struct pf_learned *l, const char *key, struct buf *out);
bool learned_parse(const char *text, size_t n, const char *key, struct pf_learned *out);

/* learned_parse and learned_print with the file that belongs to key; false: it could not be read or written. */
bool learned_read_file(const char *key, struct pf_learned *out);
bool learned_write_file(const char *key, const struct pf_learned *l);

#endif
