/* Simulated: the fields of --query-gpu, each read through NVML.
 *
 * Sources: nvidia-smi --help-query-gpu of 580.178.04.
 */
#define _GNU_SOURCE
#include "smi_fields.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; } pci_info;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; unsigned char summary; } fabric_v3;

void *library;
char driver_version[80];

const char *error_text(int code) {
    const char *(*function)(int) = (const char *(*)(int))dlsym(library, "nvmlErrorString");
    return function ? function(code) : "Unknown Error";
}

typedef int reader(void *gpu, const char *which, char *into, size_t size);

static int say_number(char *into, size_t size, int code, unsigned long long value) {
    snprintf(into, size, "%llu", value);
    return code;
}

static int say_switch(char *into, size_t size, int code, unsigned value) {
    snprintf(into, size, "%s", value ? "Enabled" : "Disabled");
    return code;
}

static int read_text(void *gpu, const char *which, char *into, size_t size) {
    return CALL(which, gpu, into, (unsigned)size);
}

static int read_number(void *gpu, const char *which, char *into, size_t size) {
    unsigned value = 0;
    int code = CALL(which, gpu, &value);
    return say_number(into, size, code, value);
}

static int read_driver(void *gpu, const char *which, char *into, size_t size) {
    (void)gpu;
    (void)which;
    snprintf(into, size, "%s", driver_version);
    return 0;
}

static int read_count(void *gpu, const char *which, char *into, size_t size) {
    unsigned value = 0;
    (void)gpu;
    (void)which;
    int code = CALL("nvmlDeviceGetCount_v2", &value);
    return say_number(into, size, code, value);
}

static int read_pci(void *gpu, const char *which, char *into, size_t size) {
    pci_info info;
    int code = CALL("nvmlDeviceGetPciInfo_v3", gpu, &info);
    switch (*which) {
    case 'i': snprintf(into, size, "%s", info.bus_id); break;
    case 'd': snprintf(into, size, "0x%08X", info.device_id); break;
    case 's': snprintf(into, size, "0x%08X", info.subsystem_id); break;
    default: snprintf(into, size, "0x%02X", *which == 'b' ? info.bus : info.device); break;
    }
    return code;
}

static int read_memory(void *gpu, const char *which, char *into, size_t size) {
    memory_v2 memory = {.version = (unsigned)(sizeof memory | 2 << 24)};
    int code = CALL("nvmlDeviceGetMemoryInfo_v2", gpu, &memory);
    unsigned long long bytes = *which == 't' ? memory.total : *which == 'u' ? memory.used : *which == 'f' ? memory.free : memory.reserved;
    return say_number(into, size, code, bytes >> 20);
}

static int read_persistence(void *gpu, const char *which, char *into, size_t size) {
    unsigned mode = 0;
    (void)which;
    int code = CALL("nvmlDeviceGetPersistenceMode", gpu, &mode);
    return say_switch(into, size, code, mode);
}

static int read_pair(void *gpu, const char *which, char *into, size_t size) {
    unsigned current = 0, pending = 0;
    int wants_pending = *which == 'p';
    int code = CALL(which + 1, gpu, &current, &pending);
    return say_switch(into, size, code, wants_pending ? pending : current);
}

static int read_capability(void *gpu, const char *which, char *into, size_t size) {
    int major = 0, minor = 0;
    (void)which;
    int code = CALL("nvmlDeviceGetCudaComputeCapability", gpu, &major, &minor);
    snprintf(into, size, "%d.%d", major, minor);
    return code;
}

static int read_temperature(void *gpu, const char *which, char *into, size_t size) {
    unsigned value = 0;
    (void)which;
    int code = CALL("nvmlDeviceGetTemperature", gpu, 0u, &value);
    return say_number(into, size, code, value);
}

static int read_power(void *gpu, const char *which, char *into, size_t size) {
    unsigned value = 0;
    int code = CALL(which, gpu, &value);
    snprintf(into, size, "%u.%02u", value / 1000, value % 1000 / 10);
    return code;
}

static int read_utilization(void *gpu, const char *which, char *into, size_t size) {
    utilization rates = {0, 0};
    int code = CALL("nvmlDeviceGetUtilizationRates", gpu, &rates);
    return say_number(into, size, code, *which == 'g' ? rates.gpu : rates.memory);
}

static int read_remapped(void *gpu, const char *which, char *into, size_t size) {
    unsigned value[4] = {0, 0, 0, 0}; /* correctable, uncorrectable, pending, failure */
    int code = CALL("nvmlDeviceGetRemappedRows", gpu, &value[0], &value[1], &value[2], &value[3]);
    int at = *which - '0';
    if (at < 2)
        return say_number(into, size, code, value[at]);
    snprintf(into, size, "%s", value[at] ? "Yes" : "No");
    return code;
}

static int read_ecc(void *gpu, const char *which, char *into, size_t size) {
    unsigned long long count = 0;
    int code = CALL("nvmlDeviceGetTotalEccErrors", gpu, (unsigned)(which[0] == 'u'), (unsigned)(which[1] == 'a'), &count);
    return say_number(into, size, code, count);
}

