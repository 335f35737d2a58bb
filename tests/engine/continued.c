/* A reply that goes on with the last message, in every chat template: the prompt is what the template prints of the
 * conversation, as far as that message's content, which is not changed at its end.
 *
 * usage: continued MODEL.gguf FOLDER     of templates, *.jinja. 77: the folder is not there */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "pfmoe.h"

enum { MAX_TEXT = 1 << 18 };

static const struct pf_message talk[] = {
    { .role = "user", .content = "How far is it?" },
    { .role = "assistant", .content = "Not far." },
    { .role = "user", .content = "In miles?" },
    { .role = "assistant", .content = "It is about " },
};
enum { N_TALK = sizeof talk / sizeof *talk };

static bool render(const pf_model *m, struct pf_chat_opts *o, char *out, size_t *n)
{
    pf_status st = pf_chat_render(m, talk, N_TALK, o, out, MAX_TEXT - 1, n);
    CHECK(st == PF_OK, "%s", pf_last_error());
    out[st == PF_OK ? *n : 0] = 0;
    return st == PF_OK;
}

/* Templates that strip a message's end print less of the whole than the prompt has. */
static void check_template(const pf_model *m, struct pf_chat_opts *o, const char *name)
{
    static char whole[MAX_TEXT], prompt[MAX_TEXT];
    static const char end[] = "It is about ";
    size_t n_whole, n, n_end = sizeof end - 1;
    o->add_generation_prompt = false;
    o->continue_last = false;
    if (!render(m, o, whole, &n_whole))
        return;
    o->continue_last = true;
    if (!render(m, o, prompt, &n))
        return;
    CHECK(n >= n_end && strcmp(prompt + n - n_end, end) == 0, "%s: the prompt ends \"%s\"", name,
          n > 40 ? prompt + n - 40 : prompt);
    CHECK(n <= n_whole + 1 && memcmp(whole, prompt, n - 1) == 0, "%s: \"%s\" does not begin with \"%s\"", name, whole,
          prompt);
    o->add_generation_prompt = true;
    size_t n_again;
    CHECK(render(m, o, whole, &n_again) && n_again == n && strcmp(whole, prompt) == 0, "%s: \"%s\"", name, whole);
}

static int check_folder(const pf_model *m, const char *folder)
{
    DIR *d = opendir(folder);
    struct dirent *f;
    int n = 0;
    while (d && (f = readdir(d))) {
        size_t len = strlen(f->d_name);
        if (len < 6 || strcmp(f->d_name + len - 6, ".jinja") != 0)
            continue;
        static char text[MAX_TEXT];
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
        FILE *file = fopen(path, "rb");
        text[file ? fread(text, 1, sizeof text - 1, file) : 0] = 0;
        CHECK(file && text[0], "%s cannot be read", path);
        if (file)
            fclose(file);
        struct pf_chat_opts o;
        pf_chat_opts_init(&o);
        o.template_text = text;
        check_template(m, &o, f->d_name);
        memset(text, 0, sizeof text);
        n++;
    }
    if (d)
        closedir(d);
    return n;
}

/* What cannot be gone on with is refused, by the library or since the template does not print it. */
static void check_refused(const pf_model *m)
{
    static const struct pf_message none[] = { { .role = "user", .content = "a" },
                                              { .role = "assistant", .content = "" },
                                              { .role = "assistant", .content = NULL },
                                              { .role = "assistant", .content = "a", .tool_calls_json = "[]" } };
    struct pf_chat_opts o;
    char out[256];
    size_t n;
    pf_chat_opts_init(&o);
    o.continue_last = true;
    o.template_name = "chatml";
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        CHECK(pf_chat_render(m, &none[i], 1, &o, out, sizeof out, &n) == PF_EINVAL, "message %zu", i);
    CHECK(pf_chat_render(m, none, 0, &o, out, sizeof out, &n) == PF_EINVAL, "no message");
    o.template_text = "{{ messages[0].content }}";
    CHECK(pf_chat_render(m, talk, N_TALK, &o, out, sizeof out, &n) == PF_ETEMPLATE, "a template without the last one");
    o.template_text = "{{ messages[-1].content | upper }}";
    CHECK(pf_chat_render(m, talk, N_TALK, &o, out, sizeof out, &n) == PF_ETEMPLATE, "a template that changes it");
}

int main(int argc, char **argv)
{
    pf_model *m = NULL;
    if (argc != 3 || pf_model_open(&m, argv[1], NULL) < 0)
        return 2;
    check_refused(m);
    for (int i = 0; pf_chat_builtin(i); i++) {
        struct pf_chat_opts o;
        pf_chat_opts_init(&o);
        o.template_name = pf_chat_builtin(i);
        check_template(m, &o, o.template_name);
    }
    int n = check_folder(m, argv[2]);
    printf("%d templates of files\n", n);
    pf_model_close(&m);
    return check_status() ? 1 : n ? 0 : 77;
}
