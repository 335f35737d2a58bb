/* The thread's last failure and the names of the codes. See pf_status.h. */
#include "base/pf_status.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/pf_text.h"

enum { MESSAGE_BYTES = 1024 };
static _Thread_local char last_message[MESSAGE_BYTES];

pf_status pf_fail(pf_status st, const char *fmt, ...)
{
    /* The arguments may point into the old message (a caller that wraps pf_last_error()), so format beside it. */
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    pf_text_clean(text);                     /* names, paths and texts of templates are in it */
    snprintf(last_message, sizeof last_message, "%s", text);
    return st;
}

const char *pf_last_error(void)
{
    return last_message;
}

const char *pf_strstatus(pf_status st)
{
    switch (st) {
    case PF_OK:           return "ok";
    case PF_EINVAL:       return "invalid argument";
    case PF_ESPACE:       return "buffer too small";
    case PF_ECONTEXT:     return "context is full";
    case PF_ECANCEL:      return "cancelled";
    case PF_ENOMEM:       return "out of memory";
    case PF_EIO:          return "input or output failed";
    case PF_EFORMAT:      return "malformed file";
    case PF_EUNSUPPORTED: return "not supported";
    case PF_ECHANGED:     return "file changed while in use";
    case PF_ETEMPLATE:    return "chat template failed";
    case PF_EDEVICE:      return "device failed";
    case PF_ENUMERIC:     return "not a finite number";
    }
    return "unknown status";
}
