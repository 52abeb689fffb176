/* Simulated: what does not change about a board, and its clocks, power and error counters.
 *
 * Clocks are those of an idle or a busy GPU; nothing can be set, so every limit is the default.
 *
 * Source: nvml.h 13.0; values: models.json.
 */
#define _GNU_SOURCE
#include "nvml_inner.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct { unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class; char bus_id[32]; } pci_info_ext;
typedef struct { unsigned version, type; union { char text[41]; unsigned char bytes[16]; } value; } uuid_value;
typedef struct { unsigned version, value; } versioned_number;
typedef struct { unsigned version, sensor; int temp_c; } temperature;
typedef struct { unsigned max, high, partial, low, none; } remap_histogram;
typedef struct { unsigned long long l1, l2, memory, registers; } ecc_counts;

enum {
    PCIE = 2, ASCII = 1, ADDRESSING_NONE = 0, ADDRESSING_ATS = 2, AMPERE = 7, ADA = 8,
    MEMORY = 2, CLOCKS = 4, CLOCK_IDS = 4, IDLE_SM_MHZ = 345, LOCATIONS = 8, ON = 1, OFF = 0, P0 = 0, CLASS_3D = 0x0302
};

int nvmlDeviceGetHandleByUUID(const char *text, void **handle);
int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *temp_c);
int nvmlDeviceGetPowerUsage(void *handle, unsigned *power_mw);
int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *into);

/* ---- the board ------------------------------------------------------------------------------ */

LAB_API int nvmlDeviceGetHandleByUUIDV(const uuid_value *uuid, void **handle) {
    if (!uuid)
        return INVALID_ARGUMENT;
    if (uuid->version != VERSIONED(uuid_value, 1))
        return ARGUMENT_VERSION_MISMATCH;
    return uuid->type == ASCII ? nvmlDeviceGetHandleByUUID(uuid->value.text, handle) : NOT_SUPPORTED;
}

LAB_API int nvmlDeviceGetPciInfoExt(void *handle, pci_info_ext *info) {
    GPU(handle);
    if (!info)
        return INVALID_ARGUMENT;
    if (info->version != VERSIONED(pci_info_ext, 1))
        return ARGUMENT_VERSION_MISMATCH;
    pci_info plain;
    describe_pci(gpu->pci_address, gpu->device_id, gpu->subsystem_id, &plain);
    *info = (pci_info_ext){info->version, plain.domain, plain.bus, plain.device, plain.device_id, plain.subsystem_id,
                           CLASS_3D >> 8, CLASS_3D & 0xff, ""};
    memcpy(info->bus_id, plain.bus_id, sizeof info->bus_id);
    return OK;
}

/* No part number is published for all of these boards: this one is made of the PCI identifiers. */
LAB_API int nvmlDeviceGetBoardPartNumber(void *handle, char *into, unsigned size) {
    GPU(handle);
    char text[32];
    snprintf(text, sizeof text, "LAB-%04X-%04X", gpu->device_id, gpu->subsystem_id);
    return copy_text(into, size, text);
}

LAB_API int nvmlDeviceGetBoardId(void *handle, unsigned *id) { GPU(handle); return number(id, (unsigned)lab_number(gpu->pci_address + 5, 16) << 8); }
LAB_API int nvmlDeviceGetMultiGpuBoard(void *handle, unsigned *several) { GPU(handle); return number(several, 0); }
LAB_API int nvmlDeviceGetBusType(void *handle, unsigned *type) { GPU(handle); return number(type, PCIE); }
LAB_API int nvmlDeviceGetDisplayMode(void *handle, unsigned *mode) { GPU(handle); return number(mode, OFF); }
LAB_API int nvmlDeviceGetDisplayActive(void *handle, unsigned *active) { GPU(handle); return number(active, OFF); }
LAB_API int nvmlDeviceGetAccountingMode(void *handle, unsigned *mode) { GPU(handle); return number(mode, OFF); }
LAB_API int nvmlDeviceGetNumFans(void *handle, unsigned *count) { GPU(handle); return number(count, 0); }
LAB_API int nvmlDeviceValidateInforom(void *handle) { GPU(handle); return OK; }

LAB_API int nvmlDeviceGetGspFirmwareMode(void *handle, unsigned *enabled, unsigned *by_default) {
    GPU(handle);
    number(enabled, ON);
    return number(by_default, ON);
}

/* CUDA cores of an SM: 64 on Turing and on A100, 128 after. */
LAB_API int nvmlDeviceGetNumGpuCores(void *handle, unsigned *count) {
    GPU(handle);
    return number(count, gpu->sm_count * (gpu->architecture >= ADA ? 128 : 64));
}