static int read_fabric(void *gpu, const char *which, char *into, size_t size) {
    static const char *const states[] = {"Not Supported", "Not Started", "In Progress", "Completed"};
    fabric_v3 info = {.version = (unsigned)(sizeof info | 3 << 24)};
    int code = CALL("nvmlDeviceGetGpuFabricInfoV", gpu, &info);
    if (code)
        return code;
    if (!strcmp(which, "state"))
        snprintf(into, size, "%s", info.state < 4 ? states[info.state] : "Unknown");
    else if (info.state != 3)
        return NOT_SUPPORTED; /* status, clique and cluster mean something only once it is complete */
    else if (!strcmp(which, "status"))
        snprintf(into, size, "%s", info.status ? error_text(info.status) : "Success");
    else if (!strcmp(which, "clique"))
        snprintf(into, size, "%u", info.clique);
    else {
        char *at = into;
        for (int i = 0; i < 16 && at + 4 < into + size; i++)
            at += snprintf(at, 4, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", info.cluster[i]);
    }
    return 0;
}

static int read_recovery(void *gpu, const char *which, char *into, size_t size) {
    unsigned value[4] = {0, 0, 0, 0};
    (void)which;
    int code = CALL("nvmlDeviceGetRemappedRows", gpu, &value[0], &value[1], &value[2], &value[3]);
    snprintf(into, size, "%s", value[2] ? "Reset" : value[3] ? "Drain and Reset" : "None");
    return code == NOT_SUPPORTED ? 0 : code;
}

static int read_compute_mode(void *gpu, const char *which, char *into, size_t size) {
    unsigned mode = 0;
    (void)which;
    int code = CALL("nvmlDeviceGetComputeMode", gpu, &mode);
    snprintf(into, size, "%s", mode == 3 ? "Exclusive_Process" : mode == 2 ? "Prohibited" : "Default");
    return code;
}

static const struct { const char *name, *unit; reader *read; const char *which; } fields[] = {
    {"index", "", read_number, "nvmlDeviceGetIndex"}, {"name", "", read_text, "nvmlDeviceGetName"},
    {"gpu_name", "", read_text, "nvmlDeviceGetName"}, {"uuid", "", read_text, "nvmlDeviceGetUUID"},
    {"gpu_uuid", "", read_text, "nvmlDeviceGetUUID"}, {"serial", "", read_text, "nvmlDeviceGetSerial"},
    {"gpu_serial", "", read_text, "nvmlDeviceGetSerial"}, {"count", "", read_count, ""},
    {"driver_version", "", read_driver, ""}, {"pci.bus_id", "", read_pci, "id"}, {"gpu_bus_id", "", read_pci, "id"},
    {"pci.bus", "", read_pci, "bus"}, {"pci.device", "", read_pci, "function"},
    {"pci.device_id", "", read_pci, "device"}, {"pci.sub_device_id", "", read_pci, "subsystem"},
    {"vbios_version", "", read_text, "nvmlDeviceGetVbiosVersion"},
    {"memory.total", "MiB", read_memory, "total"}, {"memory.used", "MiB", read_memory, "used"},
    {"memory.free", "MiB", read_memory, "free"}, {"memory.reserved", "MiB", read_memory, "reserved"},
    {"persistence_mode", "", read_persistence, ""}, {"compute_cap", "", read_capability, ""},
    {"compute_mode", "", read_compute_mode, ""},
    {"mig.mode.current", "", read_pair, "cnvmlDeviceGetMigMode"}, {"mig.mode.pending", "", read_pair, "pnvmlDeviceGetMigMode"},
    {"ecc.mode.current", "", read_pair, "cnvmlDeviceGetEccMode"}, {"ecc.mode.pending", "", read_pair, "pnvmlDeviceGetEccMode"},
    {"ecc.errors.corrected.volatile.total", "", read_ecc, "cv"}, {"ecc.errors.corrected.aggregate.total", "", read_ecc, "ca"},
    {"ecc.errors.uncorrected.volatile.total", "", read_ecc, "uv"}, {"ecc.errors.uncorrected.aggregate.total", "", read_ecc, "ua"},
    {"remapped_rows.correctable", "", read_remapped, "0"}, {"remapped_rows.uncorrectable", "", read_remapped, "1"},
    {"remapped_rows.pending", "", read_remapped, "2"}, {"remapped_rows.failure", "", read_remapped, "3"},
    {"gpu_recovery_action", "", read_recovery, ""},
    {"temperature.gpu", "", read_temperature, ""}, {"power.draw", "W", read_power, "nvmlDeviceGetPowerUsage"},
    {"power.limit", "W", read_power, "nvmlDeviceGetEnforcedPowerLimit"},
    {"utilization.gpu", "%", read_utilization, "gpu"}, {"utilization.memory", "%", read_utilization, "memory"},
    {"fabric.state", "", read_fabric, "state"}, {"fabric.status", "", read_fabric, "status"},
    {"fabric.cliqueId", "", read_fabric, "clique"}, {"fabric.clusterUuid", "", read_fabric, "cluster"},
};
#define FIELD_COUNT (sizeof fields / sizeof *fields)
_Static_assert(FIELD_COUNT <= MAX_FIELDS, "a query must hold every field");

static int field_named(const char *name) {
    for (unsigned i = 0; i < FIELD_COUNT; i++)
        if (!strcasecmp(fields[i].name, name))
            return (int)i;
    return -1;
}

int field_known(const char *name) { return field_named(name) >= 0; }
const char *field_unit(const char *name) { return fields[field_named(name)].unit; }

int value(void *gpu, const char *name, char *into, size_t size, const char **unit) {
    int at = field_named(name), code = fields[at].read(gpu, fields[at].which, into, size);
    *unit = fields[at].unit;
    if (code == 0)
        return 0;
    *unit = "";
    snprintf(into, size, "%s", code == LOST ? "[GPU is lost]" : "[N/A]");
    return code == LOST ? LOST : 0;
}

const char *show(void *gpu, const char *name, char *into, size_t size) {
    const char *unit;
    value(gpu, name, into, size, &unit);
    if (*unit) {
        size_t used = strlen(into);
        snprintf(into + used, size - used, " %s", unit);
    }
    return into;
}
