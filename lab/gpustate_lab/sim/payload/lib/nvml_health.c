/* Simulated: what NVML answers about how well a GPU is: field values, the PCIe link, NVLinks, clocks. */
#define _GNU_SOURCE
#include "nvml_inner.h"

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type, code;
    union { double real; unsigned whole; unsigned long long large; } value;
} field_value;

enum {
    ECC_DBE_VOLATILE = 4, RETIRED_SBE = 29, RETIRED_DBE = 30, RETIRED_PENDING = 31, CRC_FLIT = 38, REPLAY = 52,
    RECOVERY = 59, REMAPPED_CORRECTABLE = 142, REMAPPED_UNCORRECTABLE = 143, REMAP_PENDING = 144, REMAP_FAILURE = 145,
    RECOVERY_ACTION = 230, LINK_COUNT = 91, PCIE_REPLAY = 94, TYPE_UNSIGNED = 1, AMPERE = 7, HOPPER = 9,
    HW_SLOWDOWN = 0x8, HW_THERMAL = 0x40, IDLE = 0x1
};

static int faulty(const struct lab_hardware *hardware, const struct lab_gpu *gpu, const char *name) {
    return lab_fault_at(hardware, name, (int)(gpu - hardware->gpus));
}

static int field(const struct lab_hardware *hardware, const struct lab_gpu *gpu, unsigned id, unsigned *value) {
    int remaps = gpu->architecture >= AMPERE;
    int pending = faulty(hardware, gpu, "remap-pending"), failed = faulty(hardware, gpu, "remap-failure");
    *value = 0;
    switch (id) {
    case ECC_DBE_VOLATILE: return OK;
    case RETIRED_SBE: case RETIRED_DBE: case RETIRED_PENDING: return remaps ? NOT_SUPPORTED : OK;
    case REMAPPED_CORRECTABLE: return remaps ? OK : NOT_SUPPORTED;
    case REMAPPED_UNCORRECTABLE: *value = (unsigned)(pending || failed); return remaps ? OK : NOT_SUPPORTED;
    case REMAP_PENDING: *value = (unsigned)pending; return remaps ? OK : NOT_SUPPORTED;
    case REMAP_FAILURE: *value = (unsigned)failed; return remaps ? OK : NOT_SUPPORTED;
    case CRC_FLIT: case REPLAY: return gpu->has_nvlink_fabric ? OK : NOT_SUPPORTED;
    case RECOVERY:
        *value = faulty(hardware, gpu, "nvlink-down") ? 3 : 0;
        return gpu->has_nvlink_fabric ? OK : NOT_SUPPORTED;
    case LINK_COUNT: *value = link_count(gpu); return OK;
    case PCIE_REPLAY: return OK;
    case RECOVERY_ACTION: *value = (unsigned)faulty(hardware, gpu, "reset-needed"); return OK;
    default: return NOT_SUPPORTED;
    }
}

LAB_API int nvmlDeviceGetFieldValues(void *handle, int count, field_value *values) {
    GPU(handle);
    if (!values || count < 1)
        return INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        values[i].type = TYPE_UNSIGNED;
        values[i].value.large = 0;
        values[i].code = field(&hardware, gpu, values[i].field, &values[i].value.whole);
    }
    return OK;
}

LAB_API int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *into) { GPU(handle); return number(into, gpu->architecture >= HOPPER ? 5 : 4); }
LAB_API int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *into) { return nvmlDeviceGetMaxPcieLinkGeneration(handle, into); }
LAB_API int nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned *into) { GPU(handle); return number(into, 16); }
LAB_API int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *into) { GPU(handle); return number(into, faulty(&hardware, gpu, "pcie-width") ? 8 : 16); }

unsigned link_count(const struct lab_gpu *gpu) {
    return !gpu->has_nvlink_fabric ? 0 : gpu->architecture >= HOPPER ? 18 : 12;
}

LAB_API int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *active) {
    GPU(handle);
    if (!link_count(gpu))
        return NOT_SUPPORTED;
    if (link >= link_count(gpu))
        return INVALID_ARGUMENT;
    return number(active, hardware.has_board && !(link == 3 && faulty(&hardware, gpu, "nvlink-down")));
}

LAB_API int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons) {
    GPU(handle);
    if (!reasons)
        return INVALID_ARGUMENT;
    *reasons = faulty(&hardware, gpu, "clocks-hot") ? HW_SLOWDOWN | HW_THERMAL : IDLE;
    return OK;
}

LAB_API int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(handle, reasons);
}

LAB_API int nvmlDeviceGetSupportedClocksEventReasons(void *handle, unsigned long long *reasons) {
    GPU(handle);
    if (!reasons)
        return INVALID_ARGUMENT;
    *reasons = IDLE | HW_SLOWDOWN | HW_THERMAL;
    return OK;
}

LAB_API int nvmlDeviceGetSupportedClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    return nvmlDeviceGetSupportedClocksEventReasons(handle, reasons);
}
