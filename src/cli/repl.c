#include "modes.h"
int mode_chat(const struct settings *s) { (void)s; return 0; }
