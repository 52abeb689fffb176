/* Simulated: MIG devices, which are compute instances to NVML's other callers. Sources: see nvml_mig.c. */
#define _GNU_SOURCE
#include "nvml_mig_inner.h"

#include <stdio.h>
#include <string.h>

typedef struct { unsigned sm, copy, decoders, encoders, jpeg, ofa, gi_slices, ci_slices; unsigned long long memory_mib; } attributes;

/* A handle is a place in here. */
static char devices[LAB_MAX_GPUS * PER_GPU];

int is_mig_handle(void *handle, struct mig_device *device) {
    char *slot = handle;
    if (slot < devices || slot >= devices + sizeof devices)
        return 0;
    unsigned at = (unsigned)(slot - devices);
    if (device)
        *device = (struct mig_device){(int)(at / PER_GPU), at % PER_GPU / MIG_MAX_COMPUTE, at % MIG_MAX_COMPUTE};
    return 1;
}

static int device_of(void *handle, struct view *view, struct mig_instance **instance, struct mig_compute **compute) {
    return is_mig_handle(handle, NULL) ? inner_of((int)((char *)handle - devices), view, instance, compute) : INVALID_ARGUMENT;
}

/* ---- MIG devices ---------------------------------------------------------------------------- */

LAB_API int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *answer) {
    if (is_mig_handle(handle, NULL))
        return number(answer, 1);
    GPU(handle);
    return number(answer, 0);
}

LAB_API int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **into) {
    struct view view;
    int code = look(handle, &view);
    if (code != OK)
        return code;
    for (unsigned i = 0; i < view.state.count; i++)
        for (unsigned c = 0; c < view.state.instances[i].count; c++)
            if (!index--) {
                *into = &devices[place_of(&view, &view.state.instances[i], &view.state.instances[i].compute[c])];
                return OK;
            }
    return NOT_FOUND;
}

LAB_API int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **into) {
    struct mig_device device;
    return is_mig_handle(handle, &device) ? nvmlDeviceGetHandleByIndex_v2((unsigned)device.gpu, into) : INVALID_ARGUMENT;
}

LAB_API int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id) {
    struct mig_device device;
    return is_mig_handle(handle, &device) ? number(id, device.instance) : NOT_SUPPORTED;
}

LAB_API int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id) {
    struct mig_device device;
    return is_mig_handle(handle, &device) ? number(id, device.compute) : NOT_SUPPORTED;
}

LAB_API int nvmlDeviceGetAttributes_v2(void *handle, attributes *info) {
    struct view view;
    struct mig_instance *instance;
    struct mig_compute *compute;
    int code = device_of(handle, &view, &instance, &compute);
    if (code != OK || !info)
        return code == OK ? INVALID_ARGUMENT : is_mig_handle(handle, NULL) ? code : NOT_SUPPORTED;
    const struct mig_profile *p = &view.geometry.profiles[instance->profile];
    unsigned slices = p->compute[compute->profile].slices;
    *info = (attributes){p->sm_count * slices / p->slices, p->slices, p->media[MIG_DECODERS], p->media[MIG_ENCODERS],
                         p->media[MIG_JPEG], p->media[MIG_OFA], p->slices, slices, p->memory_mib};
    return OK;
}

LAB_API int nvmlDeviceGetAttributes(void *handle, attributes *info) { return nvmlDeviceGetAttributes_v2(handle, info); }

int mig_name(void *handle, char *into, unsigned size) {
    struct view view;
    struct mig_instance *instance;
    struct mig_compute *compute;
    char profile[48], text[128];
    int code = device_of(handle, &view, &instance, &compute);
    if (code != OK)
        return code;
    mig_device_name(&view.geometry.profiles[instance->profile], compute, profile, sizeof profile);
    snprintf(text, sizeof text, "%s MIG %s", view.gpu->name, profile);
    return copy_text(into, size, text);
}

int mig_device_uuid(void *handle, char *into, unsigned size) {
    struct view view;
    struct mig_instance *instance;
    struct mig_compute *compute;
    char text[64];
    int code = device_of(handle, &view, &instance, &compute);
    if (code != OK)
        return code;
    mig_uuid(view.gpu, instance, compute, text, sizeof text);
    return copy_text(into, size, text);
}

int mig_memory(void *handle, unsigned long long *total, unsigned long long *used) {
    struct view view;
    struct mig_instance *instance;
    struct mig_compute *compute;
    struct lab_holder holders[LAB_MAX_HOLDERS];
    int code = device_of(handle, &view, &instance, &compute);
    if (code != OK)
        return code;
    *total = (unsigned long long)view.geometry.profiles[instance->profile].memory_mib << 20;
    *used = 0;
    int count = lab_holders(holders, LAB_MAX_HOLDERS);
    for (int i = 0; i < count; i++)
        if (!strcmp(holders[i].what, view.gpu->pci_address) && holders[i].gpu_instance == (int)instance->id)
            *used += holders[i].bytes;
    return OK;
}

int mig_handle_by_uuid(const char *text, void **handle) {
    struct view view;
    char uuid[64];
    for (int g = 0; g < LAB_MAX_GPUS; g++) {
        if (look_at(g, &view) != OK)
            continue;
        for (unsigned i = 0; i < view.state.count; i++)
            for (unsigned c = 0; c < view.state.instances[i].count; c++) {
                struct mig_instance *instance = &view.state.instances[i];
                mig_uuid(view.gpu, instance, &instance->compute[c], uuid, sizeof uuid);
                if (!strcmp(uuid, text)) {
                    *handle = &devices[place_of(&view, instance, &instance->compute[c])];
                    return OK;
                }
            }
    }
    return NOT_FOUND;
}
