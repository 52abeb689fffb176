/* Simulated. What the two halves of the stub NVML share. */
#ifndef GPUSTATE_LAB_NVML_INNER_H
#define GPUSTATE_LAB_NVML_INNER_H

#include "lab.h"

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
    NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15,
    VERSION_MISMATCH = 18, IN_USE = 19, INSUFFICIENT_RESOURCES = 23, ARGUMENT_VERSION_MISMATCH = 25, UNKNOWN = 999
};

#define VERSIONED(type, n) ((unsigned)(sizeof(type) | ((n) << 24)))

typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; } pci_info;

int is_started(void);
/* The handle of hardware.gpus[place]. */
void *handle_of(int place);
void describe_pci(const char *address, unsigned device_id, unsigned subsystem_id, pci_info *info);
/* Whether a process has memory on the GPU, which is all that the lab calls work. */
int is_busy(const struct lab_gpu *gpu);
/* NVLinks of a GPU: 0 for a model without. */
unsigned link_count(const struct lab_gpu *gpu);

/* The GPU behind a handle, and the node it is in; 0 or an NVML code. */
int find(void *handle, struct lab_hardware *hardware, struct lab_gpu **gpu);
int number(unsigned *into, unsigned value);
int copy_text(char *into, unsigned size, const char *text);

/* A MIG device behind a handle: its GPU, its instances' numbers. 0 when it is none. */
struct mig_device { int gpu; unsigned instance, compute; };
int is_mig_handle(void *handle, struct mig_device *device);
/* The same by name: 0, or an NVML code. */
int mig_handle_by_uuid(const char *text, void **handle);
int mig_name(void *handle, char *into, unsigned size);
int mig_device_uuid(void *handle, char *into, unsigned size);
int mig_memory(void *handle, unsigned long long *total, unsigned long long *used);

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
