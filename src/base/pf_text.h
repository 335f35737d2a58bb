/* Text that came from somewhere else, in sentences of ours. Pure functions; any thread. */
#ifndef PF_TEXT_H
#define PF_TEXT_H

/* Replaces, in place, what is no text but orders to a terminal: C0, DEL, C1, and the marks, overrides and isolates of
 * bidirectional text. A line break or tab becomes a space, a byte of the others a question mark. */
void pf_text_clean(char *s);

#endif
