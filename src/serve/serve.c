/* pfmoe-serve: a model behind HTTP.
 *
 *     options -> model, sessions (sched) -> workers -> http -> signals, until one ends it
 *
 * Threads: this one, which waits for the end; one that takes signals; the http thread; workers (work.h); the
 * scheduler's; the library's. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hub/hub.h"
#include "program/load.h"
#include "program/stack.h"
#include "program/io/term.h"
#include "serve/journal.h"
#include "serve/server.h"
#include "serve/http/work.h"

/* --template: a built-in one's name, or else a file. */
static void choose_template(struct server *server, const char *name)
{
    struct buf text = { 0 };
    for (int i = 0; name && pf_chat_builtin(i); i++)
        if (strcmp(pf_chat_builtin(i), name) == 0)
            server->prompt.template_name = name;
    if (!name || server->prompt.template_name)
        return;
    if (!buf_read_file(&text, name))
        die(EXIT_FAILED, "--template %s: neither a built-in template nor a file: %s", name, strerror(errno));
    if (text.n == 0 || memchr(text.p, 0, text.n))
        die(EXIT_FAILED, "--template %s: %s", name, text.n ? "there is a zero byte in it" : "the file is empty");
    server->prompt.template_text = text.p;
}

/* The value of the option, else of the model's file, else the library's. */
static double choose(double set, double recommended, double otherwise)
{
    return set != UNSET ? set : recommended >= 0 ? recommended : otherwise;
}

static void set_defaults(struct request *q, const struct settings *s, const struct pf_model_info *info)
{
    struct pf_sampler sp;
    pf_sampler_init(&sp, 0);
    *q = (struct request){
        .model = "default", .n = 1, .max_tokens = UNSET, .seed = s->seed, .enable_thinking = opts_thinking(s),
        .reasoning_effort = s->reasoning_effort, .temp = choose(s->temp, (double)info->temp, (double)sp.temp),
        .top_p = choose(s->top_p, (double)info->top_p, (double)sp.top_p),
        .min_p = choose(s->min_p, (double)info->min_p, (double)sp.min_p),
        .top_k = s->top_k != UNSET ? s->top_k : info->top_k >= 0 ? info->top_k : sp.top_k,
        .repeat_penalty = s->repeat_penalty, .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
    };
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *name = xstrdup(slash ? slash + 1 : path);
    char *dot = strrchr(name, '.');
    if (dot && dot != name && strcmp(dot, ".gguf") == 0)
        *dot = 0;
    return name;
}

/* Tells models apart, contexts for which one rotates otherwise, and a router from a trace in its place, whose saved
 * conversations lie in one folder; the library looks closer when it loads one. */
