/* Simulated: the MIG part of NVML, over mig.c.
 *
 * Handles are places in arrays that nobody reads: what an instance is now is looked up at every call,
 * so a handle of one that is gone answers NVML_ERROR_NOT_FOUND.
 *
 * Sources: nvml.h 13.0 as nvidia-ml-py 13.615 repeats it; on which call answers what:
 * NVIDIA/go-nvlib pkg/nvlib/device/mig_profile.go and NVIDIA/mig-parted pkg/mig/config.
 */
#define _GNU_SOURCE
#include "nvml_mig_inner.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned start, size; } placement;
typedef struct { unsigned id, p2p, slices, instances, sm, copy, decoders, encoders, jpeg, ofa; unsigned long long memory_mib; } gi_profile;
typedef struct { unsigned version, id, p2p, slices, instances, sm, copy, decoders, encoders, jpeg, ofa; unsigned long long memory_mib; char name[96]; } gi_profile_v2;
typedef struct { void *device; unsigned id, profile; placement place; } gi_info;
typedef struct { unsigned id, slices, instances, sm, copy, decoders, encoders, jpeg, ofa; } ci_profile;
typedef struct { unsigned version, id, slices, instances, sm, copy, decoders, encoders, jpeg, ofa; char name[96]; } ci_profile_v2;
typedef struct { void *device, *instance; unsigned id, profile; placement place; } ci_info;

static char instances[LAB_MAX_GPUS * MIG_MAX_INSTANCES], computes[LAB_MAX_GPUS * PER_GPU];

int look(void *handle, struct view *view) {
    int code = find(handle, &view->hardware, &view->gpu);
    if (code != OK)
        return code;
    view->handle = handle;
    if (mig_geometry(view->gpu, &view->geometry) < 0)
        return NOT_SUPPORTED;
    mig_read(view->gpu, &view->geometry, &view->state);
    return OK;
}

int look_at(int gpu, struct view *view) {
    void *handle;
    int code = nvmlDeviceGetHandleByIndex_v2((unsigned)gpu, &handle);
    return code == OK ? look(handle, view) : code;
}

static int index_of(const struct view *view) { return (int)(view->gpu - view->hardware.gpus); }

/* ---- from handles to instances -------------------------------------------------------------- */

static int instance_of(void *handle, struct view *view, struct mig_instance **into) {
    char *slot = handle;
    if (slot < instances || slot >= instances + sizeof instances)
        return INVALID_ARGUMENT;
    int at = (int)(slot - instances), code = look_at(at / MIG_MAX_INSTANCES, view);
    if (code != OK)
        return code;
    *into = mig_find(&view->state, (unsigned)at % MIG_MAX_INSTANCES);
    return *into ? OK : NOT_FOUND;
}

int inner_of(int at, struct view *view, struct mig_instance **instance, struct mig_compute **compute) {
    int code = look_at(at / PER_GPU, view);
    if (code != OK)
        return code;
    *instance = mig_find(&view->state, (unsigned)at % PER_GPU / MIG_MAX_COMPUTE);
    *compute = mig_find_compute(*instance, (unsigned)at % MIG_MAX_COMPUTE);
    return *compute ? OK : NOT_FOUND;
}

static int compute_of(void *handle, struct view *view, struct mig_instance **instance, struct mig_compute **compute) {
    char *slot = handle;
    if (slot < computes || slot >= computes + sizeof computes)
        return INVALID_ARGUMENT;
    return inner_of((int)(slot - computes), view, instance, compute);
}

unsigned place_of(const struct view *view, const struct mig_instance *instance, const struct mig_compute *compute) {
    return (unsigned)index_of(view) * PER_GPU + instance->id * MIG_MAX_COMPUTE + compute->id;
}

/* ---- mode ----------------------------------------------------------------------------------- */

LAB_API int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    struct view view;
    int code = look(handle, &view);
    if (code != OK)
        return code;
    number(current, (unsigned)view.state.current);
    return number(pending, (unsigned)view.state.pending);
}

LAB_API int nvmlDeviceSetMigMode(void *handle, unsigned mode, int *activation) {
    GPU(handle);
    if (mode > 1 || !activation)
        return INVALID_ARGUMENT;
    return mig_set_mode(&hardware, gpu, (int)mode, activation);
}

/* Not NVML's, which has no reset: what nvidia-smi does inside. */
LAB_API int lab_reset_gpu(void *handle) {
    GPU(handle);
    return mig_reset(&hardware, gpu);
}

