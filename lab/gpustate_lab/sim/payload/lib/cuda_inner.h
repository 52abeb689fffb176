/* Simulated. What the two halves of the stub CUDA library share. */
#ifndef GPUSTATE_LAB_CUDA_INNER_H
#define GPUSTATE_LAB_CUDA_INNER_H

#include "lab.h"

#include <pthread.h>

enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700, SYSTEM_NOT_READY = 802, DRIVER_MISMATCH = 803,
    UNKNOWN = 999
};
#define CONTEXT_BYTES (512ULL << 20) /* what a context costs on the GPU before any allocation */

struct context {
    int device, references;
    int sticky; /* an illegal address ends the context: every later call repeats it */
    int nodes[5]; /* open on the device nodes: who holds a GPU shows in /proc/PID/fd */
    struct context *next;
};
struct allocation { uint64_t address, bytes; int device; struct allocation *next; };

extern pthread_mutex_t lock;
extern int cuda_initialized;
extern struct allocation *allocations;
extern __thread struct context *current;

/* The GPU of a CUDA ordinal, or NULL. */
struct lab_gpu *gpu_of(int device);
/* Tell NVML and the module tools what this process holds. */
void tell_holders(void);

/* What every call that needs a context starts with. */
#define CONTEXT()                                                                                  \
    do {                                                                                           \
        if (!cuda_initialized)                                                                          \
            return NOT_INITIALIZED;                                                                \
        if (!current)                                                                              \
            return INVALID_CONTEXT;                                                                \
        if (current->sticky)                                                                       \
            return current->sticky;                                                                        \
    } while (0)

#endif
