/* NCCL, found when it is wanted: this file and nccl.c are its only door, and pfmoe builds and runs without it. What is
 * declared here is its documented binary interface since 2.18, as far as ranks use it. */
#ifndef PF_CUDA_NCCL_H
#define PF_CUDA_NCCL_H

#include <cuda_runtime_api.h>

#include "base/pf_status.h"

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 };     /* results; all others are failures */
enum { NCCL_CHAR = 0 };                              /* a type of elements: bytes */

typedef struct nccl_comm *nccl_comm;

struct nccl_id {
    char bytes[128];
};

/* Options of a communicator. An option that nobody sets is INT_MIN, or NULL. */
struct nccl_config {
    size_t      size;
    unsigned    magic, version;
    int         blocking, cluster, least_blocks, most_blocks;
    const char *network;
    int         split_share;
};

struct nccl {
    int (*version)(int *version);
    int (*unique_id)(struct nccl_id *id);
    int (*comm_init)(nccl_comm *comm, int n, struct nccl_id id, int rank, struct nccl_config *config);
    int (*comm_split)(nccl_comm comm, int colour, int key, nccl_comm *part, struct nccl_config *config);
    int (*comm_state)(nccl_comm comm, int *state);
    int (*comm_abort)(nccl_comm comm);
    int (*broadcast)(const void *from, void *to, size_t n, int type, int root, nccl_comm comm, cudaStream_t stream);
    int (*all_gather)(const void *from, void *to, size_t n, int type, nccl_comm comm, cudaStream_t stream);
    int (*send)(const void *from, size_t n, int type, int to, nccl_comm comm, cudaStream_t stream);
    int (*receive)(void *to, size_t n, int type, int from, nccl_comm comm, cudaStream_t stream);
    const char *(*error_text)(int result);
    const char *(*last_error)(nccl_comm comm);
};

/* Finds the library by the dynamic linker's rules; PF_EUNSUPPORTED, if there is none or it is too old. It stays loaded
 * as long as the program runs. */
pf_status pf_nccl_find(struct nccl *out);

/* Options of a communicator whose calls do not wait, with as many of the GPU's blocks as NCCL likes, or 1. */
struct nccl_config pf_nccl_config(bool small);

#endif
