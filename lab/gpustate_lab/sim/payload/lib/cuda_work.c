/* Simulated: device memory, which is host memory, and kernels, which run in ptx_run.c. */
#define _GNU_SOURCE
#include "cuda_inner.h"
#include "ptx.h"

#include <stdlib.h>
#include <string.h>

struct module { struct ptx_module *ptx; struct module *next; };

LAB_API int cuCtxSynchronize(void) {
    CONTEXT();
    return SUCCESS;
}

/* ---- memory --------------------------------------------------------------------------------- */

static int allowed(uint64_t address, uint64_t size) {
    for (struct allocation *at = allocations; at; at = at->next)
        if (current && at->device == current->device && address >= at->address &&
            size <= at->bytes && address - at->address <= at->bytes - size)
            return 1;
    return 0;
}

static int covered(uint64_t address, size_t bytes) {
    for (struct allocation *at = allocations; at; at = at->next)
        if (address >= at->address && bytes <= at->bytes && address - at->address <= at->bytes - bytes)
            return 1;
    return 0;
}

LAB_API int cuMemAlloc_v2(uint64_t *into, size_t bytes) {
    CONTEXT();
    if (!into || !bytes)
        return INVALID_VALUE;
    if (bytes > gpu_of(current->device)->memory_mib << 20)
        return OUT_OF_MEMORY;
    struct allocation *made = calloc(1, sizeof *made);
    void *memory = made ? calloc(1, bytes) : NULL;
    if (!memory) {
        free(made);
        return OUT_OF_MEMORY;
    }
    memset(memory, 0xa5, bytes); /* fresh device memory is not zero: a kernel that relies on it is wrong */
    pthread_mutex_lock(&lock);
    *made = (struct allocation){(uint64_t)(uintptr_t)memory, bytes, current->device, allocations};
    allocations = made;
    *into = made->address;
    tell_holders();
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

LAB_API int cuMemFree_v2(uint64_t address) {
    CONTEXT();
    int answer = INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct allocation **at = &allocations; *at; at = &(*at)->next)
        if ((*at)->address == address) {
            struct allocation *gone = *at;
            *at = gone->next;
            free((void *)(uintptr_t)address);
            free(gone);
            tell_holders();
            answer = SUCCESS;
            break;
        }
    pthread_mutex_unlock(&lock);
    return answer;
}

LAB_API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    CONTEXT();
    if (!covered(to, bytes))
        return INVALID_VALUE;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return SUCCESS;
}

LAB_API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    CONTEXT();
    if (!covered(from, bytes))
        return INVALID_VALUE;
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return SUCCESS;
}

LAB_API int cuMemsetD32_v2(uint64_t to, unsigned value, size_t count) {
    CONTEXT();
    if (!covered(to, count * 4) || to % 4)
        return INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        ((unsigned *)(uintptr_t)to)[i] = value;
    return SUCCESS;
}

LAB_API int cuMemsetD32(uint64_t to, unsigned value, size_t count) { return cuMemsetD32_v2(to, value, count); }

LAB_API int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CONTEXT();
    *total = (size_t)gpu_of(current->device)->memory_mib << 20;
    size_t used = CONTEXT_BYTES;
    for (struct allocation *at = allocations; at; at = at->next)
        if (at->device == current->device)
            used += at->bytes;
    *free_bytes = *total - used;
    return SUCCESS;
}

/* ---- kernels -------------------------------------------------------------------------------- */

/* The newest PTX that a driver of this CUDA version takes (PTX ISA, release history). */
static unsigned ptx_version(void) {
    unsigned major = (unsigned)lab_cuda_version / 1000, minor = (unsigned)lab_cuda_version % 1000 / 10;
    return major >= 13 ? 90 + minor : major == 12 ? 80 + minor - (minor >= 6 ? 1 : 0) : 70 + minor;
}

LAB_API int cuModuleLoadData(struct module **into, const void *image) {
    CONTEXT();
    if (!into || !image)
        return INVALID_VALUE;
    struct lab_gpu *gpu = gpu_of(current->device);
    struct module *made = calloc(1, sizeof *made);
    if (!made)
        return OUT_OF_MEMORY;
    int refused = ptx_load(image, gpu->cc_major * 10 + gpu->cc_minor, ptx_version(), &made->ptx);
    if (refused) {
        free(made);
        return refused;
    }
    *into = made;
    return SUCCESS;
}

LAB_API int cuModuleLoadDataEx(struct module **into, const void *image, unsigned count, int *options, void **values) {
    (void)count;
    (void)options;
    (void)values;
    return cuModuleLoadData(into, image);
}

LAB_API int cuModuleUnload(struct module *module) {
    CONTEXT();
    ptx_unload(module->ptx);
    free(module);
    return SUCCESS;
}

LAB_API int cuModuleGetFunction(struct ptx_kernel **into, struct module *module, const char *name) {
    CONTEXT();
    *into = ptx_kernel(module->ptx, name);
    return *into ? SUCCESS : NOT_FOUND;
}

LAB_API int cuLaunchKernel(struct ptx_kernel *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                           unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
    CONTEXT();
    (void)shared;
    (void)stream;
    if (!kernel || !gx || !gy || !gz || !bx || !by || !bz || (uint64_t)bx * by * bz > 1024 || extra)
        return INVALID_VALUE;
    struct ptx_launch launch = {{gx, gy, gz}, {bx, by, bz}, parameters, allowed};
    /* A launch is asynchronous: what went wrong inside is told by the next call that waits. */
    current->sticky = ptx_run(kernel, &launch);
    return SUCCESS;
}
