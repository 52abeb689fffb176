/* Simulated libcuda: the part of the CUDA driver API that loads a PTX kernel, runs it on one GPU
 * and reads the answer back. Device memory is host memory; kernels run in ptx.c.
 *
 * What makes cuInit fail here makes it fail on a node: no module (100), a module of another
 * version (803), no nvidia-uvm or no device node of it (999), an NVSwitch board whose fabric manager is not done (802).
 *
 * Sources: CUDA driver API reference 13.0, cuInit and the CUresult table.
 */
#define _GNU_SOURCE
#include "cuda_inner.h"
#include "mps.h"
#include "mig.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct lab_hardware hardware; /* as cuInit saw it, like the real library */
/* What CUDA shows: whole GPUs, or a MIG device (instance and compute are -1 for a GPU). */
static struct { int gpu, instance, compute; struct mig_profile profile; char uuid[64]; char name[128]; } visible[LAB_MAX_GPUS];
static int visible_count;
int cuda_initialized;
static struct context *contexts;
struct allocation *allocations;
__thread struct context *current;

static const struct { int code; const char *name, *text; } errors[] = {
    {0, "CUDA_SUCCESS", "no error"}, {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}, {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "MPS client failed to connect to the MPS control daemon or the MPS server"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet cuda_initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int describe(int code, const char **into, int name) {
    for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *into = name ? errors[i].name : errors[i].text;
            return SUCCESS;
        }
    *into = NULL;
    return INVALID_VALUE;
}

LAB_API int cuGetErrorName(int code, const char **into) { return describe(code, into, 1); }
LAB_API int cuGetErrorString(int code, const char **into) { return describe(code, into, 0); }

/* ---- start ---------------------------------------------------------------------------------- */

/* A MIG device: the one with this UUID, or the first of a GPU. */
static int add_mig(int index, const char *wanted) {
    static struct mig_geometry geometry;
    struct mig_state state;
    struct lab_gpu *gpu = &hardware.gpus[index];
    char profile[48];
    if (mig_geometry(gpu, &geometry) < 0)
        return 0;
    mig_read(gpu, &geometry, &state);
    for (unsigned i = 0; i < state.count; i++)
        for (unsigned c = 0; c < state.instances[i].count; c++) {
            struct mig_instance *instance = &state.instances[i];
            char uuid[64];
            mig_uuid(gpu, instance, &instance->compute[c], uuid, sizeof uuid);
            if (wanted && strcmp(wanted, uuid))
                continue;
            const struct mig_profile *of = &geometry.profiles[instance->profile];
            mig_device_name(of, &instance->compute[c], profile, sizeof profile);
            visible[visible_count].gpu = index;
            visible[visible_count].instance = (int)instance->id;
            visible[visible_count].compute = (int)instance->compute[c].id;
            visible[visible_count].profile = *of;
            snprintf(visible[visible_count].uuid, sizeof uuid, "%s", uuid);
            snprintf(visible[visible_count].name, sizeof visible[0].name, "%s MIG %s", gpu->name, profile);
            visible_count++;
            return 1;
        }
    return 0;
}

static int is_divided(int index) {
    static struct mig_geometry geometry;
    struct mig_state state;
    if (mig_geometry(&hardware.gpus[index], &geometry) < 0)
        return 0;
    mig_read(&hardware.gpus[index], &geometry, &state);
    return state.current;
}

static void add_visible(int index) {
    if (lab_fault_at(&hardware, "gpu-off-bus", index)) /* a lost GPU is as if it were not there */
        return;
    if (is_divided(index)) {
        add_mig(index, NULL);
        return;
    }
    visible[visible_count].gpu = index;
    visible[visible_count].instance = visible[visible_count].compute = -1;
    snprintf(visible[visible_count].uuid, sizeof visible[0].uuid, "%s", hardware.gpus[index].uuid);
    snprintf(visible[visible_count].name, sizeof visible[0].name, "%s", hardware.gpus[index].name);
    visible_count++;
}

/* CUDA_VISIBLE_DEVICES: indices or UUIDs; the list ends at the first that is neither. Without it, all
 * whole GPUs, and where there are none one MIG device: CUDA does not enumerate more of them. */
static void choose_visible(void) {
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    visible_count = 0;
    if (!wanted) {
        for (int i = 0; i < hardware.gpu_count; i++)
            if (!is_divided(i))
                add_visible(i);
        for (int i = 0; i < hardware.gpu_count && !visible_count; i++)
            add_visible(i);
        return;
    }
    char list[2048], *rest = list, *item;
    snprintf(list, sizeof list, "%s", wanted);
    while ((item = strsep(&rest, ",")) && *item && visible_count < LAB_MAX_GPUS) {
        int found = -1, before = visible_count;
        for (int i = 0; i < hardware.gpu_count && !strncmp(item, "MIG-", 4) && visible_count == before; i++)
            add_mig(i, item);
        if (visible_count > before)
            continue;
        for (int i = 0; i < hardware.gpu_count; i++)
            if ((*item >= '0' && *item <= '9' && lab_number(item, 10) == (uint64_t)i) ||
                (!strncmp(item, "GPU-", 4) && !strncmp(hardware.gpus[i].uuid, item, strlen(item))))
                found = i;
        if (found < 0)
            return;
        add_visible(found);
    }
}

static int uvm_ready(void) {
    char full[512];
    struct stat status;
    return stat(lab_path(full, sizeof full, "/run/gpustate-lab/sys/module/nvidia_uvm"), &status) == 0 &&
           lab_device("/dev/nvidia-uvm");
}

LAB_API int cuInit(unsigned flags) {
    char loaded[64];
    if (flags)
        return INVALID_VALUE;
    if (lab_loaded_version(loaded, sizeof loaded) < 0 || !uvm_ready())
        lab_ask_modprobe("-u");
    if (lab_loaded_version(loaded, sizeof loaded) < 0)
        return NO_DEVICE;
    if (strcmp(loaded, lab_driver_version) != 0)
        return DRIVER_MISMATCH;
    if (lab_hardware(&hardware) < 0 || hardware.gpu_count == 0)
        return NO_DEVICE;
    if (!uvm_ready())
        return UNKNOWN;
    if (lab_fault(&hardware, "cuda-802") || lab_fault(&hardware, "confidential-waiting") || (hardware.has_board && !lab_fabric_ready(&hardware)))
        return SYSTEM_NOT_READY;
    choose_visible();
    if (!visible_count)
        return NO_DEVICE;
    cuda_initialized = 1;
    return SUCCESS;
}

LAB_API int cuDriverGetVersion(int *version) {
    if (!version)
        return INVALID_VALUE;
    *version = lab_cuda_version;
    return SUCCESS;
}

/* ---- devices -------------------------------------------------------------------------------- */

struct lab_gpu *gpu_of(int device) {
    return cuda_initialized && device >= 0 && device < visible_count ? &hardware.gpus[visible[device].gpu] : NULL;
}

#define DEVICE(device)                                                                             \
    struct lab_gpu *gpu = gpu_of(device);                                                          \
    do {                                                                                           \
        if (!gpu)                                                                                  \
            return cuda_initialized ? INVALID_DEVICE : NOT_INITIALIZED;                                 \
    } while (0)

LAB_API int cuDeviceGetCount(int *count) {
    if (!cuda_initialized)
        return NOT_INITIALIZED;
    if (!count)
        return INVALID_VALUE;
    *count = visible_count;
    return SUCCESS;
}

LAB_API int cuDeviceGet(int *device, int ordinal) {
    DEVICE(ordinal);
    (void)gpu;
    *device = ordinal;
    return SUCCESS;
}

LAB_API int cuDeviceGetName(char *into, int size, int device) {
    DEVICE(device);
    (void)gpu;
    snprintf(into, (size_t)size, "%s", visible[device].name);
    return SUCCESS;
}

LAB_API int cuDeviceGetUuid_v2(unsigned char *into, int device) {
    DEVICE(device);
    (void)gpu;
    const char *at = visible[device].uuid + strlen("GPU-"); /* "MIG-" is as long */
    for (int i = 0; i < 16; i++, at += 2) {
        if (*at == '-')
            at++;
        char pair[3] = {at[0], at[1], 0};
        into[i] = (unsigned char)lab_number(pair, 16);
    }
    return SUCCESS;
}

LAB_API int cuDeviceGetUuid(unsigned char *into, int device) { return cuDeviceGetUuid_v2(into, device); }

LAB_API int cuDeviceGetPCIBusId(char *into, int size, int device) {
    DEVICE(device);
    snprintf(into, (size_t)size, "%s", gpu->pci_address);
    return SUCCESS;
}

LAB_API int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    DEVICE(device);
    *bytes = (size_t)(visible[device].instance < 0 ? gpu->memory_mib : visible[device].profile.memory_mib) << 20;
    return SUCCESS;
}

