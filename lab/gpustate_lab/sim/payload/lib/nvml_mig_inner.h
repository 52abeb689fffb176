/* Simulated. What the two halves of NVML's MIG part share. */
#ifndef GPUSTATE_LAB_NVML_MIG_INNER_H
#define GPUSTATE_LAB_NVML_MIG_INNER_H

#include "mig.h"
#include "nvml_inner.h"

/* Compute instances that one GPU can have, as places in an array. */
#define PER_GPU (MIG_MAX_INSTANCES * MIG_MAX_COMPUTE)

/* Everything known of the GPU that a call is about. */
struct view {
    struct lab_hardware hardware;
    struct lab_gpu *gpu;
    void *handle;
    struct mig_geometry geometry;
    struct mig_state state;
};

int look(void *handle, struct view *view);
int look_at(int gpu, struct view *view);
/* The compute instance at a place, and where one is. */
int inner_of(int at, struct view *view, struct mig_instance **instance, struct mig_compute **compute);
unsigned place_of(const struct view *view, const struct mig_instance *instance, const struct mig_compute *compute);

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle);

#endif
