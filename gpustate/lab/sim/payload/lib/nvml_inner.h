/* Simulated. What the two halves of the stub NVML share. */
#ifndef GPUSTATE_LAB_NVML_INNER_H
#define GPUSTATE_LAB_NVML_INNER_H

#include "lab.h"

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15,
    VERSION_MISMATCH = 18, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};

#define VERSIONED(type, n) ((unsigned)(sizeof(type) | ((n) << 24)))

/* The GPU behind a handle, and the node it is in; 0 or an NVML code. */
int find(void *handle, struct lab_hardware *hardware, struct lab_gpu **gpu);
int number(unsigned *into, unsigned value);

/* What every function of a GPU starts with. */
#define GPU(handle)                                                                                \
    struct lab_hardware hardware;                                                                  \
    struct lab_gpu *gpu = NULL;                                                                    \
    do {                                                                                           \
        int found_ = find(handle, &hardware, &gpu);                                                \
        if (found_ != OK)                                                                          \
            return found_;                                                                         \
    } while (0)

#endif
