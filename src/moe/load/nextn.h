/* The layer that guesses ahead (nextn, multi-token prediction), which some files have behind the layers that run. It is
 * loaded as a model of its own, of one layer, from the same file: many keys have an entry for each layer, so the layers
 * in front of it are read, too, but not bound, and dropped in the end. */
#ifndef PF_LOAD_NEXTN_H
#define PF_LOAD_NEXTN_H

#include "moe/load/loader.h"

/* Some files count such layers and do not have them: whether layer il is one. */
bool pf_nextn_is_there(const struct pf_loader *l, int il);

/* In this order, of a model that is_nextn, whose n_layer are the file's others: makes the layer the last one; checks
 * what keys have said of it; binds what no other layer has; makes it the only one. */
pf_status pf_nextn_count(const struct pf_loader *l, int n_nextn);
pf_status pf_nextn_check(const struct pf_loader *l);
pf_status pf_nextn_bind(const struct pf_loader *l);
void      pf_nextn_drop_others(struct pf_model *m);

/* The name, without its ending, of a matrix or norm outside of layers: the layer's own, if the model is_nextn and the
 * file has it, else `name`. */
const char *pf_nextn_name(const struct pf_loader *l, char own[], const char *suffix, const char *name);

#endif
