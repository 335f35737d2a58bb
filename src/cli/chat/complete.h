/* Completion at the prompt of a chat: commands, settings and their values, paths. */
#ifndef PF_CLI_COMPLETE_H
#define PF_CLI_COMPLETE_H

#include "cli/chat/line.h"

/* A complete_fn (line.h). */
void complete(const char *line, struct candidates *out);

#endif
