/* Simulated. A small interpreter for PTX; see ptx.c for what it takes. */
#ifndef GPUSTATE_LAB_PTX_H
#define GPUSTATE_LAB_PTX_H

#include <stdint.h>

struct ptx_module;
struct ptx_kernel;

struct ptx_launch {
    unsigned grid[3], block[3];
    void **parameters;
    /* 1 when [address, address+size) lies in memory that was allocated on the device. */
    int (*allowed)(uint64_t address, uint64_t size);
};

/* Return 0 or a CUDA error number; `target` is the compute capability times ten. */
int ptx_load(const char *text, unsigned target, unsigned ptx_version, struct ptx_module **module);
void ptx_unload(struct ptx_module *module);
struct ptx_kernel *ptx_kernel(struct ptx_module *module, const char *name);
int ptx_run(const struct ptx_kernel *kernel, const struct ptx_launch *launch);

#endif
