/* Simulated: what NVML answers about the state of a GPU: memory, processes, modes, sensors, fabric. */
#define _GNU_SOURCE
#include "mps.h"
#include "nvml_inner.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct { unsigned long long total, free, used; } memory_v1;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } process_info;
typedef struct { unsigned pid; unsigned long long bytes; } process_v1;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } fabric_v1;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; } fabric_v2;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; unsigned char summary; } fabric_v3;

#define RESERVED_MIB 600ULL /* what the driver keeps of each GPU for itself */

static unsigned long long used_bytes(const struct lab_gpu *gpu) {
    struct lab_holder holders[LAB_MAX_HOLDERS];
    unsigned long long used = 0;
    int count = lab_holders(holders, LAB_MAX_HOLDERS);
    for (int i = 0; i < count; i++)
        if (!strcmp(holders[i].kind, "cuda") && !strcmp(holders[i].what, gpu->pci_address))
            used += holders[i].bytes;
    return used;
}

LAB_API int nvmlDeviceGetMemoryInfo(void *handle, memory_v1 *info) {
    if (!info)
        return INVALID_ARGUMENT;
    if (is_mig_handle(handle, NULL)) {
        int code = mig_memory(handle, &info->total, &info->used);
        info->free = info->total - info->used;
        return code;
    }
    GPU(handle);
    info->total = gpu->memory_mib << 20;
    info->used = (RESERVED_MIB << 20) + used_bytes(gpu); /* version 1 counts reserved as used */
    info->free = info->total - info->used;
    return OK;
}

LAB_API int nvmlDeviceGetMemoryInfo_v2(void *handle, memory_v2 *info) {
    if (!info)
        return INVALID_ARGUMENT;
    if (info->version != VERSIONED(memory_v2, 2))
        return ARGUMENT_VERSION_MISMATCH;
    if (is_mig_handle(handle, NULL)) {
        int code = mig_memory(handle, &info->total, &info->used);
        info->reserved = 0;
        info->free = info->total - info->used;
        return code;
    }
    GPU(handle);
    info->total = gpu->memory_mib << 20;
    info->reserved = RESERVED_MIB << 20;
    info->used = used_bytes(gpu);
    info->free = info->total - info->reserved - info->used;
    return OK;
}

LAB_API int nvmlDeviceGetBAR1MemoryInfo(void *handle, memory_v1 *info) {
    GPU(handle);
    if (!info)
        return INVALID_ARGUMENT;
    /* The structure's order is total, free, used. */
    info->total = gpu->bar1_mib << 20;
    info->used = 1ULL << 20;
    info->free = info->total - info->used;
    return OK;
}

LAB_API int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_info *into) {
    GPU(handle);
    struct lab_holder holders[LAB_MAX_HOLDERS];
    if (!count)
        return INVALID_ARGUMENT;
    unsigned room = into ? *count : 0, seen = 0;
    int total = lab_holders(holders, LAB_MAX_HOLDERS);
    for (int i = 0; i < total; i++) {
        if (strcmp(holders[i].kind, "cuda") || strcmp(holders[i].what, gpu->pci_address))
            continue;
        if (seen < room)
            into[seen] = (process_info){(unsigned)holders[i].pid, holders[i].bytes, (unsigned)holders[i].gpu_instance,
                                        (unsigned)holders[i].compute_instance};
        seen++;
    }
    *count = seen;
    return seen > room ? INSUFFICIENT_SIZE : OK;
}

/* Version 2 has the same structure. Version 1 ends before the instances. */
LAB_API int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, process_info *into) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, into);
}

LAB_API int nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, process_v1 *into) {
    process_info all[LAB_MAX_HOLDERS];
    unsigned found = LAB_MAX_HOLDERS;
    if (!count)
        return INVALID_ARGUMENT;
    unsigned room = into ? *count : 0;
    int code = nvmlDeviceGetComputeRunningProcesses_v3(handle, &found, all);
    if (code != OK)
        return code;
    for (unsigned i = 0; i < found && i < room; i++)
        into[i] = (process_v1){all[i].pid, all[i].bytes};
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

static int no_processes(void *handle, unsigned *count) {
    GPU(handle);
    return number(count, 0);
}

LAB_API int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count) { return no_processes(handle, count); }
LAB_API int nvmlDeviceGetGraphicsRunningProcesses_v2(void *handle, unsigned *count) { return no_processes(handle, count); }
LAB_API int nvmlDeviceGetGraphicsRunningProcesses(void *handle, unsigned *count) { return no_processes(handle, count); }

