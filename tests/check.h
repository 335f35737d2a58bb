/* The few lines a C test needs: CHECK prints what failed and where, and the program goes on; main returns
 * check_status(). */
#ifndef TEST_CHECK_H
#define TEST_CHECK_H

#include <stdio.h>

static int check_n_failed;

#define CHECK(condition, ...)                                                                     \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            check_n_failed++;                                                                     \
            printf("%s:%d: not so: %s:", __FILE__, __LINE__, #condition);                        \
            printf(" " __VA_ARGS__);                                                              \
            printf("\n");                                                                         \
        }                                                                                         \
    } while (0)

static inline int check_status(void)
{
    printf(check_n_failed ? "%d checks failed\n" : "all checks hold\n", check_n_failed);
    return check_n_failed ? 1 : 0;
}

#endif
