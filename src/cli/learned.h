/* What sharing experts with a GPU has taught (pf_learned), kept from run to run: one file for each machine, model and
 * number of threads, $XDG_CACHE_HOME/pfmoe/ (or ~/.cache/pfmoe/) HASH.json. Whatever is wrong with such a file, nobody
 * is told: the run learns anew. */
#ifndef PF_CLI_LEARNED_H
#define PF_CLI_LEARNED_H

#include "buf.h"
#include "pfmoe.h"

/* Behind opening the model, and in front of closing it. Nothing happens where nothing is shared. gpu: its number. */
void learned_load(pf_model *m, int gpu);
void learned_store(pf_model *m, int gpu);

/* The file's text, and what it says. key: of whom it was learned; a text with another one says nothing (false). */
void learned_print(const struct pf_learned *l, const char *key, struct buf *out);
bool learned_parse(const char *text, size_t n, const char *key, struct pf_learned *out);

/* The same with the file of that key. */
bool learned_read_file(const char *key, struct pf_learned *out);
bool learned_write_file(const char *key, const struct pf_learned *l);

#endif
