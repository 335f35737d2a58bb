/* Lists and files of a hub by libcurl, which has its one door here.
 *
 *     GET $HF_ENDPOINT/api/models/OWNER/REPO/revision/main?blobs=true      commit, and path, size and hash of each file
 *     GET $HF_ENDPOINT/OWNER/REPO/resolve/COMMIT/PATH                      a file, usually after a redirect
 *
 * A file goes into HASH.incomplete, under a lock, so that two programs do not write into one. Where a transfer breaks
 * off, the next try asks for the rest; as long as tries bring something they go on, and after MOST_TRIES in a row that
 * brought nothing the file stays incomplete for another day. The token goes to the endpoint's host alone: libcurl
 * leaves the header out where a redirect leads to another. */
#define _GNU_SOURCE
#include <curl/curl.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "hub/hub.h"
#include "hub/hub_sha256.h"
#include "pfmoe.h"
#include "program/json.h"
#include "program/io/term.h"

enum { MOST_TRIES = 5, MOST_REDIRECTS = 10, MOST_LIST_BYTES = 32 << 20, MOST_PATIENCE_S = 3600 };

/* One answer of the hub, into text or into a file. */
struct answer {
    CURL       *curl;
    struct curl_slist *headers;
    char        error[CURL_ERROR_SIZE];
    int64_t     range_begin;          /* of the last answer's Content-Range; -1: it has none */
    struct buf  text;                 /* a list */
    bool        too_much;             /* more came than there can be */
    /* a file; fd -1: none */
    int         fd;
    const struct hub_file *file;
    uint64_t    at, began_at;         /* bytes in the file and in `pending`; as the transfer began */
    struct buf  pending;              /* the file's last bytes, which are not written yet */
    struct sha256 sum;                /* of all `at` bytes */
    bool        wrong_range, disk_failed;
    double      began_s, shown_s;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Settings of the hub's own programs -------------------------------------------------------------------------- */

static const char *endpoint(void)
{
    const char *value = getenv("HF_ENDPOINT");
    return value && *value ? value : "https://huggingface.co";
}

/* Seconds without a byte after which a try is over. */
static long patience(void)
{
    const char *value = getenv("HF_HUB_DOWNLOAD_TIMEOUT");
    long n = value ? strtol(value, NULL, 10) : 0;
    return n >= 1 && n <= MOST_PATIENCE_S ? n : 20;
}

static void read_token_file(const char *folder, const char *name, struct buf *out)
{
    struct buf path = { 0 };
    if (!folder || !*folder || out->n)
        return;
    buf_printf(&path, "%s%s", folder, name);
    if (!buf_read_file(out, path.p))
        buf_clear(out);
    buf_free(&path);
}

/* Appends the token; nothing if there is none. */
static void find_token(struct buf *out)
{
    const char *value = getenv("HF_TOKEN");
    if (value && *value)
        buf_puts(out, value);
    read_token_file(getenv("HF_TOKEN_PATH"), "", out);
    read_token_file(getenv("HF_HOME"), "/token", out);
    read_token_file(getenv("HOME"), "/.cache/huggingface/token", out);
    out->n = out->p ? strcspn(out->p, " \t\r\n") : 0;
    if (out->p)
        out->p[out->n] = 0;
}

/* ---- What comes in ----------------------------------------------------------------------------------------------- */

static void show_progress(struct answer *a, bool at_end)
{
    double t = now(), seconds = t - a->began_s;
    double rate = seconds > 0 ? (double)(a->at - a->began_at) / seconds : 0;
    double left = rate > 0 ? (double)(a->file->size - a->at) / rate : 0;
    const char *slash = strrchr(a->file->path, '/');
    if (!term_err_is_tty() || (!at_end && t - a->shown_s < 0.2))
        return;
    struct buf name = { 0 };
    buf_add_clean(&name, slash ? slash + 1 : a->file->path, strlen(slash ? slash + 1 : a->file->path));
    a->shown_s = t;
    fprintf(stderr, "\r\033[K%.40s  %3.0f%% of %.2f GB  %.1f MB/s  %d:%02d left%s", buf_text(&name),
            a->file->size ? 100 * (double)a->at / (double)a->file->size : 100, (double)a->file->size * 1e-9,
            rate * 1e-6, (int)(left / 60), (int)left % 60, at_end ? "\n" : "");
    buf_free(&name);
}

static size_t take_header(char *p, size_t size, size_t n, void *ctx)
{
    struct answer *a = ctx;
    long long begin;
    char line[128];
    snprintf(line, sizeof line, "%.*s", (int)(n < 127 ? n : 127), p);
    if (strncmp(line, "HTTP/", 5) == 0)
        a->range_begin = -1;                     /* after a redirect another answer begins */
    else if (strncasecmp(line, "Content-Range:", 14) == 0 && sscanf(line + 14, " bytes %lld-", &begin) == 1)
        a->range_begin = begin;
    return size * n;
}

static size_t take_text(struct answer *a, const char *p, size_t n)
{
    if (a->text.n + n > MOST_LIST_BYTES) {
        a->too_much = true;
        return 0;
    }
    buf_add(&a->text, p, n);
    return n;
}

/* The answer is the whole file, though only a part was asked for: begin anew. */
static bool begin_anew(struct answer *a)
{
    buf_clear(&a->pending);
    a->at = a->began_at = 0;
    sha256_begin(&a->sum);
    return ftruncate(a->fd, 0) == 0 && lseek(a->fd, 0, SEEK_SET) == 0;
}

static bool write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t written = write(fd, p, n);
        if (written < 0 && errno != EINTR)
            return false;
        p += written > 0 ? written : 0;
        n -= written > 0 ? (size_t)written : 0;
    }
    return true;
}