LAB_API int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count) { return no_processes(handle, count); }
LAB_API int nvmlDeviceGetMPSComputeRunningProcesses_v2(void *handle, unsigned *count) { return no_processes(handle, count); }
LAB_API int nvmlDeviceGetMPSComputeRunningProcesses(void *handle, unsigned *count) { return no_processes(handle, count); }

/* ---- modes ---------------------------------------------------------------------------------- */

static const char *persistence_path(const struct lab_gpu *gpu, char *buffer, size_t size) {
    snprintf(buffer, size, "/run/gpustate-lab/state/persistence-%s", gpu->pci_address);
    return buffer;
}

LAB_API int nvmlDeviceGetPersistenceMode(void *handle, unsigned *mode) {
    GPU(handle);
    char path[96], text[16];
    long got = lab_read(persistence_path(gpu, path, sizeof path), text, sizeof text);
    return number(mode, got > 0 && text[0] == '1');
}

LAB_API int nvmlDeviceSetPersistenceMode(void *handle, unsigned mode) {
    GPU(handle);
    char path[96];
    if (mode > 1)
        return INVALID_ARGUMENT;
    if (geteuid() != 0)
        return NO_PERMISSION;
    return lab_write(persistence_path(gpu, path, sizeof path), mode ? "1\n" : "0\n") < 0 ? UNKNOWN : OK;
}

LAB_API int nvmlDeviceGetEccMode(void *handle, unsigned *current, unsigned *pending) {
    GPU(handle);
    number(current, 1);
    return number(pending, 1);
}

LAB_API int nvmlDeviceGetTotalEccErrors(void *handle, unsigned type, unsigned counter, unsigned long long *count) {
    GPU(handle);
    if (type > 1 || counter > 1 || !count)
        return INVALID_ARGUMENT;
    *count = 0;
    return OK;
}

LAB_API int nvmlDeviceGetRemappedRows(void *handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    GPU(handle);
    if (gpu->architecture < 7) /* row remapping came with Ampere */
        return NOT_SUPPORTED;
    int index = (int)(gpu - hardware.gpus);
    int waits = lab_fault_at(&hardware, "remap-pending", index);
    int broken = lab_fault_at(&hardware, "remap-failure", index);
    number(correctable, 0);
    number(uncorrectable, waits || broken);
    number(pending, (unsigned)waits);
    return number(failed, (unsigned)broken);
}

LAB_API int nvmlDeviceGetVirtualizationMode(void *handle, unsigned *mode) { GPU(handle); return number(mode, 0); }
LAB_API int nvmlDeviceGetComputeMode(void *handle, unsigned *mode) { GPU(handle); return number(mode, lab_compute_mode(gpu)); }

LAB_API int nvmlDeviceSetComputeMode(void *handle, unsigned mode) {
    GPU(handle);
    if (mode > EXCLUSIVE_PROCESS || mode == 1) /* 1 was a mode of its own until CUDA 8 */
        return INVALID_ARGUMENT;
    if (geteuid() != 0)
        return NO_PERMISSION;
    return lab_set_compute_mode(gpu, mode) < 0 ? UNKNOWN : OK;
}

/* ---- confidential computing ----------------------------------------------------------------- */

typedef struct { unsigned environment, feature, dev_tools; } conf_compute_state;
typedef struct { unsigned version, environment, feature, dev_tools, multi_gpu; } conf_compute_settings;

/* Hopper is the first generation that has it. */
static int confidential(struct lab_hardware *hardware) {
    if (!is_started())
        return UNINITIALIZED;
    if (lab_hardware(hardware) < 0)
        return UNKNOWN;
    return hardware->gpu_count && hardware->gpus[0].architecture >= 9 ? OK : NOT_SUPPORTED;
}