/* Only where processor and GPU share one address space: Grace. */
LAB_API int nvmlDeviceGetAddressingMode(void *handle, versioned_number *mode) {
    GPU(handle);
    if (!mode)
        return INVALID_ARGUMENT;
    if (mode->version != VERSIONED(versioned_number, 1))
        return ARGUMENT_VERSION_MISMATCH;
    mode->value = strstr(gpu->name, " GB") ? ADDRESSING_ATS : ADDRESSING_NONE;
    return OK;
}

LAB_API int nvmlGpmQueryDeviceSupport(void *handle, versioned_number *support) {
    GPU(handle);
    if (!support)
        return INVALID_ARGUMENT;
    if (support->version != 1)
        return ARGUMENT_VERSION_MISMATCH;
    support->value = 0;
    return OK;
}

static int none(unsigned *count) {
    return !is_started() ? UNINITIALIZED : number(count, 0);
}

LAB_API int nvmlUnitGetCount(unsigned *count) { return none(count); }
LAB_API int nvmlGetExcludedDeviceCount(unsigned *count) { return none(count); }
LAB_API int nvmlSystemGetHicVersion(unsigned *count) { return none(count); }

/* ---- PCIe ----------------------------------------------------------------------------------- */

LAB_API int nvmlDeviceGetGpuMaxPcieLinkGeneration(void *handle, unsigned *into) { return nvmlDeviceGetMaxPcieLinkGeneration(handle, into); }
LAB_API int nvmlDeviceGetPcieReplayCounter(void *handle, unsigned *count) { GPU(handle); return number(count, 0); }
LAB_API int nvmlDeviceGetPcieThroughput(void *handle, unsigned counter, unsigned *kb_per_s) { GPU(handle); return counter > 1 ? INVALID_ARGUMENT : number(kb_per_s, 0); }
/* Generations 4 and 5 are NVML_PCIE_LINK_MAX_SPEED_16000MBPS and _32000MBPS. */
LAB_API int nvmlDeviceGetPcieLinkMaxSpeed(void *handle, unsigned *speed) { return nvmlDeviceGetMaxPcieLinkGeneration(handle, speed); }

LAB_API int nvmlDeviceGetPcieSpeed(void *handle, unsigned *mbps) {
    unsigned generation = 0;
    int code = nvmlDeviceGetMaxPcieLinkGeneration(handle, &generation);
    return code == OK ? number(mbps, 1000u << generation) : code;
}

/* ---- clocks --------------------------------------------------------------------------------- */

/* Graphics, SM and video follow one another; memory runs at full speed whenever the GPU is on. */
static int clock_of(void *handle, unsigned domain, int most, unsigned *mhz) {
    GPU(handle);
    if (domain >= CLOCKS)
        return INVALID_ARGUMENT;
    if (domain == MEMORY)
        return number(mhz, gpu->max_memory_clock_mhz);
    return number(mhz, most || is_busy(gpu) ? gpu->max_sm_clock_mhz : IDLE_SM_MHZ);
}

LAB_API int nvmlDeviceGetClockInfo(void *handle, unsigned domain, unsigned *mhz) { return clock_of(handle, domain, 0, mhz); }
LAB_API int nvmlDeviceGetMaxClockInfo(void *handle, unsigned domain, unsigned *mhz) { return clock_of(handle, domain, 1, mhz); }
LAB_API int nvmlDeviceGetApplicationsClock(void *handle, unsigned domain, unsigned *mhz) { return clock_of(handle, domain, 1, mhz); }
LAB_API int nvmlDeviceGetDefaultApplicationsClock(void *handle, unsigned domain, unsigned *mhz) { return clock_of(handle, domain, 1, mhz); }
LAB_API int nvmlDeviceGetMaxCustomerBoostClock(void *handle, unsigned domain, unsigned *mhz) { return clock_of(handle, domain, 1, mhz); }

LAB_API int nvmlDeviceGetClock(void *handle, unsigned domain, unsigned id, unsigned *mhz) {
    return id >= CLOCK_IDS ? INVALID_ARGUMENT : clock_of(handle, domain, id != 0, mhz);
}

static int only(unsigned *count, unsigned *into, unsigned value) {
    if (!count)
        return INVALID_ARGUMENT;
    unsigned room = into ? *count : 0;
    if (room)
        *into = value;
    *count = 1;
    return room ? OK : INSUFFICIENT_SIZE;
}

LAB_API int nvmlDeviceGetSupportedMemoryClocks(void *handle, unsigned *count, unsigned *mhz) {
    GPU(handle);
    return only(count, mhz, gpu->max_memory_clock_mhz);
}

LAB_API int nvmlDeviceGetSupportedGraphicsClocks(void *handle, unsigned memory_mhz, unsigned *count, unsigned *mhz) {
    GPU(handle);
    return memory_mhz != gpu->max_memory_clock_mhz ? NOT_FOUND : only(count, mhz, gpu->max_sm_clock_mhz);
}

