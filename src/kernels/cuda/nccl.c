/* See nccl.h. */
#include "kernels/cuda/nccl.h"

#include <dlfcn.h>
#include <limits.h>

enum { NCCL_MAGIC = 0xcafebeef, NCCL_LEAST = 21801 };        /* 2.18.1 is the first with all that is used */

struct symbol {
    const char *name;
    void      **at;
};

static pf_status look_up(void *library, const struct symbol *s, int n)
{
    for (int i = 0; i < n; i++) {
        *s[i].at = dlsym(library, s[i].name);
        if (!*s[i].at)
            PF_FAIL(PF_EUNSUPPORTED, "the NCCL that is installed is too old: it has no %s", s[i].name);
    }
    return PF_OK;
}

pf_status pf_nccl_find(struct nccl *out)
{
    const struct symbol symbols[] = {
        { "ncclGetVersion", (void **)&out->version },
        { "ncclGetUniqueId", (void **)&out->unique_id },
        { "ncclCommInitRankConfig", (void **)&out->comm_init },
        { "ncclCommSplit", (void **)&out->comm_split },
        { "ncclCommGetAsyncError", (void **)&out->comm_state },
        { "ncclCommAbort", (void **)&out->comm_abort },
        { "ncclBroadcast", (void **)&out->broadcast },
        { "ncclAllGather", (void **)&out->all_gather },
        { "ncclSend", (void **)&out->send },
        { "ncclRecv", (void **)&out->receive },
        { "ncclGetErrorString", (void **)&out->error_text },
        { "ncclGetLastError", (void **)&out->last_error },
    };
    int version = 0;
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        PF_FAIL(PF_EUNSUPPORTED, "several processes need NVIDIA's NCCL, which was not found: %s", dlerror());
    PF_TRY(look_up(library, symbols, sizeof symbols / sizeof *symbols));
    if (out->version(&version) != NCCL_SUCCESS || version < NCCL_LEAST)
        PF_FAIL(PF_EUNSUPPORTED, "the NCCL that is installed is too old: version %d, and %d is the first that will do",
                version, (int)NCCL_LEAST);
    return PF_OK;
}

struct nccl_config pf_nccl_config(bool small)
{
    return (struct nccl_config){ .size = sizeof(struct nccl_config), .magic = NCCL_MAGIC, .version = NCCL_LEAST,
                                 .blocking = 0, .cluster = INT_MIN, .least_blocks = small ? 1 : INT_MIN,
                                 .most_blocks = small ? 1 : INT_MIN, .split_share = INT_MIN };
}