LAB_API int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    GPU(handle);
    return number(count, gpu->max_mig_devices);
}

/* ---- GPU instance profiles ------------------------------------------------------------------ */

static const struct mig_profile *profile_by(const struct mig_geometry *geometry, unsigned id, int is_smi_id) {
    for (unsigned i = 0; i < geometry->count; i++)
        if ((is_smi_id ? geometry->profiles[i].smi_id : geometry->profiles[i].nvml_id) == id)
            return &geometry->profiles[i];
    return NULL;
}

static gi_profile described(const struct mig_profile *p) {
    return (gi_profile){p->smi_id, 0, p->slices, p->most, p->sm_count, p->slices, p->media[MIG_DECODERS], p->media[MIG_ENCODERS],
                        p->media[MIG_JPEG], p->media[MIG_OFA], p->memory_mib};
}

LAB_API int nvmlDeviceGetGpuInstanceProfileInfo(void *handle, unsigned nvml_id, gi_profile *info) {
    struct view view;
    int code = look(handle, &view);
    if (code != OK)
        return code;
    const struct mig_profile *profile = profile_by(&view.geometry, nvml_id, 0);
    if (!profile || !info)
        return profile ? INVALID_ARGUMENT : NOT_SUPPORTED;
    *info = described(profile);
    return OK;
}

LAB_API int nvmlDeviceGetGpuInstanceProfileInfoV(void *handle, unsigned nvml_id, gi_profile_v2 *info) {
    gi_profile plain;
    struct view view;
    if (!info)
        return INVALID_ARGUMENT;
    if (info->version != VERSIONED(gi_profile_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    int code = nvmlDeviceGetGpuInstanceProfileInfo(handle, nvml_id, &plain);
    if (code != OK)
        return code;
    look(handle, &view);
    memcpy(&info->id, &plain, sizeof plain - sizeof plain.memory_mib);
    info->memory_mib = plain.memory_mib;
    snprintf(info->name, sizeof info->name, "MIG %s", profile_by(&view.geometry, nvml_id, 0)->name);
    return OK;
}

LAB_API int nvmlDeviceGetGpuInstanceProfileInfoByIdV(void *handle, unsigned smi_id, gi_profile_v2 *info) {
    struct view view;
    int code = look(handle, &view);
    if (code != OK)
        return code;
    const struct mig_profile *profile = profile_by(&view.geometry, smi_id, 1);
    return profile ? nvmlDeviceGetGpuInstanceProfileInfoV(handle, profile->nvml_id, info) : NOT_SUPPORTED;
}

LAB_API int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *handle, unsigned smi_id, placement *into, unsigned *count) {
    struct view view;
    int code = look(handle, &view);
    if (code != OK)
        return code;
    const struct mig_profile *profile = profile_by(&view.geometry, smi_id, 1);
    if (!profile || !count)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; into && i < profile->start_count; i++)
        into[i] = (placement){profile->starts[i], profile->size};
    return number(count, profile->start_count);
}

LAB_API int nvmlDeviceGetGpuInstancePossiblePlacements(void *handle, unsigned smi_id, placement *into, unsigned *count) {
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, smi_id, into, count);
}

LAB_API int nvmlDeviceGetGpuInstanceRemainingCapacity(void *handle, unsigned smi_id, unsigned *count) {
    struct view view;
    int code = look(handle, &view);
    if (code != OK)
        return code;
    const struct mig_profile *profile = profile_by(&view.geometry, smi_id, 1);
    if (!profile)
        return INVALID_ARGUMENT;
    return number(count, view.state.current ? mig_room(&view.geometry, &view.state, (unsigned)(profile - view.geometry.profiles)) : 0);
}

/* ---- GPU instances -------------------------------------------------------------------------- */

static int create(void *handle, unsigned smi_id, unsigned start, void **into) {
    GPU(handle);
    unsigned id;
    if (!into)
        return INVALID_ARGUMENT;
    int code = mig_create(gpu, smi_id, start, &id);
    if (code == OK)
        *into = &instances[(gpu - hardware.gpus) * MIG_MAX_INSTANCES + id];
    return code;
}

LAB_API int nvmlDeviceCreateGpuInstance(void *handle, unsigned smi_id, void **into) { return create(handle, smi_id, MIG_ANYWHERE, into); }

LAB_API int nvmlDeviceCreateGpuInstanceWithPlacement(void *handle, unsigned smi_id, const placement *place, void **into) {
    return place ? create(handle, smi_id, place->start, into) : INVALID_ARGUMENT;
}