/* Writes the first n of the pending bytes. */
static void write_pending(struct answer *a, size_t n)
{
    a->disk_failed = a->disk_failed || !write_all(a->fd, a->pending.p, n);
    buf_drop(&a->pending, n);
}

/* Adds bytes to the file, which are written up to the last multiple of PIECE: file systems that can keep such a piece
 * in memory in one, which the processor maps as one. Decoding reads that faster than small ones
 * (docs/performance.md). */
static void add_to_file(struct answer *a, const char *p, size_t n)
{
    enum { PIECE = 2 << 20 };
    buf_add(&a->pending, p, n);
    a->at += n;
    size_t rest = (size_t)(a->at % PIECE);
    if (a->pending.n > rest)
        write_pending(a, a->pending.n - rest);
}

static size_t take_file(struct answer *a, const char *p, size_t n)
{
    long status = 0;
    curl_easy_getinfo(a->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206)
        return n;                                /* the status says enough */
    if (status == 200 && a->at > 0 && a->at == a->began_at && !begin_anew(a)) {
        a->disk_failed = true;
        return 0;
    }
    if (status == 206 && a->at == a->began_at && a->range_begin != (int64_t)a->at) {
        a->wrong_range = true;
        return 0;
    }
    if (n > a->file->size - a->at) {
        a->too_much = true;
        return 0;
    }
    sha256_add(&a->sum, p, n);
    add_to_file(a, p, n);
    return a->disk_failed ? 0 : n;
}

static size_t take_body(char *p, size_t size, size_t n, void *ctx)
{
    struct answer *a = ctx;
    return a->fd >= 0 ? take_file(a, p, size * n) : take_text(a, p, size * n);
}

