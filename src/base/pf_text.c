/* See pf_text.h. */
#include "base/pf_text.h"

#include <stdbool.h>
#include <string.h>

/* How many bytes at s give an order; 0: none. The forms of more than one byte are UTF-8. */
static int order_at(const unsigned char *s)
{
    if (s[0] < 0x20 || s[0] == 0x7f)
        return 1;
    if (s[0] == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0)                     /* C1 */
        return 2;
    if (s[0] == 0xd8 && s[1] == 0x9c)                                    /* U+061C */
        return 2;
    bool marks = s[0] == 0xe2 && s[1] == 0x80 && (s[2] == 0x8e || s[2] == 0x8f || (s[2] >= 0xaa && s[2] <= 0xae));
    bool isolates = s[0] == 0xe2 && s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9;
    return marks || isolates ? 3 : 0;
}

void pf_text_clean(char *s)
{
    for (int n; *s; s += n > 0 ? n : 1) {
        n = order_at((const unsigned char *)s);
        if (n > 0)
            memset(s, strchr("\n\r\t", *s) ? ' ' : '?', (size_t)n);
    }
}