LAB_API int nvmlSystemGetConfComputeSettings(conf_compute_settings *into) {
    struct lab_hardware hardware;
    int code = confidential(&hardware);
    if (code != OK)
        return code;
    if (!into || into->version != VERSIONED(conf_compute_settings, 1))
        return into ? ARGUMENT_VERSION_MISMATCH : INVALID_ARGUMENT;
    into->dev_tools = (unsigned)lab_fault(&hardware, "confidential-devtools");
    into->feature = into->dev_tools || lab_fault(&hardware, "confidential-on");
    into->multi_gpu = (unsigned)lab_fault(&hardware, "confidential-ppcie");
    into->environment = into->feature || into->multi_gpu ? 2 : 0;
    return OK;
}

LAB_API int nvmlSystemGetConfComputeState(conf_compute_state *into) {
    conf_compute_settings settings = {.version = VERSIONED(conf_compute_settings, 1)};
    int code = into ? nvmlSystemGetConfComputeSettings(&settings) : INVALID_ARGUMENT;
    if (code == OK)
        *into = (conf_compute_state){settings.environment, settings.feature, settings.dev_tools};
    return code;
}

LAB_API int nvmlSystemGetConfComputeGpusReadyState(unsigned *ready) {
    struct lab_hardware hardware;
    int code = confidential(&hardware);
    return code == OK ? number(ready, !lab_fault(&hardware, "confidential-waiting")) : code;
}

/* ---- sensors -------------------------------------------------------------------------------- */

int is_busy(const struct lab_gpu *gpu) { return used_bytes(gpu) > 0; }

LAB_API int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *temp_c) {
    GPU(handle);
    return sensor ? INVALID_ARGUMENT : number(temp_c, is_busy(gpu) ? 55 : 31);
}

LAB_API int nvmlDeviceGetPowerUsage(void *handle, unsigned *power_mw) {
    GPU(handle);
    return number(power_mw, gpu->power_limit_w * (is_busy(gpu) ? 600 : 100));
}

LAB_API int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *power_mw) { GPU(handle); return number(power_mw, gpu->power_limit_w * 1000); }
LAB_API int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *power_mw) { GPU(handle); return number(power_mw, gpu->power_limit_w * 1000); }

LAB_API int nvmlDeviceGetUtilizationRates(void *handle, utilization *rates) {
    GPU(handle);
    if (!rates)
        return INVALID_ARGUMENT;
    *rates = is_busy(gpu) ? (utilization){97, 40} : (utilization){0, 0};
    return OK;
}

/* ---- fabric --------------------------------------------------------------------------------- */

/* The fabric state is a Hopper thing; an A100 board answers that it has none to report. */
static int fabric_state(const struct lab_hardware *hardware, const struct lab_gpu *gpu, unsigned char *state) {
    if (!gpu->has_nvlink_fabric || !hardware->has_board || gpu->architecture < 9)
        return NOT_SUPPORTED;
    *state = lab_fabric_ready(hardware) ? 3 : 2; /* completed : in progress */
    return OK;
}

LAB_API int nvmlDeviceGetGpuFabricInfo(void *handle, fabric_v1 *info) {
    GPU(handle);
    if (!info)
        return INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    int answer = fabric_state(&hardware, gpu, &info->state);
    if (answer == OK && info->state == 3) {
        memcpy(info->cluster, hardware.cluster, sizeof info->cluster);
        info->clique = hardware.clique;
    }
    return answer;
}

LAB_API int nvmlDeviceGetGpuFabricInfoV(void *handle, fabric_v3 *info) {
    GPU(handle);
    if (!info)
        return INVALID_ARGUMENT;
    unsigned version = info->version;
    if (version != VERSIONED(fabric_v2, 2) && version != VERSIONED(fabric_v3, 3))
        return ARGUMENT_VERSION_MISMATCH;
    unsigned char state = 0;
    int answer = fabric_state(&hardware, gpu, &state);
    if (answer != OK)
        return answer;
    memset(info, 0, version == VERSIONED(fabric_v3, 3) ? sizeof(fabric_v3) : sizeof(fabric_v2));
    info->version = version;
    info->state = state;
    if (state == 3) {
        memcpy(info->cluster, hardware.cluster, sizeof info->cluster);
        info->clique = hardware.clique;
    }
    /* Bandwidth, route recovery, route health and access timeout fine, configuration right. */
    info->health = 2u | 2u << 2 | 2u << 4 | 2u << 6 | 1u << 8;
    if (version == VERSIONED(fabric_v3, 3))
        info->summary = 1;
    return OK;
}
