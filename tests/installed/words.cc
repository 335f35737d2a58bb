// A C++ program on an installed pfmoe: counts the tokens of a text and makes them a text again.
#include <cstdio>
#include <string>
#include <vector>

#include <pfmoe.h>

int main(int argc, char **argv)
{
    pf_model_opts opts;
    pf_model *m = nullptr;
    pf_model_opts_init(&opts);
    opts.vocab_only = true;
    if (argc != 3 || pf_model_open(&m, argv[1], &opts) < 0) {
        std::fprintf(stderr, "words: %s\n", argc != 3 ? "usage: words MODEL TEXT" : pf_last_error());
        return 1;
    }
    std::string text = argv[2], back(text.size(), 0);
    std::vector<int32_t> ids(text.size() + 1);
    size_t n = 0, n_bytes = 0;
    bool same = pf_tokenize(m, text.data(), text.size(), 0, ids.data(), ids.size(), &n) == PF_OK &&
                pf_detokenize(m, ids.data(), n, 0, &back[0], back.size(), &n_bytes) == PF_OK && n_bytes == text.size() &&
                back == text;
    std::printf("%zu tokens, the text %s\n", n, same ? "again" : "is another");
    pf_model_close(&m);
    return same ? 0 : 1;
}
