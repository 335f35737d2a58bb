/* See complete.h. One thread.
 *
 *     /lo|         commands               /set th|   settings            /set think o|   a setting's values
 *     /load ~/a|   names in a folder, for every command whose argument is a FILE; blanks belong to the path
 *
 * A name in a folder that holds controls, or bytes that are no UTF-8, is left out: it could not be typed either. */
#define _GNU_SOURCE
#include "cli/chat/complete.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/chat/chat.h"

enum { MOST_NAMES = 4096 };              /* of a folder that are looked at for candidates */

static void add(struct candidates *out, const char *begin, const char *text, const char *end)
{
    struct buf whole = { 0 };
    if (strncmp(text, begin, strlen(begin)) != 0)
        return;
    buf_printf(&whole, "%s%s", text, end);
    out->v = xrealloc(out->v, out->n + 1, sizeof *out->v);
    out->v[out->n++] = whole.p;
}

/* ---- Commands and settings --------------------------------------------------------------------------------------- */

static void commands(const char *begin, struct candidates *out)
{
    const char *name, *arg;
    for (int i = 0; (name = command_name(i, &arg)); i++)
        add(out, begin, name, *arg ? " " : "");
}

static void values(const char *choices, const char *begin, struct candidates *out)
{
    for (const char *p = choices; *p; p += strcspn(p, "|"), p += *p == '|') {
        struct buf word = { 0 };
        buf_add(&word, p, strcspn(p, "|"));
        add(out, begin, word.p, "");
        buf_free(&word);
    }
}

/* rest: what stands behind "/set ". */
static void settings(const char *rest, struct candidates *out)
{
    const char *name, *choices;
    size_t n = strcspn(rest, " ");
    for (int i = 0; opts_live(i, &name, &choices); i++) {
        if (!rest[n])
            add(out, rest, name, " ");
        else if (strlen(name) == n && memcmp(name, rest, n) == 0)
            values(choices, rest + n + strspn(rest + n, " "), out);
    }
    out->from += n + strspn(rest + n, " ");
    if (!rest[n])
        out->from -= n;
}

/* ---- Paths ------------------------------------------------------------------------------------------------------- */

static bool can_be_typed(const char *name)
{
    struct buf clean = { 0 };
    buf_add_clean(&clean, name, strlen(name));
    bool ok = strcmp(buf_text(&clean), name) == 0 && !strpbrk(name, "\n\t");
    buf_free(&clean);
    return ok;
}

static bool is_folder(const char *folder, const char *name)
{
    struct buf path = { 0 };
    struct stat st;
    buf_printf(&path, "%s/%s", folder, name);
    bool yes = stat(path.p, &st) == 0 && S_ISDIR(st.st_mode);
    buf_free(&path);
    return yes;
}

/* typed: a path up to the cursor. Candidates are names in the folder that it names. */
static void paths(const char *typed, struct candidates *out)
{
    const char *slash = strrchr(typed, '/'), *begin = slash ? slash + 1 : typed;
    struct buf shown = { 0 };
    buf_add(&shown, typed, (size_t)(begin - typed));
    char *folder = path_of(shown.n ? buf_text(&shown) : ".");
    DIR *dir = opendir(folder);
    struct dirent *entry;
    for (int i = 0; dir && i < MOST_NAMES && (entry = readdir(dir)); i++) {
        const char *name = entry->d_name;
        bool hidden = name[0] == '.' && begin[0] != '.', dots = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
        if (!hidden && !dots && can_be_typed(name) && strncmp(name, begin, strlen(begin)) == 0)
            add(out, begin, name, is_folder(folder, name) ? "/" : "");
    }
    if (dir)
        closedir(dir);
    if (strcmp(typed, "~") == 0)
        add(out, "~", "~", "/");
    out->from += (size_t)(begin - typed);
    free(folder);
    buf_free(&shown);
}

/* ---- The line ---------------------------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void complete(const char *line, struct candidates *out)
{
    const char *name, *arg, *rest = line + strcspn(line, " ");
    size_t n = (size_t)(rest - line);
    if (line[0] != '/')
        return;
    out->from = 1;
    if (!*rest) {
        commands(line + 1, out);
    } else {
        rest += strspn(rest, " ");
        out->from = (size_t)(rest - line);
        for (int i = 0; (name = command_name(i, &arg)); i++) {
            if (strlen(name) != n - 1 || memcmp(name, line + 1, n - 1) != 0)
                continue;
            if (strcmp(arg, "FILE") == 0)
                paths(rest, out);
            else if (strcmp(name, "set") == 0)
                settings(rest, out);
        }
    }
    if (out->n)
        qsort(out->v, out->n, sizeof *out->v, by_text);
}
