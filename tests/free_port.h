/* Where processes of a test meet. */
#ifndef TEST_FREE_PORT_H
#define TEST_FREE_PORT_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

/* Tells the processes that will be started that they meet at a port of this machine which nobody has now. */
static inline void meet_at_free_port(void)
{
    char at[64];
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool ok = bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && getsockname(fd, (struct sockaddr *)&a, &size) == 0;
    close(fd);
    snprintf(at, sizeof at, "127.0.0.1:%d", ok ? ntohs(a.sin_port) : 0);
    setenv("NCCL_COMM_ID", at, 1);
}

#endif
