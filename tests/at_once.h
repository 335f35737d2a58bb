/* Parts of a test that run at the same time, each in a process of its own: for tests that mostly wait for the drive.
 * Nothing else of the test may be running when they begin. */
#ifndef TEST_AT_ONCE_H
#define TEST_AT_ONCE_H

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { MOST_AT_ONCE = 8 };
static pid_t parts_begun[MOST_AT_ONCE];
static int   n_parts_begun;

/* The part ends with its process, which says whether all its checks hold. */
#define AT_ONCE(call)                                                                             \
    do {                                                                                          \
        fflush(stdout);                                                                           \
        pid_t pid = fork();                                                                       \
        if (pid == 0) {                                                                           \
            call;                                                                                 \
            exit(check_status());                                                                 \
        }                                                                                         \
        parts_begun[n_parts_begun++] = pid;                                                       \
    } while (0)

static void await_parts(void)
{
    for (int i = 0; i < n_parts_begun; i++) {
        int status = -1;
        CHECK(parts_begun[i] > 0 && waitpid(parts_begun[i], &status, 0) == parts_begun[i] && status == 0,
              "part %d: status %d", i, status);
    }
    n_parts_begun = 0;
}

#endif
