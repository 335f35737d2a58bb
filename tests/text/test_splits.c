/* Checks pf_pretokenize against recorded chunks: each argument is a file PRE.jsonl, one object a line with "text" and
 * "splits" (what llama.cpp cuts) and perhaps "splits_model" (the model's own tokenizer, which is then the truth). */
#include "jsonl.h"

#include "pfmoe.h"

static bool line_holds(const char *pre, const cJSON *line)
{
    static size_t ends[4096];
    struct bytes text = bytes_of(cJSON_GetObjectItem(line, "text"));
    const cJSON *want = cJSON_GetObjectItem(line, "splits_model");
    if (!want)
        want = cJSON_GetObjectItem(line, "splits");
    size_t n, end = 0, i = 0;
    if (pf_pretokenize(pre, text.p, text.n, ends, 4096, &n) < 0) {
        printf("%s: %s\n", pre, pf_last_error());
        return false;
    }
    for (const cJSON *w = want->child; w; w = w->next, i++) {
        end += bytes_of(w).n;
        if (i >= n || ends[i] != end)
            return false;
    }
    return i == n;
}

int main(int argc, char **argv)
{
    int total = 0, failed = 0;
    for (int i = 1; i < argc; i++) {
        struct jsonl f = jsonl_open(argv[i]);
        char pre[64];
        stem_of(pre, sizeof pre, argv[i], ".jsonl");
        int n = 0, bad = 0;
        for (cJSON *line; (line = jsonl_next(&f)); cJSON_Delete(line)) {
            n++;
            if (line_holds(pre, line))
                continue;
            bad++;
            printf("%s line %d: %s\n", pre, n, cJSON_GetObjectItem(line, "text")->valuestring);
        }
        jsonl_close(&f);
        printf("%-16s %d of %d\n", pre, n - bad, n);
        total += n;
        failed += bad;
    }
    printf("%d of %d lines in %d files\n", total - failed, total, argc - 1);
    return failed || !total;
}