static uint64_t key_of(const struct server *server)
{
    const struct pf_model_info *info = pf_model_info(server->m);
    bool is_long = info->n_ctx_long > 0 && server->prompt.n_ctx >= info->n_ctx_long;
    uint64_t hash = 14695981039346656037u ^ is_long ^ (server->s->run.report.routing ? 2 : 0);
    char key[512];
    snprintf(key, sizeof key, "%s|%s|%lld|%lld|%d|%d", info->architecture, info->name, (long long)info->n_vocab,
             (long long)info->weight_bytes, server->s->run.kv, server->s->run.loras.n);
    for (const char *p = key; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 1099511628211u;
    return hash;
}

/* Memory for conversations where nobody says how much: a quarter of what weights, keys and values leave. To be asked
 * before the model is opened, which takes some of that. */
static int64_t choose_cache_mb(const struct serve_settings *s)
{
    enum { LEAST_MB = 1024, MOST_MB = 16384, PART = 4 };
    struct pf_plan p;
    if (load_plan(&s->run, (int)s->n_slots, &p) < 0)
        return LEAST_MB;                     /* opening the model says why */
    uint64_t of_slot = p.far_bytes + (p.vram_budget_bytes ? 0 : p.other_bytes);
    uint64_t taken = p.tiers[PF_TIER_RAM].bytes + p.slot_bytes + of_slot * (uint64_t)s->n_slots;
    uint64_t left = p.ram_budget_bytes > taken ? p.ram_budget_bytes - taken : 0;
    int64_t mb = (int64_t)(left / PART / 1000000);
    return mb < LEAST_MB ? LEAST_MB : mb < MOST_MB ? mb : MOST_MB;
}

/* NULL: nothing is to be kept. */
static struct saved *open_saved(const struct server *server)
{
    const char *folder = server->s->cache_dir;
    int64_t mb = server->cache_mb;
    struct saved *saved = mb == 0 ? NULL : saved_open(folder, (uint64_t)mb * 1000000, key_of(server));
    if (mb > 0 && !saved)
        die(EXIT_FAILED, "--cache-dir %s: %s", folder, strerror(errno));
    return saved;
}

static void open_model(struct server *server)
{
    const struct settings *s = &server->s->run;
    const int64_t pause_ms = server->s->pause_ms;
    server->cache_mb = server->s->cache_mb != UNSET ? server->s->cache_mb
                       : server->s->cache_dir ? 16384 : choose_cache_mb(server->s);
    server->m = load_model(s, false);
    if (!pf_model_info(server->m)->has_tokenizer)
        die(EXIT_FAILED, "%s has no tokenizer", load_path(s));
    server->model_name = name_of(load_path(s));
    choose_template(server, s->template);
    set_defaults(&server->defaults, s, pf_model_info(server->m));
    struct sched_opts o = { .m = server->m, .n_slots = (int)server->s->n_slots, .queue = (int)server->s->queue,
                            .pause_ms = pause_ms != UNSET ? pause_ms : 100,
                            .most_pause_ms = pause_ms != UNSET ? pause_ms : 400 };
    struct pf_chat_opts chat;
    pf_chat_opts_init(&chat);
    chat.template_name = server->prompt.template_name;
    chat.template_text = server->prompt.template_text;
    o.family = server->prompt.family = pf_reply_family(server->m, &chat);
    load_session_opts(s, s->n_ctx, &o.session);
    o.session.n_sessions = o.n_slots;
    if (sched_open(&server->sched, &o) < 0)
        die_failed(NULL);
    server->prompt.m = server->m;
    server->prompt.n_ctx = sched_n_ctx(server->sched);
    sched_start(server->sched, open_saved(server), server->s->cache_dir != NULL);
    load_weights_always(server->m);
}

/* ---- Signals ----------------------------------------------------------------------------------------------------- */

static sem_t end_asked;

/* All threads but this one have these signals blocked. SIGHUP ends a server whose terminal goes away; elsewhere it asks
 * to read the configuration again, and there is none. A request to end stops the loading of a model where it is, which
 * may be in a read that a slow drive has not answered; a second one does not wait for what runs. */
static void *take_signals(void *ctx)
{
    const struct server *server = ctx;
    sigset_t set;
    int sig;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    for (bool asked = false;;) {
        if (sigwait(&set, &sig) != 0 || (sig == SIGHUP && !isatty(STDIN_FILENO)))
            continue;
        if (asked || !atomic_load(&server->loaded))
            _exit(asked ? EXIT_FAILED : EXIT_DONE);
        asked = true;
        sem_post(&end_asked);
    }
    return NULL;
}

/* Called before any other thread is started: threads inherit what is blocked. */
static void watch_signals(struct server *server)
{
    sigset_t set;
    pthread_t thread;
    sigfillset(&set);
    sigdelset(&set, SIGBUS);
    sigdelset(&set, SIGSEGV);
    sigdelset(&set, SIGFPE);
    sigdelset(&set, SIGILL);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    sem_init(&end_asked, 0, 0);
    int error = pthread_create(&thread, NULL, take_signals, server);
    if (error)
        die(EXIT_FAILED, "cannot start a thread: %s", strerror(error));
    pthread_detach(thread);
}

/* What runs comes to its end; new requests are refused meanwhile. Whoever does not take what there is for him in
 * READING_SECONDS from when all answers are made does without. */
static void finish(struct http *http)
{
    enum { READING_SECONDS = 10 };
    static const struct timespec moment = { .tv_nsec = 20000000 };
    double made = now_s();
    http_quiet(http);
    int n = http_unanswered(http);
    if (n > 0)
        note("%d request%s still running; a second signal ends at once.", n, n == 1 ? " is" : "s are");
    while (http_running(http) > 0 && now_s() - made < READING_SECONDS) {
        nanosleep(&moment, NULL);
        made = http_unanswered(http) > 0 ? now_s() : made;
    }
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

/* Before the model is fetched and loaded, which may take hours: an address that is taken is told at once. */
static int bind_address(const struct serve_settings *s)
{
    struct buf why = { 0 };
    int fd = http_bind(s->host, (int)s->port, &why);
    if (fd < 0)
        die(EXIT_FAILED, "%s", buf_text(&why));
    return fd;
}

static struct http *open_http(struct server *server, int fd)
{
    const struct serve_settings *s = server->s;
    struct buf why = { 0 };
    int port;
    struct http_opts o = { .fd = fd, .api_key = s->api_key, .cors = s->cors,
                           .body_bytes = (size_t)s->body_mb * 1000000, .routes = routes, .ctx = server,
                           .unread = { .one_bytes = 8000000, .all_bytes = 512000000, .seconds = 60,
                                       .bytes_per_second = 65536 } };
    struct http *http = http_open(&o, &port, &why);
    if (!http)
        die(EXIT_FAILED, "%s", buf_text(&why));
    bool v6 = strchr(s->host, ':') != NULL;
    note("pfmoe-serve: %lld slots of %lld tokens, and %lld MB%s for conversations that have none",
         (long long)s->n_slots, (long long)server->prompt.n_ctx, (long long)server->cache_mb,
         s->cache_dir ? " of files" : "");
    note("pfmoe-serve: %s at http://%s%s%s:%d", server->model_name, v6 ? "[" : "", s->host, v6 ? "]" : "", port);
    return http;
}

static int start(int argc, char **argv)
{
    static struct serve_settings s;
    static struct server server;
    term_init();
    options_read(&s, argc, argv);
    int fd = load_follows(&s.run) ? -1 : bind_address(&s);
    if (s.run.hf)
        s.run.model = hub_need(s.run.hf);
    if (fd < 0)
        return load_follow(&s.run);
    watch_signals(&server);
    server.s = &s;
    journal_open(!s.quiet);
    server.started = (int64_t)time(NULL);
    open_model(&server);
    atomic_store(&server.loaded, true);      /* before the address is told: who reads it may end the server at once */
    work_open();
    struct http *http = open_http(&server, fd);
    while (sem_wait(&end_asked) != 0)
        ;
    finish(http);
    work_close();
    sched_close(server.sched);           /* first: who lets go of an exchange looks at what http has of it */
    http_close(http);
    grammars_forget();
    load_report(&s.run, server.m);
    pf_model_close(&server.m);
    return EXIT_DONE;
}

int main(int argc, char **argv)
{
    return stack_run(start, argc, argv);
}