LAB_API int nvmlDeviceGetGpuInstances(void *handle, unsigned smi_id, void **into, unsigned *count) {
    struct view view;
    unsigned seen = 0;
    int code = look(handle, &view);
    if (code != OK)
        return code;
    if (!into || !count)
        return INVALID_ARGUMENT;
    for (unsigned i = 0; i < view.state.count; i++)
        if (view.geometry.profiles[view.state.instances[i].profile].smi_id == smi_id)
            into[seen++] = &instances[index_of(&view) * MIG_MAX_INSTANCES + (int)view.state.instances[i].id];
    return number(count, seen);
}

LAB_API int nvmlDeviceGetGpuInstanceById(void *handle, unsigned id, void **into) {
    struct view view;
    int code = look(handle, &view);
    if (code != OK)
        return code;
    if (!into || !mig_find(&view.state, id))
        return into ? NOT_FOUND : INVALID_ARGUMENT;
    *into = &instances[index_of(&view) * MIG_MAX_INSTANCES + (int)id];
    return OK;
}

LAB_API int nvmlGpuInstanceGetInfo(void *handle, gi_info *info) {
    struct view view;
    struct mig_instance *instance;
    int code = instance_of(handle, &view, &instance);
    if (code != OK || !info)
        return code != OK ? code : INVALID_ARGUMENT;
    const struct mig_profile *profile = &view.geometry.profiles[instance->profile];
    *info = (gi_info){view.handle, instance->id, profile->smi_id, {instance->start, profile->size}};
    return OK;
}

LAB_API int nvmlGpuInstanceDestroy(void *handle) {
    struct view view;
    struct mig_instance *instance;
    int code = instance_of(handle, &view, &instance);
    return code == OK ? mig_destroy(view.gpu, instance->id) : code;
}

/* ---- compute instances ---------------------------------------------------------------------- */

static const struct mig_compute_profile *kind_by(const struct mig_profile *profile, unsigned nvml_id) {
    for (unsigned i = 0; i < profile->compute_count; i++)
        if (profile->compute[i].nvml_id == nvml_id)
            return &profile->compute[i];
    return NULL;
}

LAB_API int nvmlGpuInstanceGetComputeInstanceProfileInfo(void *handle, unsigned nvml_id, unsigned engine, ci_profile *info) {
    struct view view;
    struct mig_instance *instance;
    int code = instance_of(handle, &view, &instance);
    if (code != OK || !info || engine)
        return code != OK ? code : INVALID_ARGUMENT;
    const struct mig_profile *p = &view.geometry.profiles[instance->profile];
    const struct mig_compute_profile *kind = kind_by(p, nvml_id);
    if (!kind)
        return NOT_SUPPORTED;
    *info = (ci_profile){nvml_id, kind->slices, kind->start_count, p->sm_count * kind->slices / p->slices, p->slices,
                         p->media[MIG_DECODERS], p->media[MIG_ENCODERS], p->media[MIG_JPEG], p->media[MIG_OFA]};
    return OK;
}

