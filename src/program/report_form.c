/* In which form a file of picks is written. See report.h. */
#include "program/report.h"

#include <string.h>

enum report_form report_form_of(const char *path)
{
    static const char *const endings[] = { [REPORT_JSON] = ".json", [REPORT_CSV] = ".csv", [REPORT_SVG] = ".svg",
                                           [REPORT_TRACE] = ".trace" };
    const char *dot = path ? strrchr(path, '.') : NULL;
    for (int f = REPORT_JSON; dot && f <= REPORT_TRACE; f++)
        if (strcmp(dot, endings[f]) == 0)
            return (enum report_form)f;
    return REPORT_NONE;
}
