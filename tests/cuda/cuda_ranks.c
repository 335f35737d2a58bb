/* Several processes with one model, by NCCL or by what stands in for it (../emulated/standin_nccl.c), against one
 * process on the CPU.
 *
 *     cuda_ranks MODEL N gpu|cpu|shared|rows [brief]    the same logits, whatever is done with sessions
 *     cuda_ranks MODEL N gpu lost WORDS [FROM TO STEP]
 *                                                   with WORDS for the stand-in a rank is lost: all others end, with a
 *                                                   sentence, within seconds; so for each number in place of %d
 *     cuda_ranks MODEL N gpu lost killed|stopped [FROM TO STEP]
 *                                                   rank 1 is killed, or stopped as a machine without power is for
 *                                                   others, after so many tenths of a second
 *     cuda_ranks MODEL 2 changed|changed-rows       rank 1 has a file of its own, which changes: its steps fail, and
 *                                                   rank 0 says so
 *
 * gpu: each rank's layers are its GPU's; cpu: by GPUs they exchange alone; shared: experts are shared with the CPU;
 * rows: each rank's GPU has rows of all layers.
 * Where there are fewer GPUs than ranks some share one, which NCCL allows if they seem to be of different machines. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "free_port.h"
#include "pfmoe.h"

enum { MOST = 4, LOST = 3, SKIPPED = 77, LIMIT_S = 20, PATH_BYTES = 512 };

struct how {
    const char *model, *place, *brief;
    int         n;
};

/* ---- What a program does ----------------------------------------------------------------------------------------- */

struct work {
    pf_model *m;
    FILE     *out;
    int       n_vocab;
    pf_status st;                                /* of the first call that failed; then nothing more is done */
};

static void note(struct work *w, const pf_session *s, pf_status st)
{
    if (w->st == PF_OK && st == PF_OK && s)
        fwrite(pf_session_logits(s), sizeof(float), (size_t)w->n_vocab, w->out);
    w->st = w->st < 0 ? w->st : st;
}

static pf_session *open_one(struct work *w, enum pf_draft draft)
{
    pf_session *s = NULL;
    struct pf_session_opts so;
    pf_session_opts_init(&so);
    so.n_ctx = 1500;
    so.n_batch = 48;
    so.draft = draft;
    so.draft_max = 4;
    if (w->st == PF_OK)
        note(w, NULL, pf_session_open(&s, w->m, &so));
    return s;
}

static void fill(const struct work *w, int32_t *tok, int n, int from)
{
    for (int i = 0; i < n; i++)
        tok[i] = (int32_t)(((i + from) * 37 + (i + from) / 7 * 11 + 5) % w->n_vocab);
}

static void eval(struct work *w, pf_session *s, int n, int from)
{
    int32_t tok[1024];
    fill(w, tok, n, from);
    if (w->st == PF_OK)
        note(w, s, pf_session_eval(s, tok, (size_t)n, 0));
}

static void sync_to(struct work *w, pf_session *s, int n, int same)
{
    int32_t tok[1024];
    fill(w, tok, n, 0);
    fill(w, tok + same, n - same, 500);
    if (w->st == PF_OK)
        note(w, s, pf_session_sync(s, tok, (size_t)n, NULL));
}

/* A sequence that repeats itself, so that drafts are right at times, and wrong at others. */
static void decode(struct work *w, pf_session *s, int n)
{
    for (int i = 0; i < n && w->st == PF_OK; i++) {
        int32_t tok = (int32_t)((i % 6 == 5 && i > 12 ? i : i % 6) * 3 % w->n_vocab);
        note(w, s, pf_session_eval(s, &tok, 1, 0));
    }
}

static void together(struct work *w, pf_session *a, pf_session *b, int n_a)
{
    int32_t tok[64];
    fill(w, tok, n_a, 90);
    struct pf_batch_part parts[2] = { { .session = a, .tok = tok, .n = (size_t)n_a },
                                      { .session = b, .tok = tok, .n = 1 } };
    if (w->st < 0)
        return;
    pf_status st = pf_batch_eval(parts, 2);
    note(w, a, st);
    note(w, b, st);
}

/* A cancelled step has no part in what comes then. It has as many rows as no other: a GPU that repeats a step does not
 * ask. */
