/* pfmoe.h must compile by itself, before any other header. */
#include "pfmoe.h"

int main(void)
{
    return pf_version()[0] == 0 || pf_strstatus(PF_EFORMAT)[0] == 0 || pf_last_error()[0] != 0;
}
