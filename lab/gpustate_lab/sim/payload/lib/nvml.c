/* Simulated libnvidia-ml: the part of NVML that nvidia-ml-py, nvidia-smi and gpustate ask for.
 *
 * Layout of the structures and error numbers: nvml.h of CUDA 13, as nvidia-ml-py repeats them.
 * What the node is made of comes from lab.c at every call, so a fault put into hardware.json is
 * seen by a process that is already running. Functions without a meaning for a simulated board are in
 * nvml_unsupported.c: every one that go-nvml and nvidia-ml-py know exists, since a program that is
 * linked lazily dies of a missing symbol.
 */
#define _GNU_SOURCE
#include "nvml_inner.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

typedef struct { unsigned version; char branch[80]; } branch_info;

static int started;
/* A handle is a pointer to one of these; the number is the index. */
static int handles[LAB_MAX_GPUS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

int is_started(void) { return started > 0; }
void *handle_of(int place) { return &handles[place]; }

static const struct { int code; const char *text; } messages[] = {
    {OK, "Success"}, {UNINITIALIZED, "Uninitialized"}, {INVALID_ARGUMENT, "Invalid Argument"},
    {NOT_SUPPORTED, "Not Supported"}, {NO_PERMISSION, "Insufficient Permissions"},
    {NOT_FOUND, "Not Found"}, {INSUFFICIENT_SIZE, "Insufficient Size"},
    {DRIVER_NOT_LOADED, "Driver Not Loaded"}, {TIMEOUT, "Timeout"}, {12, "NVML Shared Library Not Found"},
    {13, "Function Not Found"}, {GPU_IS_LOST, "GPU is lost"}, {16, "GPU requires reset"}, {23, "Insufficient Resources"},
    {VERSION_MISMATCH, "Driver/library version mismatch"}, {19, "In use by another client"},
    {ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"}, {UNKNOWN, "Unknown Error"},
};

LAB_API const char *nvmlErrorString(int code) {
    for (unsigned i = 0; i < sizeof messages / sizeof *messages; i++)
        if (messages[i].code == code)
            return messages[i].text;
    return "Unknown Error";
}

LAB_API int nvmlInitWithFlags(unsigned flags) {
    char loaded[64], full[512];
    struct lab_hardware hardware;
    (void)flags;
    if (lab_loaded_version(loaded, sizeof loaded) < 0 ||
        access(lab_path(full, sizeof full, "/dev/nvidiactl"), F_OK) != 0)
        lab_ask_modprobe("-c=255");
    if (lab_loaded_version(loaded, sizeof loaded) < 0 || lab_hardware(&hardware) < 0)
        return DRIVER_NOT_LOADED;
    if (strcmp(loaded, lab_driver_version) != 0)
        return VERSION_MISMATCH;
    started++;
    return OK;
}

LAB_API int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
LAB_API int nvmlInit(void) { return nvmlInitWithFlags(0); }

LAB_API int nvmlShutdown(void) {
    if (!started)
        return UNINITIALIZED;
    started--;
    return OK;
}

/* ---- finding the GPU behind a handle -------------------------------------------------------- */

int find(void *handle, struct lab_hardware *hardware, struct lab_gpu **gpu) {
    if (!started)
        return UNINITIALIZED;
    int *slot = handle;
    if (is_mig_handle(handle, NULL))
        return NOT_SUPPORTED; /* what a MIG device answers to is asked before */
    if (slot < handles || slot >= handles + LAB_MAX_GPUS)
        return INVALID_ARGUMENT;
    if (lab_hardware(hardware) < 0 || *slot >= hardware->gpu_count)
        return GPU_IS_LOST;
    if (lab_fault_at(hardware, "gpu-off-bus", *slot))
        return GPU_IS_LOST;
    *gpu = &hardware->gpus[*slot];
    return OK;
}

int copy_text(char *into, unsigned size, const char *text) {
    if (!into)
        return INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(into, text);
    return OK;
}

int number(unsigned *into, unsigned value) {
    if (!into)
        return INVALID_ARGUMENT;
    *into = value;
    return OK;
}

/* ---- the system ----------------------------------------------------------------------------- */

LAB_API int nvmlSystemGetDriverVersion(char *into, unsigned size) {
    return started ? copy_text(into, size, lab_driver_version) : UNINITIALIZED;
}

LAB_API int nvmlSystemGetNVMLVersion(char *into, unsigned size) {
    char text[96];
    /* CUDA major . driver version, as 13.580.65.06 */
    snprintf(text, sizeof text, "%d.%s", lab_cuda_version / 1000, lab_driver_version);
    return started ? copy_text(into, size, text) : UNINITIALIZED;
}

LAB_API int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!version)
        return INVALID_ARGUMENT;
    *version = lab_cuda_version;
    return OK;
}