/* Numbers of CUdevice_attribute. */
LAB_API int cuDeviceGetAttribute(int *into, int attribute, int device) {
    DEVICE(device);
    switch (attribute) {
    case 1: *into = 1024; break;   /* threads per block */
    case 2: case 3: *into = 1024; break;
    case 4: *into = 64; break;
    case 5: *into = 0x7fffffff; break;
    case 6: case 7: *into = 65535; break;
    case 10: *into = 32; break;    /* warp size */
    case 16: *into = (int)(visible[device].instance < 0 ? gpu->sm_count : visible[device].profile.sm_count); break;
    case 33: *into = (int)lab_number(gpu->pci_address + 5, 16); break;
    case 34: *into = (int)lab_number(gpu->pci_address + 8, 16); break;
    case 50: *into = (int)lab_number(gpu->pci_address, 16); break;
    case 75: *into = (int)gpu->cc_major; break;
    case 76: *into = (int)gpu->cc_minor; break;
    default: return INVALID_VALUE;
    }
    return SUCCESS;
}

/* ---- contexts; the processes list of NVML follows them -------------------------------------- */

void tell_holders(void) {
    char lines[2048] = "";
    size_t used = 0;
    for (struct context *at = contexts; at; at = at->next) {
        uint64_t bytes = CONTEXT_BYTES;
        for (struct allocation *of = allocations; of; of = of->next)
            if (of->device == at->device)
                bytes += of->bytes;
        if (used < sizeof lines)
            used += (size_t)snprintf(lines + used, sizeof lines - used, visible[at->device].instance < 0 ? "cuda %s %llu\n" : "cuda %s %llu %d %d\n",
                                     gpu_of(at->device)->pci_address, (unsigned long long)bytes, visible[at->device].instance,
                                     visible[at->device].compute);
    }
    if (contexts)
        lab_hold(lines);
    else
        lab_release();
}

