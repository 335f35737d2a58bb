/* Models by name: the words pull, list and rm. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/modes.h"
#include "hub/hub.h"
#include "program/io/term.h"

static bool pull(const char *name, struct buf *out, struct buf *why)
{
    if (!hub_pull(name, out, why))
        return false;
    buf_puts(out, "\n");
    return true;
}

static bool list(const char *name, struct buf *out, struct buf *why)
{
    (void)name;
    if (!hub_list(out, why))
        return false;
    if (out->n == 0)
        note("there are no models in the cache; pull NAME fetches one");
    return true;
}

static bool rm(const char *name, struct buf *out, struct buf *why)
{
    uint64_t bytes;
    if (!hub_remove(name, &bytes, why))
        return false;
    buf_printf(out, "%.2f GB freed\n", (double)bytes * 1e-9);
    return true;
}

static const struct {
    const char *word;
    bool takes_name;
    bool (*run)(const char *name, struct buf *out, struct buf *why);
} words[] = { { "pull", true, pull }, { "list", false, list }, { "rm", true, rm } };

int mode_models(const char *word, const char *name)
{
    struct buf out = { 0 }, why = { 0 };
    size_t i = 0;
    while (strcmp(words[i].word, word) != 0)
        i++;
    if (words[i].takes_name != (name != NULL))
        die(EXIT_USAGE, words[i].takes_name ? "%s needs a name: owner/repo or owner/repo:QUANT" : "%s stands alone",
            word);
    if (name)
        hub_check_name(name);
    if (!words[i].run(name, &out, &why))
        die(EXIT_FAILED, "%s", buf_text(&why));
    out_write(buf_text(&out), out.n);
    buf_free(&out);
    buf_free(&why);                              /* a try that was made good has left its sentence */
    return EXIT_DONE;
}