LAB_API int nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

LAB_API int nvmlSystemGetDriverBranch(branch_info *info, unsigned size) {
    if (!started)
        return UNINITIALIZED;
    if (!info)
        return INVALID_ARGUMENT;
    if (info->version != VERSIONED(branch_info, 1))
        return ARGUMENT_VERSION_MISMATCH;
    char text[80];
    snprintf(text, sizeof text, "r%.3s_00", lab_driver_version);
    return copy_text(info->branch, size < sizeof info->branch ? size : sizeof info->branch, text);
}

LAB_API int nvmlSystemGetProcessName(unsigned pid, char *into, unsigned size) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = 0; /* arguments are separated by NUL: this is argv[0] alone */
    return copy_text(into, size, text);
}

/* ---- enumeration ---------------------------------------------------------------------------- */

LAB_API int nvmlDeviceGetCount_v2(unsigned *count) {
    struct lab_hardware hardware;
    if (!started)
        return UNINITIALIZED;
    return number(count, lab_hardware(&hardware) < 0 ? 0 : (unsigned)hardware.gpu_count);
}

LAB_API int nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

LAB_API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    struct lab_hardware hardware;
    if (!started)
        return UNINITIALIZED;
    if (!handle || lab_hardware(&hardware) < 0 || index >= (unsigned)hardware.gpu_count)
        return INVALID_ARGUMENT;
    if (lab_fault_at(&hardware, "gpu-off-bus", (int)index))
        return GPU_IS_LOST;
    *handle = &handles[index];
    return OK;
}

LAB_API int nvmlDeviceGetHandleByIndex(unsigned index, void **handle) {
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

static int handle_where(int (*same)(const struct lab_gpu *, const char *), const char *text, void **handle) {
    struct lab_hardware hardware;
    if (!started)
        return UNINITIALIZED;
    if (!text || !handle)
        return INVALID_ARGUMENT;
    if (lab_hardware(&hardware) < 0)
        return NOT_FOUND;
    for (int i = 0; i < hardware.gpu_count; i++)
        if (same(&hardware.gpus[i], text))
            return nvmlDeviceGetHandleByIndex_v2((unsigned)i, handle);
    return NOT_FOUND;
}

static int same_uuid(const struct lab_gpu *gpu, const char *text) { return !strcmp(gpu->uuid, text); }
static int same_serial(const struct lab_gpu *gpu, const char *text) { return !strcmp(gpu->serial, text); }

/* Takes a PCI domain of four or eight digits, in either case, or none. */
static int same_pci(const struct lab_gpu *gpu, const char *text) {
    const char *colon = strchr(text, ':'), *last = strrchr(text, ':');
    if (!colon)
        return 0;
    if (colon == last)
        return !strcasecmp(gpu->pci_address + 5, text);
    return lab_number(text, 16) == lab_number(gpu->pci_address, 16) &&
           !strcasecmp(gpu->pci_address + 5, colon + 1);
}

LAB_API int nvmlDeviceGetHandleByUUID(const char *text, void **handle) {
    if (started && text && handle && !strncmp(text, "MIG-", 4))
        return mig_handle_by_uuid(text, handle);
    return handle_where(same_uuid, text, handle);
}
LAB_API int nvmlDeviceGetHandleBySerial(const char *text, void **handle) { return handle_where(same_serial, text, handle); }
LAB_API int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) { return handle_where(same_pci, text, handle); }
LAB_API int nvmlDeviceGetHandleByPciBusId(const char *text, void **handle) { return handle_where(same_pci, text, handle); }