__attribute__((destructor)) static void leave(void) {
    if (contexts)
        lab_release();
}

/* O_PATH needs no driver behind the node. */
static void open_nodes(struct context *context, const struct lab_gpu *gpu) {
    char own[64], whole[64] = "", part[64] = "", full[512];
    int instance = visible[context->device].instance;
    snprintf(own, sizeof own, "/dev/nvidia%u", gpu->minor);
    if (instance >= 0) {
        snprintf(whole, sizeof whole, "/dev/nvidia-caps/nvidia-cap%u", mig_capability(gpu, (unsigned)instance, -1));
        snprintf(part, sizeof part, "/dev/nvidia-caps/nvidia-cap%u", mig_capability(gpu, (unsigned)instance, visible[context->device].compute));
    }
    const char *paths[] = {own, "/dev/nvidiactl", "/dev/nvidia-uvm", whole, part};
    for (int i = 0; i < 5; i++)
        context->nodes[i] = *paths[i] ? open(lab_path(full, sizeof full, paths[i]), O_PATH | O_CLOEXEC) : -1;
}

static void close_nodes(const struct context *context) {
    for (int i = 0; i < 5; i++)
        if (context->nodes[i] >= 0)
            close(context->nodes[i]);
}

/* May this process use the GPU, and if so it does: no other process decides in between. */
static int add_context(struct context **into, int device) {
    DEVICE(device);
    int lock = lab_lock_holders();
    int refused = lab_may_use(gpu);
    struct context *made = refused ? NULL : calloc(1, sizeof *made);
    if (made) {
        *made = (struct context){device, 1, 0, {-1, -1, -1, -1, -1}, contexts};
        open_nodes(made, gpu);
        contexts = *into = made;
        tell_holders();
    }
    lab_unlock_holders(lock);
    return refused ? refused : made ? SUCCESS : OUT_OF_MEMORY;
}

static int drop_context(struct context *context) {
    for (struct context **at = &contexts; *at; at = &(*at)->next)
        if (*at == context) {
            *at = context->next;
            if (current == context)
                current = NULL;
            close_nodes(context);
            free(context);
            tell_holders();
            return SUCCESS;
        }
    return INVALID_CONTEXT;
}

LAB_API int cuCtxCreate_v2(struct context **into, unsigned flags, int device) {
    (void)flags;
    if (!into)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    int answer = add_context(into, device);
    pthread_mutex_unlock(&lock);
    if (answer == SUCCESS)
        current = *into;
    return answer;
}

LAB_API int cuCtxDestroy_v2(struct context *context) {
    pthread_mutex_lock(&lock);
    int answer = drop_context(context);
    pthread_mutex_unlock(&lock);
    return answer;
}

static struct context *primary[LAB_MAX_GPUS];

LAB_API int cuDevicePrimaryCtxRetain(struct context **into, int device) {
    DEVICE(device);
    (void)gpu;
    pthread_mutex_lock(&lock);
    int answer = SUCCESS;
    if (primary[device])
        primary[device]->references++;
    else
        answer = add_context(&primary[device], device);
    *into = primary[device];
    pthread_mutex_unlock(&lock);
    return answer;
}

LAB_API int cuDevicePrimaryCtxRelease_v2(int device) {
    DEVICE(device);
    (void)gpu;
    pthread_mutex_lock(&lock);
    int answer = primary[device] ? SUCCESS : INVALID_CONTEXT;
    if (primary[device] && --primary[device]->references == 0) {
        answer = drop_context(primary[device]);
        primary[device] = NULL;
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

LAB_API int cuDevicePrimaryCtxRelease(int device) { return cuDevicePrimaryCtxRelease_v2(device); }

LAB_API int cuCtxSetCurrent(struct context *context) {
    current = context;
    return cuda_initialized ? SUCCESS : NOT_INITIALIZED;
}

LAB_API int cuCtxGetCurrent(struct context **into) {
    *into = current;
    return cuda_initialized ? SUCCESS : NOT_INITIALIZED;
}

LAB_API int cuCtxGetDevice(int *device) {
    if (!current)
        return INVALID_CONTEXT;
    *device = current->device;
    return SUCCESS;
}
