/* See options.h. */
#include "serve/options.h"

#include <stddef.h>
#include <string.h>

#include "program/opt_row.h"

#define AT(member) offsetof(struct serve_settings, member)

static const struct opt rows[] = {
    { GROUP_SERVER, 0, "host", TEXT, "ADDRESS", AT(host), 0, 0, "PFMOE_HOST", false,
      "address to listen at (default 127.0.0.1: this machine alone)" },
    { GROUP_SERVER, 0, "port", WHOLE, "N", AT(port), 0, 65535, "PFMOE_PORT", false,
      "port to listen at (default 8080; 0: any that is free)" },
    { GROUP_SERVER, 0, "api-key", TEXT, "KEY", AT(api_key), 0, 0, "PFMOE_API_KEY", false,
      "answer only those who send KEY, as a Bearer token or in X-Api-Key; the variable keeps it out of the list of "
      "processes" },
    { GROUP_SERVER, 0, "cors", TEXT, "ORIGIN", AT(cors), 0, 0, "PFMOE_CORS", false,
      "let pages of ORIGIN use the server from a browser; * lets all (default: none but its own)" },
    { GROUP_SERVER, 0, "slots", WHOLE, "N", AT(n_slots), 1, 256, "PFMOE_SLOTS", false,
      "conversations under way at a time, each with a context of its own (default 4)" },
    { GROUP_SERVER, 0, "cache-dir", TEXT, "DIR", AT(cache_dir), 0, 0, "PFMOE_CACHE_DIR", false,
      "keep conversations in DIR, so that they go on where they were after a restart" },
    { GROUP_SERVER, 0, "cache-mb", WHOLE, "N", AT(cache_mb), 0, 1 << 30, "PFMOE_CACHE_MB", false,
      "room for conversations that have no slot, in MB of 1e6 bytes: of memory, with --cache-dir of the drive (default "
      "a quarter of the memory that the model leaves, 1024 to 16384, with --cache-dir 16384; 0: none is kept)" },
    { GROUP_SERVER, 0, "queue", WHOLE, "N", AT(queue), 0, 100000, NULL, false,
      "requests that may wait for a slot; more are refused (default 256)" },
    { GROUP_SERVER, 0, "body-mb", WHOLE, "N", AT(body_mb), 1, 512, NULL, false,
      "the largest body of a request, in MB of 1e6 bytes (default 32)" },
    { GROUP_SERVER, 0, "pause-ms", WHOLE, "N", AT(pause_ms), 1, 60000, NULL, false,
      "how long a piece of one request's prompt may stop the others' answers (default 100, and up to 400 where shorter "
      "pieces would make the prompt less than half as fast as it is alone)" },
    { GROUP_SERVER, 0, "quiet", FLAG, NULL, AT(quiet), 0, 0, NULL, false,
      "no line on standard error for each answer" },
};

/* Whether the server has an option of pfmoe-run's table: those of the model and the machine, and sampling for requests
 * that leave it open. */
static bool takes(const struct opt *o)
{
    static const char *const names[] = {
        "model", "hf", "template", "reasoning-effort", "think", "temp", "top-k", "top-p", "min-p", "repeat-penalty",
        "presence-penalty", "frequency-penalty", "seed",
    };
    size_t n = strlen(o->name);
    if (o->group == GROUP_MACHINE)
        return n < 5 || strcmp(o->name + n - 5, "-gb-s") != 0;
    if (o->group > GROUP_MACHINE && o->group != GROUP_CHECK)
        return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], o->name) == 0)
            return true;
    return false;
}

static const struct opts_program program = {
    .name = "pfmoe-serve",
    .usage = "usage: pfmoe-serve [-m MODEL.gguf] [options]\n\n"
             "Serves a language model from a GGUF file over HTTP, with the interfaces of OpenAI and Anthropic.\n"
             "Without -m it serves the bundled model.",
    .operands = "pfmoe-serve takes options alone",
    .takes = takes, .own = rows, .n_own = sizeof rows / sizeof *rows,
};

void options_read(struct serve_settings *s, int argc, char **argv)
{
    *s = (struct serve_settings){ .host = "127.0.0.1", .port = 8080, .n_slots = 4, .cache_mb = UNSET, .queue = 256,
                                  .body_mb = 32, .pause_ms = UNSET };
    opts_read_of(&program, &s->run, argc, argv);
    if (s->api_key && !*s->api_key)
        die(EXIT_USAGE, "--api-key: the key is empty");
}