/* ---- identity ------------------------------------------------------------------------------- */

LAB_API int nvmlDeviceGetName(void *handle, char *into, unsigned size) {
    if (is_mig_handle(handle, NULL))
        return mig_name(handle, into, size);
    GPU(handle); return copy_text(into, size, gpu->name);
}
LAB_API int nvmlDeviceGetUUID(void *handle, char *into, unsigned size) {
    if (is_mig_handle(handle, NULL))
        return mig_device_uuid(handle, into, size);
    GPU(handle); return copy_text(into, size, gpu->uuid);
}
LAB_API int nvmlDeviceGetSerial(void *handle, char *into, unsigned size) { GPU(handle); return copy_text(into, size, gpu->serial); }
LAB_API int nvmlDeviceGetIndex(void *handle, unsigned *into) { GPU(handle); return number(into, (unsigned)(gpu - hardware.gpus)); }
LAB_API int nvmlDeviceGetMinorNumber(void *handle, unsigned *into) { GPU(handle); return number(into, gpu->minor); }
LAB_API int nvmlDeviceGetBrand(void *handle, unsigned *into) { GPU(handle); return number(into, gpu->brand); }
LAB_API int nvmlDeviceGetArchitecture(void *handle, unsigned *into) { GPU(handle); return number(into, gpu->architecture); }
LAB_API int nvmlDeviceGetVbiosVersion(void *handle, char *into, unsigned size) { GPU(handle); return copy_text(into, size, "96.00.99.00.01"); }
LAB_API int nvmlDeviceGetGspFirmwareVersion(void *handle, char *into) { GPU(handle); return copy_text(into, 80, lab_driver_version); }

LAB_API int nvmlDeviceGetModuleId(void *handle, unsigned *into) {
    GPU(handle);
    return hardware.has_board ? number(into, (unsigned)(gpu - hardware.gpus) + 1) : NOT_SUPPORTED;
}

LAB_API int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    GPU(handle);
    if (!major || !minor)
        return INVALID_ARGUMENT;
    *major = (int)gpu->cc_major;
    *minor = (int)gpu->cc_minor;
    return OK;
}

void describe_pci(const char *address, unsigned device_id, unsigned subsystem_id, pci_info *info) {
    memset(info, 0, sizeof *info);
    info->domain = (unsigned)lab_number(address, 16);
    info->bus = (unsigned)lab_number(address + 5, 16);
    info->device = (unsigned)lab_number(address + 8, 16);
    info->device_id = device_id << 16 | 0x10de;
    info->subsystem_id = subsystem_id << 16 | 0x10de;
    snprintf(info->legacy, sizeof info->legacy, "%04X:%02X:%02X.0", info->domain & 0xffff, info->bus & 0xff, info->device & 0xff);
    snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", info->domain, info->bus, info->device);
}

LAB_API int nvmlDeviceGetPciInfo_v3(void *handle, pci_info *info) {
    GPU(handle);
    if (!info)
        return INVALID_ARGUMENT;
    describe_pci(gpu->pci_address, gpu->device_id, gpu->subsystem_id, info);
    return OK;
}

LAB_API int nvmlDeviceGetPciInfo_v2(void *handle, pci_info *info) { return nvmlDeviceGetPciInfo_v3(handle, info); }
LAB_API int nvmlDeviceGetPciInfo(void *handle, pci_info *info) { return nvmlDeviceGetPciInfo_v3(handle, info); }
