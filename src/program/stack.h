/* The stack that a program runs on. */
#ifndef PF_PROGRAM_STACK_H
#define PF_PROGRAM_STACK_H

/* fn(argc, argv) on a stack that the library's functions fit in, whatever `ulimit -s` says: where that allows too
 * little, on a thread of its own. To be called first. */
int stack_run(int (*fn)(int argc, char **argv), int argc, char **argv);

#endif
