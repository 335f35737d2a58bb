/* Any bytes as a GGUF file whose tokenizer is loaded and used: no crash, no leak, and a sentence when it is refused. */
#define _GNU_SOURCE
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/pf_mem.h"
#include "fuzz.h"
#include "text/vocab.h"

static void use(const pf_vocab *v)
{
    static const char text[] =
        "Hello hello  123, don't\n\n<|end|></s> e\xCC\x81 \xE4\xBD\xA0\xE2\x96\x81\xFF "
        "hellohellohellohellohellohellohello";
    static int32_t ids[1024];
    static char back[1 << 16];
    size_t n, need;
    for (unsigned flags = 0; flags < 4; flags++) {
        pf_status st = pf_vocab_tokenize(v, text, sizeof text, flags, ids, 1024, &n);
        assert(st == PF_OK);
        for (size_t i = 0; i < n; i++)
            assert(ids[i] >= 0 && ids[i] < pf_vocab_size(v));
        (void)pf_vocab_detokenize(v, ids, n, flags, back, sizeof back, &need);
    }
    for (int32_t id = -1; id <= pf_vocab_size(v); id++) {
        size_t len;
        const char *piece = pf_vocab_piece(v, id, true, &len);
        int32_t found = pf_vocab_find(v, piece, len);
        assert(found >= -1 && found < pf_vocab_size(v));
        (void)pf_vocab_is_end(v, id);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    struct pf_mem_stats stats;
    char path[64];
    pf_gguf *g;
    pf_vocab *v = NULL;
    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (pf_gguf_open(&g, path, PF_GGUF_VOCAB_ONLY) == PF_OK) {
        if (pf_vocab_open(&v, g) < 0)
            assert(!v && strlen(pf_last_error()) > 10);
        pf_gguf_close(&g);
    }
    if (v)
        use(v);
    pf_vocab_close(&v);
    pf_mem_stats_get(&stats);
    assert(stats.n_live == 0);
    return 0;
}