static void cancel(struct work *w, pf_session *s)
{
    enum { ROWS = 13 };
    int32_t tok[ROWS];
    if (w->st < 0)
        return;
    fill(w, tok, ROWS, 0);
    pf_session_cancel(s);
    CHECK(pf_session_eval(s, tok, ROWS, 0) == PF_ECANCEL, "%s", pf_last_error());
}

static pf_status all_work(pf_model *m, FILE *out, bool brief)
{
    struct work w = { .m = m, .out = out, .n_vocab = (int)pf_model_info(m)->n_vocab };
    pf_session *a = open_one(&w, PF_DRAFT_OFF), *b = NULL;
    eval(&w, a, 70, 0);
    for (int i = 0; i < 3; i++)
        eval(&w, a, 1, 100 + i);
    cancel(&w, a);
    sync_to(&w, a, 60, 50);                      /* back behind a checkpoint */
    b = open_one(&w, PF_DRAFT_AUTO);
    decode(&w, b, brief ? 16 : 60);
    together(&w, a, b, 1);
    together(&w, a, b, 20);
    if (w.st == PF_OK)
        note(&w, NULL, pf_session_rewind(b, pf_session_pos(b) - 1));     /* the last step is undone */
    eval(&w, b, 2, 7);
    if (!brief) {
        sync_to(&w, a, 900, 60);                 /* rings turn, and turn back */
        sync_to(&w, a, 400, 300);
        eval(&w, a, 5, 3);
    }
    pf_session_close(&a);
    eval(&w, b, brief ? 3 : 200, 11);            /* alone, so that steps of a prompt follow each other */
    a = open_one(&w, PF_DRAFT_OFF);
    eval(&w, a, 9, 40);
    pf_session_close(&a);
    pf_session_close(&b);
    return w.st;
}

/* ---- A rank ------------------------------------------------------------------------------------------------------ */

static void say(void *ctx, enum pf_log_level level, const char *text)
{
    (void)level;
    printf("rank %d: %s\n", *(const int *)ctx, text);
}

static int fail(int rank)
{
    printf("rank %d: %s\n", rank, pf_last_error());
    fflush(stdout);
    return LOST;
}

static int n_gpus(void)
{
    struct pf_device devices[1 + PF_MAX_GPUS];
    return pf_devices(devices, 1 + PF_MAX_GPUS) - 1;
}

/* PF_OK: a step fails that rank 1 cannot make, since its file is another one by now. */
static pf_status fail_there(pf_model *m, const char *file)
{
    struct work w = { .m = m, .out = fopen("/dev/null", "wb"), .n_vocab = (int)pf_model_info(m)->n_vocab };
    const struct timespec times[2] = { { 1, 0 }, { 1, 0 } };
    pf_session *s = open_one(&w, PF_DRAFT_OFF);
    eval(&w, s, 5, 0);
    utimensat(AT_FDCWD, file, times, 0);
    pf_status st = w.st;
    for (int i = 0; i < 2 && st == PF_OK; i++) {
        eval(&w, s, 60, 5);
        CHECK(w.st == PF_ECHANGED && strncmp(pf_last_error(), "rank 1: ", 8) == 0, "%d, %s", w.st, pf_last_error());
        w.st = PF_OK;
    }
    pf_session_close(&s);
    fclose(w.out);
    return st;
}

/* Again and again until something fails, where a rank is to be lost on the way. */
static pf_status lead(const struct how *how, pf_model *m, const char *out_path)
{
    bool lasts = strcmp(out_path, "/dev/null") == 0;
    FILE *out = fopen(out_path, "wb");
    pf_status st;
    do
        st = all_work(m, out, how->brief != NULL);
    while (lasts && st == PF_OK);
    fclose(out);
    return st;
}

/* Of the GPU's memory; 0: all that is free. */
static uint64_t bytes_of(const char *place)
{
    bool none = strcmp(place, "cpu") == 0 || strcmp(place, "changed") == 0;
    return none ? 1 : strcmp(place, "shared") == 0 ? 12000000 : 0;
}

