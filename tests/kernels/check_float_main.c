/* Runs the float kernels' checks alone; --bench times them instead. */
#include <string.h>

#include "check_float.h"

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench_float();
        return 0;
    }
    return check_float() != 0;
}