static int go_on(void *ctx, curl_off_t total, curl_off_t done, curl_off_t up_total, curl_off_t up)
{
    struct answer *a = ctx;
    (void)total, (void)done, (void)up_total, (void)up;
    if (a->fd >= 0)
        show_progress(a, false);
    return interrupted();
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

static bool open_answer(struct answer *a)
{
    struct buf token = { 0 }, header = { 0 };
    bool plain = strncasecmp(endpoint(), "http://", 7) == 0;
    *a = (struct answer){ .curl = curl_easy_init(), .fd = -1, .range_begin = -1 };
    if (!a->curl)
        return false;
    find_token(&token);
    buf_printf(&header, "Authorization: Bearer %s", buf_text(&token));
    if (token.n)
        a->headers = curl_slist_append(NULL, header.p);
    curl_easy_setopt(a->curl, CURLOPT_HTTPHEADER, a->headers);
    curl_easy_setopt(a->curl, CURLOPT_USERAGENT, "pfmoe");
    curl_easy_setopt(a->curl, CURLOPT_ERRORBUFFER, a->error);
    curl_easy_setopt(a->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(a->curl, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(a->curl, CURLOPT_MAXREDIRS, (long)MOST_REDIRECTS);
    curl_easy_setopt(a->curl, CURLOPT_PROTOCOLS_STR, plain ? "http,https" : "https");
    curl_easy_setopt(a->curl, CURLOPT_REDIR_PROTOCOLS_STR, plain ? "http,https" : "https");
    curl_easy_setopt(a->curl, CURLOPT_CONNECTTIMEOUT, patience());
    curl_easy_setopt(a->curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(a->curl, CURLOPT_LOW_SPEED_TIME, patience());
    curl_easy_setopt(a->curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(a->curl, CURLOPT_XFERINFOFUNCTION, go_on);
    curl_easy_setopt(a->curl, CURLOPT_XFERINFODATA, a);
    curl_easy_setopt(a->curl, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(a->curl, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(a->curl, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(a->curl, CURLOPT_WRITEDATA, a);
    buf_free(&token);
    buf_free(&header);
    return true;
}

static void close_answer(struct answer *a)
{
    if (a->fd >= 0)
        close(a->fd);
    curl_slist_free_all(a->headers);
    curl_easy_cleanup(a->curl);
    buf_free(&a->text);
    buf_free(&a->pending);
}

/* A failure that no other try can mend is FAILED, which has said why; one that might pass is AGAIN. */
enum outcome { DONE, AGAIN, FAILED };

static enum outcome judge_status(long status, const struct hub_name *name, struct buf *why)
{
    if (status == 200 || status == 206)
        return DONE;
    buf_clear(why);
    if (status == 401 || status == 403)
        buf_printf(why, "%s/%s is not there, or may be read with a token alone: HF_TOKEN, or the hub's token file "
                        "(status %ld)", name->owner, name->repo, status);
    else if (status == 404)
        buf_printf(why, "the hub has no %s/%s (status 404)", name->owner, name->repo);
    else
        buf_printf(why, "the hub answered with status %ld", status);
    return status == 408 || status == 429 || status >= 500 ? AGAIN : FAILED;
}

static enum outcome judge(struct answer *a, CURLcode code, const struct hub_name *name, struct buf *why)
{
    long status = 0;
    curl_easy_getinfo(a->curl, CURLINFO_RESPONSE_CODE, &status);
    buf_clear(why);
    if (interrupted()) {
        buf_puts(why, "interrupted; the same command goes on from here");
        return FAILED;
    }
    if (a->disk_failed) {
        buf_printf(why, "cannot write: %s", strerror(errno));
        return FAILED;
    }
    if (a->too_much) {
        buf_puts(why, "the hub sent more than it said it would");
        return a->fd >= 0 ? AGAIN : FAILED;
    }
    if (a->wrong_range || status == 416) {
        a->wrong_range = true;
        buf_puts(why, "the hub sent another part of the file than was asked for");
        return AGAIN;
    }
    if (code != CURLE_OK && code != CURLE_WRITE_ERROR) {
        buf_printf(why, "%s: %s", endpoint(), a->error[0] ? a->error : curl_easy_strerror(code));
        bool hopeless = code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT ||
                        code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_PEER_FAILED_VERIFICATION;
        return hopeless ? FAILED : AGAIN;
    }
    return judge_status(status, name, why);
}

/* A pause before try number i, longer each time; over at Ctrl-C. */
static void wait_before(int i)
{
    for (int ms = i > 0 ? 100 << (2 * i - 2) : 0; ms > 0 && !interrupted(); ms -= 100)
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

static bool copy_string(struct json v, char *out, size_t cap)
{
    struct buf text = { 0 };
    json_string(v, &text);
    bool fits = json_is(v, '"') && text.n < cap && memchr(buf_text(&text), 0, text.n) == NULL;
    snprintf(out, cap, "%s", fits ? buf_text(&text) : "");
    buf_free(&text);
    return fits;
}

/* One of the repository's files; false: what is said of it makes no sense. */
static bool read_file_entry(struct json entry, struct hub_file *f)
{
    struct json lfs = json_get(entry, "lfs");
    int64_t size;
    *f = (struct hub_file){ .is_sha256 = json_is(lfs, '{') };
    bool ok = copy_string(json_get(entry, "rfilename"), f->path, sizeof f->path) && hub_path_is_safe(f->path);
    if (f->is_sha256)
        ok = ok && copy_string(json_get(lfs, "sha256"), f->hash, sizeof f->hash) && hub_is_hex(f->hash, 64);
    else
        ok = ok && copy_string(json_get(entry, "blobId"), f->hash, sizeof f->hash) && hub_is_hex(f->hash, 40);
    ok = ok && json_int(json_get(f->is_sha256 ? lfs : entry, "size"), &size) && size >= 0 && size < (int64_t)1 << 50;
    f->size = ok ? (uint64_t)size : 0;
    return ok;
}

static bool is_gguf(struct json entry)
{
    char path[HUB_MAX_PATH];
    copy_string(json_get(entry, "rfilename"), path, sizeof path);
    return strcasestr(path, ".gguf") != NULL;
}

static bool read_list(const struct buf *text, char commit[HUB_HASH], struct hub_files *out, struct buf *why)
{
    size_t where;
    struct json root, files, entry = { 0 };
    if (!json_valid(buf_text(text), text->n, &where)) {
        buf_printf(why, "the hub's list of files is not JSON (offset %zu)", where);
        return false;
    }
    root = json_value(text->p, text->n);
    files = json_get(root, "siblings");
    if (!copy_string(json_get(root, "sha"), commit, HUB_HASH) || !hub_is_hex(commit, 40) || !json_is(files, '[')) {
        buf_puts(why, "the hub's list of files has no commit or no files");
        return false;
    }
    while ((entry = json_next(files, entry)).p) {
        struct hub_file f;
        if (!is_gguf(entry))
            continue;
        if (out->n == HUB_MAX_FILES || !read_file_entry(entry, &f)) {
            buf_printf(why, "the hub's list of files has a path, size or hash that makes no sense (file %d)", out->n);
            return false;
        }
        *hub_files_add(out) = f;
    }
    return true;
}

bool hub_fetch_list(const struct hub_name *name, char commit[HUB_HASH], struct hub_files *out, struct buf *why)
{
    const char *offline = getenv("HF_HUB_OFFLINE");
    struct answer a;
    struct buf url = { 0 };
    enum outcome was = AGAIN;
    if (offline && strcmp(offline, "1") == 0) {
        buf_printf(why, "%s/%s is not in the cache, and HF_HUB_OFFLINE is set", name->owner, name->repo);
        return false;
    }
    if (!open_answer(&a))
        return false;
    interrupt_watch(NULL, 3);
    buf_printf(&url, "%s/api/models/%s/%s/revision/main?blobs=true", endpoint(), name->owner, name->repo);
    curl_easy_setopt(a.curl, CURLOPT_URL, url.p);
    for (int i = 0; was == AGAIN && i < MOST_TRIES; i++) {
        wait_before(i);
        buf_clear(&a.text);
        was = judge(&a, curl_easy_perform(a.curl), name, why);
    }
    bool ok = was == DONE && read_list(&a.text, commit, out, why);
    close_answer(&a);
    buf_free(&url);
    return ok;
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static bool fail(struct buf *why, const char *what, const char *path)
{
    buf_clear(why);
    buf_printf(why, "cannot %s %s: %s", what, path, strerror(errno));
    return false;
}

/* Goes over what an earlier try left, to know its hash; what is longer than the file can be is thrown away. */
static bool take_up(struct answer *a)
{
    char piece[1 << 16];
    ssize_t n;
    sha256_begin(&a->sum);
    a->at = 0;
    while ((n = read(a->fd, piece, sizeof piece)) > 0) {
        sha256_add(&a->sum, piece, (size_t)n);
        a->at += (uint64_t)n;
        if (a->at > a->file->size)
            break;
    }
    a->began_at = a->at;
    return (n >= 0 && a->at <= a->file->size) || begin_anew(a);
}

/* Opens and locks the incomplete file. */
static bool open_part(struct answer *a, const char *part, struct buf *why)
{
    struct statvfs fs;
    a->fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (a->fd < 0)
        return fail(why, "write", part);
    if (flock(a->fd, LOCK_EX | LOCK_NB) < 0) {
        buf_printf(why, "another program is fetching %s", a->file->path);
        return false;
    }
    if (!take_up(a))
        return fail(why, "read", part);
    if (fstatvfs(a->fd, &fs) == 0 && (double)fs.f_bavail * (double)fs.f_frsize < (double)(a->file->size - a->at)) {
        buf_printf(why, "%s needs %.2f GB more, and the drive has %.2f", a->file->path,
                   (double)(a->file->size - a->at) * 1e-9, (double)fs.f_bavail * (double)fs.f_frsize * 1e-9);
        return false;
    }
    return true;
}

/* Asks for what is missing; whole: all of it is there. */
static enum outcome try_once(struct answer *a, const struct hub_name *name, struct buf *why)
{
    char range[32];
    a->too_much = a->wrong_range = false;
    a->began_at = a->at;
    a->began_s = now();
    snprintf(range, sizeof range, "%llu-", (unsigned long long)a->at);
    curl_easy_setopt(a->curl, CURLOPT_RANGE, a->at ? range : NULL);
    CURLcode code = curl_easy_perform(a->curl);
    write_pending(a, a->pending.n);              /* what came is there for the next try, whatever became of this one */
    enum outcome was = judge(a, code, name, why);
    if (was == DONE && a->at < a->file->size) {
        buf_printf(why, "the hub sent %llu of %llu bytes", (unsigned long long)a->at,
                   (unsigned long long)a->file->size);
        return AGAIN;
    }
    return was;
}

/* Whether the bytes are those that the hub named. */
static bool check(struct answer *a)
{
    char found[HUB_HASH];
    struct sha256 sum = a->sum;
    sha256_end(&sum, found);
    return !a->file->is_sha256 || strcmp(found, a->file->hash) == 0;
}

/* Until the file is whole: tries that bring nothing are counted, and so are beginnings; a file that is whole and wrong
 * is fetched once more from its beginning, as what an earlier run left may be at fault. */
static bool fetch_all(struct answer *a, const struct hub_name *name, struct buf *why)
{
    bool was_wrong = false;
    int n_anew = 0;
    for (int tries = 0;;) {
        uint64_t before = a->at;
        wait_before(tries);
        enum outcome was = a->at < a->file->size || a->file->size == 0 ? try_once(a, name, why) : DONE;
        if (was == DONE && check(a))
            return true;
        if (was == FAILED)
            return false;
        if (was == DONE || a->too_much || a->wrong_range) {
            if (was == DONE && was_wrong) {
                buf_clear(why);
                buf_printf(why, "%s is not what the hub says it is (SHA-256 %s)", a->file->path, a->file->hash);
                begin_anew(a);
                return false;
            }
            was_wrong = was_wrong || was == DONE;
            if (!begin_anew(a))
                return fail(why, "write", a->file->path);
            if (++n_anew >= MOST_TRIES)
                return false;
        }
        tries = a->at > before ? 1 : tries + 1;
        if (tries >= MOST_TRIES)
            return false;
    }
}

bool hub_fetch_file(const struct hub_name *name, const char *commit, const struct hub_file *f, const char *blob,
                    struct buf *why)
{
    struct answer a;
    struct buf url = { 0 }, part = { 0 };
    if (!open_answer(&a))
        return false;
    interrupt_watch(NULL, 3);
    a.file = f;
    buf_printf(&part, "%s.incomplete", blob);
    buf_printf(&url, "%s/%s/%s/resolve/%s/", endpoint(), name->owner, name->repo, commit);
    for (const char *p = f->path; *p; p++)
        buf_printf(&url, strchr("/-._~", *p) || (*p >= '0' && *p <= '9') || ((*p | 32) >= 'a' && (*p | 32) <= 'z')
                             ? "%c" : "%%%02X", (unsigned char)*p);
    curl_easy_setopt(a.curl, CURLOPT_URL, url.p);
    note("fetching %s, %.2f GB", f->path, (double)f->size * 1e-9);
    bool ok = open_part(&a, part.p, why) && fetch_all(&a, name, why);
    if (ok) {
        show_progress(&a, true);
        ok = fsync(a.fd) == 0 && rename(part.p, blob) == 0;
        if (!ok)
            fail(why, "write", blob);
    }
    close_answer(&a);
    buf_free(&url);
    buf_free(&part);
    return ok;
}