static int be_rank(const struct how *how, int rank, const char *out_path)
{
    struct pf_model_opts o;
    pf_model *m;
    pf_model_opts_init(&o);
    o.n_threads = 1;
    o.n_ranks = how->n;
    o.rank = rank;
    o.device = rank % n_gpus();
    o.nextn = true;
    o.log = say;
    o.log_ctx = &rank;
    o.vram_bytes = bytes_of(how->place);
    o.layout = strstr(how->place, "rows") ? PF_LAYOUT_ROWS : PF_LAYOUT_AUTO;
    bool changed = strncmp(how->place, "changed", 7) == 0;
    pf_status st = pf_model_open(&m, changed && rank > 0 ? out_path : how->model, &o);
    if (st < 0 && strstr(pf_last_error(), "NCCL, which was not found"))
        return SKIPPED;
    if (st < 0)
        return fail(rank);
    st = rank > 0 ? pf_model_follow(m) : changed ? fail_there(m, out_path) : lead(how, m, out_path);
    int result = st < 0 ? fail(rank) : check_n_failed > 0;
    pf_model_close(&m);
    return result;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

static pid_t start(const struct how *how, int rank, const char *out_path)
{
    char k[8], n[8];
    snprintf(k, sizeof k, "%d", rank);
    snprintf(n, sizeof n, "%d", how->n);
    if (how->n > n_gpus())
        setenv("NCCL_HOSTID", k, 1);
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    execl("/proc/self/exe", "ranks", "--rank", k, how->model, n, how->place, out_path, how->brief, (char *)NULL);
    _exit(127);
}

/* How a rank is to be lost. */
struct loss {
    const char *words;                           /* for the stand-in */
    int         signal, tenths;                  /* that rank 1 gets, if any, and when */
};

/* How each has ended within the limit, a shorter one from when a rank is lost, whether it has ended or stopped; one
 * that has not ended is killed. */
static void wait_all(pid_t *pid, int n, int *status, const struct loss *loss)
{
    int left = n, limit = LIMIT_S * 100;
    bool is_lost = false;
    for (int tenths = 0; left > 0; tenths++) {
        left = 0;
        if (loss && loss->signal && tenths == loss->tenths)
            kill(pid[1], loss->signal);
        for (int k = 0; k < n; k++) {
            if (pid[k] > 0 && waitpid(pid[k], &status[k], WNOHANG | WUNTRACED) == pid[k]) {
                pid[k] = WIFSTOPPED(status[k]) ? pid[k] : 0;
                limit = loss && !is_lost ? tenths + LIMIT_S * 10 : limit;
                is_lost = true;
                if (loss && pid[k] == 0)
                    printf("rank %d has ended after %.1f s\n", k, tenths / 10.0);
            }
            if (pid[k] > 0 && tenths > limit)
                kill(pid[k], SIGKILL);
            left += pid[k] > 0;
        }
        nanosleep(&(struct timespec){ 0, 100000000 }, NULL);
    }
}

/* loss NULL: no rank is to be lost. */
static void run_all(const struct how *how, const char *out_path, const struct loss *loss, int *status)
{
    pid_t pid[MOST];
    meet_at_free_port();
    for (int k = how->n - 1; k >= 0; k--)
        pid[k] = start(how, k, out_path);
    wait_all(pid, how->n, status, loss);
}

static void compare(const char *got, const char *wanted)
{
    FILE *a = fopen(got, "rb"), *b = fopen(wanted, "rb");
    float x, y;
    long n = 0, bad = 0;
    while (a && b && fread(&y, sizeof y, 1, b) == 1) {
        bad += fread(&x, sizeof x, 1, a) != 1 || memcmp(&x, &y, sizeof x) != 0;
        n++;
    }
    CHECK(n > 0 && bad == 0, "%ld of %ld logits differ", bad, n);
    CHECK(a && fgetc(a) == EOF, "there are more than %ld", n);
    if (a)
        fclose(a);
    if (b)
        fclose(b);
}

static void same_bits(const struct how *how)
{
    char got[PATH_BYTES], wanted[PATH_BYTES];
    int status[MOST] = { 0 };
    struct pf_model_opts o;
    pf_model *m;
    snprintf(got, sizeof got, "/tmp/pfmoe-ranks-%d-got", (int)getpid());
    snprintf(wanted, sizeof wanted, "/tmp/pfmoe-ranks-%d-wanted", (int)getpid());
    run_all(how, got, NULL, status);
    if (WIFEXITED(status[0]) && WEXITSTATUS(status[0]) == SKIPPED) {
        printf("there is no NCCL\n");
        exit(SKIPPED);
    }
    for (int k = 0; k < how->n; k++)
        CHECK(status[k] == 0, "rank %d ended with %d", k, status[k]);
    pf_model_opts_init(&o);
    o.device = -1;
    if (pf_model_open(&m, how->model, &o) == PF_OK) {
        FILE *out = fopen(wanted, "wb");
        CHECK(all_work(m, out, how->brief != NULL) == PF_OK, "%s", pf_last_error());
        fclose(out);
        pf_model_close(&m);
    }
    compare(got, wanted);
    unlink(got);
    unlink(wanted);
}

/* The one that is lost was killed, by itself or, if it had stopped, at the end, unless it fails; the others ended by
 * themselves. */
static void lose(const struct how *how, const struct loss *loss)
{
    int status[MOST] = { 0 }, n_killed = 0, n_ended = 0;
    if (!loss->signal)
        setenv("PFMOE_STANDIN", loss->words, 1);
    run_all(how, "/dev/null", loss, status);
    if (WIFEXITED(status[0]) && WEXITSTATUS(status[0]) == SKIPPED)
        exit(SKIPPED);
    for (int k = 0; k < how->n; k++) {
        n_killed += WIFSIGNALED(status[k]);
        n_ended += WIFEXITED(status[k]) && WEXITSTATUS(status[k]) == LOST;
    }
    bool is_killed = !strstr(loss->words, "fail");
    CHECK(n_killed == is_killed && n_ended == how->n - n_killed, "%s, %d: %d were killed, %d ended by themselves",
          loss->words, loss->tenths, n_killed, n_ended);
}

/* Numbers: from, to, step; or none. */
static void lose_all(const struct how *how, const char *words, char **numbers)
{
    enum { TENTHS = 40, WORDS_BYTES = 100 };
    char text[WORDS_BYTES] = "";
    const char *mark = strstr(words, "%d");
    int signal = strcmp(words, "killed") == 0 ? SIGKILL : strcmp(words, "stopped") == 0 ? SIGSTOP : 0;
    int from = numbers[0] ? atoi(numbers[0]) : signal ? TENTHS : 0, to = numbers[0] ? atoi(numbers[1]) : from;
    for (int i = from; i <= to; i += numbers[0] ? atoi(numbers[2]) : 1) {
        if (mark)
            snprintf(text, sizeof text, "%.*s%d%s", (int)(mark - words), words, i, mark + 2);
        lose(how, &(struct loss){ mark ? text : words, signal, signal ? i : 0 });
    }
}

static void copy(const char *from, const char *to)
{
    char bytes[1 << 16];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    for (size_t n; in && out && (n = fread(bytes, 1, sizeof bytes, in)) > 0;)
        fwrite(bytes, 1, n, out);
    CHECK(in && out && fclose(in) == 0 && fclose(out) == 0, "%s cannot be copied", from);
}

static void change(const struct how *how)
{
    char path[PATH_BYTES];
    int status[MOST] = { 0 };
    snprintf(path, sizeof path, "/tmp/pfmoe-ranks-%d-model", (int)getpid());
    copy(how->model, path);
    run_all(how, path, NULL, status);
    for (int k = 0; k < how->n; k++)
        CHECK(status[k] == 0, "rank %d ended with %d", k, status[k]);
    unlink(path);
}

int main(int argc, char **argv)
{
    if (argc > 6 && strcmp(argv[1], "--rank") == 0) {
        struct how how = { argv[3], argv[5], argc > 7 ? argv[7] : NULL, atoi(argv[4]) };
        return be_rank(&how, atoi(argv[2]), argv[6]);
    }
    struct how how = { argv[1], argv[3], NULL, atoi(argv[2]) };
    if (n_gpus() == 0) {
        printf("there is no GPU\n");
        return SKIPPED;
    }
    if (argc > 5 && strcmp(argv[4], "lost") == 0) {
        lose_all(&how, argv[5], argv + 6);
    } else if (strncmp(how.place, "changed", 7) == 0) {
        change(&how);
    } else {
        how.brief = argc > 4 ? argv[4] : NULL;
        same_bits(&how);
    }
    return check_status();
}
