/* The one function of a fuzz target. libFuzzer calls it with its inventions, fuzz_replay.c with the kept corpus. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