LAB_API int nvmlGpuInstanceGetComputeInstanceProfileInfoV(void *handle, unsigned nvml_id, unsigned engine, ci_profile_v2 *info) {
    ci_profile plain;
    if (!info)
        return INVALID_ARGUMENT;
    if (info->version != VERSIONED(ci_profile_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    int code = nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, nvml_id, engine, &plain);
    if (code != OK)
        return code;
    struct view view;
    struct mig_instance *instance;
    instance_of(handle, &view, &instance);
    const struct mig_profile *profile = &view.geometry.profiles[instance->profile];
    struct mig_compute made = {0, (unsigned)(kind_by(profile, nvml_id) - profile->compute), 0};
    memcpy(&info->id, &plain, sizeof plain);
    strcpy(info->name, "MIG ");
    mig_device_name(profile, &made, info->name + 4, sizeof info->name - 4);
    return OK;
}

LAB_API int nvmlGpuInstanceGetComputeInstancePossiblePlacements(void *handle, unsigned nvml_id, placement *into, unsigned *count) {
    struct view view;
    struct mig_instance *instance;
    int code = instance_of(handle, &view, &instance);
    if (code != OK)
        return code;
    const struct mig_compute_profile *kind = kind_by(&view.geometry.profiles[instance->profile], nvml_id);
    if (!kind || !count)
        return kind ? INVALID_ARGUMENT : NOT_SUPPORTED;
    for (unsigned i = 0; into && i < kind->start_count; i++)
        into[i] = (placement){kind->starts[i], kind->slices};
    return number(count, kind->start_count);
}

LAB_API int nvmlGpuInstanceGetComputeInstanceRemainingCapacity(void *handle, unsigned nvml_id, unsigned *count) {
    struct view view;
    struct mig_instance *instance;
    int code = instance_of(handle, &view, &instance);
    if (code != OK)
        return code;
    const struct mig_profile *profile = &view.geometry.profiles[instance->profile];
    const struct mig_compute_profile *kind = kind_by(profile, nvml_id);
    return kind ? number(count, mig_compute_room(profile, instance, (unsigned)(kind - profile->compute))) : NOT_SUPPORTED;
}

static int create_compute(void *handle, unsigned nvml_id, unsigned start, void **into) {
    struct view view;
    struct mig_instance *instance;
    unsigned id;
    int code = instance_of(handle, &view, &instance);
    if (code != OK || !into)
        return code != OK ? code : INVALID_ARGUMENT;
    code = mig_create_compute(view.gpu, instance->id, nvml_id, start, &id);
    if (code == OK)
        *into = &computes[index_of(&view) * PER_GPU + (int)(instance->id * MIG_MAX_COMPUTE + id)];
    return code;
}

LAB_API int nvmlGpuInstanceCreateComputeInstance(void *handle, unsigned nvml_id, void **into) {
    return create_compute(handle, nvml_id, MIG_ANYWHERE, into);
}

LAB_API int nvmlGpuInstanceCreateComputeInstanceWithPlacement(void *handle, unsigned nvml_id, const placement *place, void **into) {
    return place ? create_compute(handle, nvml_id, place->start, into) : INVALID_ARGUMENT;
}

LAB_API int nvmlGpuInstanceGetComputeInstances(void *handle, unsigned nvml_id, void **into, unsigned *count) {
    struct view view;
    struct mig_instance *instance;
    unsigned seen = 0;
    int code = instance_of(handle, &view, &instance);
    if (code != OK || !into || !count)
        return code != OK ? code : INVALID_ARGUMENT;
    const struct mig_profile *profile = &view.geometry.profiles[instance->profile];
    for (unsigned i = 0; i < instance->count; i++)
        if (profile->compute[instance->compute[i].profile].nvml_id == nvml_id)
            into[seen++] = &computes[place_of(&view, instance, &instance->compute[i])];
    return number(count, seen);
}

LAB_API int nvmlGpuInstanceGetComputeInstanceById(void *handle, unsigned id, void **into) {
    struct view view;
    struct mig_instance *instance;
    int code = instance_of(handle, &view, &instance);
    if (code != OK || !into)
        return code != OK ? code : INVALID_ARGUMENT;
    struct mig_compute *compute = mig_find_compute(instance, id);
    if (!compute)
        return NOT_FOUND;
    *into = &computes[place_of(&view, instance, compute)];
    return OK;
}

LAB_API int nvmlComputeInstanceGetInfo_v2(void *handle, ci_info *info) {
    struct view view;
    struct mig_instance *instance;
    struct mig_compute *compute;
    int code = compute_of(handle, &view, &instance, &compute);
    if (code != OK || !info)
        return code != OK ? code : INVALID_ARGUMENT;
    const struct mig_compute_profile *kind = &view.geometry.profiles[instance->profile].compute[compute->profile];
    *info = (ci_info){view.handle, &instances[index_of(&view) * MIG_MAX_INSTANCES + (int)instance->id], compute->id, kind->nvml_id,
                      {compute->start, kind->slices}};
    return OK;
}

typedef struct { void *device, *instance; unsigned id, profile; } ci_info_v1; /* without the placement */

LAB_API int nvmlComputeInstanceGetInfo(void *handle, ci_info_v1 *info) {
    ci_info all;
    int code = info ? nvmlComputeInstanceGetInfo_v2(handle, &all) : INVALID_ARGUMENT;
    if (code == OK)
        *info = (ci_info_v1){all.device, all.instance, all.id, all.profile};
    return code;
}

LAB_API int nvmlComputeInstanceDestroy(void *handle) {
    struct view view;
    struct mig_instance *instance;
    struct mig_compute *compute;
    int code = compute_of(handle, &view, &instance, &compute);
    return code == OK ? mig_destroy_compute(view.gpu, instance->id, compute->id) : code;
}