/* ---- power and temperature ------------------------------------------------------------------ */

LAB_API int nvmlDeviceGetPerformanceState(void *handle, unsigned *state) { GPU(handle); return number(state, P0); }
LAB_API int nvmlDeviceGetPowerState(void *handle, unsigned *state) { GPU(handle); return number(state, P0); }
LAB_API int nvmlDeviceGetPowerManagementMode(void *handle, unsigned *mode) { GPU(handle); return number(mode, ON); }
LAB_API int nvmlDeviceGetPowerManagementDefaultLimit(void *handle, unsigned *power_mw) { GPU(handle); return number(power_mw, gpu->power_limit_w * 1000); }

LAB_API int nvmlDeviceGetPowerManagementLimitConstraints(void *handle, unsigned *least_mw, unsigned *most_mw) {
    GPU(handle);
    number(least_mw, gpu->power_limit_w * 1000);
    return number(most_mw, gpu->power_limit_w * 1000);
}

/* As if it had drawn since the machine started what it draws now. */
LAB_API int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *energy_mj) {
    unsigned power_mw = 0;
    struct timespec up;
    int code = energy_mj ? nvmlDeviceGetPowerUsage(handle, &power_mw) : INVALID_ARGUMENT;
    if (code != OK)
        return code;
    clock_gettime(CLOCK_BOOTTIME, &up);
    *energy_mj = (unsigned long long)power_mw * (unsigned long long)up.tv_sec;
    return OK;
}

LAB_API int nvmlDeviceGetTemperatureV(void *handle, temperature *info) {
    unsigned temp_c = 0;
    if (!info)
        return INVALID_ARGUMENT;
    if (info->version != VERSIONED(temperature, 1))
        return ARGUMENT_VERSION_MISMATCH;
    int code = nvmlDeviceGetTemperature(handle, info->sensor, &temp_c);
    info->temp_c = (int)temp_c;
    return code;
}

/* ---- video engines: nothing here uses them --------------------------------------------------- */

static int unused_engine(void *handle, unsigned *percent, unsigned *period_us) {
    GPU(handle);
    number(percent, 0);
    return number(period_us, 100000);
}

LAB_API int nvmlDeviceGetEncoderUtilization(void *handle, unsigned *percent, unsigned *period_us) { return unused_engine(handle, percent, period_us); }
LAB_API int nvmlDeviceGetDecoderUtilization(void *handle, unsigned *percent, unsigned *period_us) { return unused_engine(handle, percent, period_us); }

/* ---- memory errors -------------------------------------------------------------------------- */

LAB_API int nvmlDeviceGetDefaultEccMode(void *handle, unsigned *mode) { GPU(handle); return number(mode, ON); }

LAB_API int nvmlDeviceGetDetailedEccErrors(void *handle, unsigned type, unsigned counter, ecc_counts *counts) {
    GPU(handle);
    if (type > 1 || counter > 1 || !counts)
        return INVALID_ARGUMENT;
    memset(counts, 0, sizeof *counts);
    return OK;
}

LAB_API int nvmlDeviceGetMemoryErrorCounter(void *handle, unsigned type, unsigned counter, unsigned location, unsigned long long *count) {
    GPU(handle);
    if (type > 1 || counter > 1 || location >= LOCATIONS || !count)
        return INVALID_ARGUMENT;
    *count = 0;
    return OK;
}

/* Pages are retired where rows cannot be remapped: before Ampere. */
LAB_API int nvmlDeviceGetRetiredPages(void *handle, unsigned cause, unsigned *count) {
    GPU(handle);
    return gpu->architecture >= AMPERE ? NOT_SUPPORTED : cause > 1 ? INVALID_ARGUMENT : number(count, 0);
}

LAB_API int nvmlDeviceGetRetiredPages_v2(void *handle, unsigned cause, unsigned *count) { return nvmlDeviceGetRetiredPages(handle, cause, count); }

LAB_API int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned *pending) {
    GPU(handle);
    return gpu->architecture >= AMPERE ? NOT_SUPPORTED : number(pending, OFF);
}

/* Banks by the spare rows they have left; how many banks there are is made up. */
LAB_API int nvmlDeviceGetRowRemapperHistogram(void *handle, remap_histogram *banks) {
    GPU(handle);
    if (gpu->architecture < AMPERE)
        return NOT_SUPPORTED;
    if (!banks)
        return INVALID_ARGUMENT;
    int place = (int)(gpu - hardware.gpus);
    int failed = lab_fault_at(&hardware, "remap-failure", place), pending = lab_fault_at(&hardware, "remap-pending", place);
    *banks = (remap_histogram){640, 0, 0, 0, 0};
    if (failed || pending) {
        banks->max--;
        banks->none = (unsigned)failed;
        banks->high = (unsigned)!failed;
    }
    return OK;
}
