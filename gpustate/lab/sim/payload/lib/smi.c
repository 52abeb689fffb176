/* Simulated nvidia-smi, over the stub NVML it finds as libnvidia-ml.so.1.
 *
 * Taken: the plain table, -L, -q, --query-gpu, --query-compute-apps, --format, -i, -pm, --version.
 * Exit codes are the NVML code of what went wrong, as the real one does it: 9, 12, 15, 18; 2 for a
 * bad argument, 6 for nothing found. Anything else of the real tool is refused with 2.
 *
 * Sources: nvidia-smi.1 of 580.178.04; its messages as seen in public bug reports.
 */
#define _GNU_SOURCE
#include "lab.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NOTHING_FOUND = 6, NOT_LOADED = 9, NO_LIBRARY = 12, LOST = 15, MISMATCH = 18 };

typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; } pci_info;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } process_info;
typedef struct { unsigned gpu, memory; } utilization;
typedef struct { unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health; unsigned char summary; } fabric_v3;

static void *library;
static char driver_version[80];
static int cuda_version;

/* Call an NVML function by name; one that the library lacks answers 13. */
#define CALL(name, ...)                                                                            \
    ({                                                                                             \
        int (*function_)() = (int (*)())dlsym(library, name);                                      \
        function_ ? function_(__VA_ARGS__) : 13;                                                   \
    })

static const char *error_text(int code) {
    const char *(*function)(int) = (const char *(*)(int))dlsym(library, "nvmlErrorString");
    return function ? function(code) : "Unknown Error";
}

/* ---- one value of one GPU as text; 0 or an NVML code ---------------------------------------- */

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
    else
        snprintf(into, size, "00000000-0000-0000-0000-000000000000");
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
    snprintf(into, size, "%s", mode ? "Exclusive_Process" : "Default");
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

static int field_named(const char *name) {
    for (unsigned i = 0; i < FIELD_COUNT; i++)
        if (!strcasecmp(fields[i].name, name))
            return (int)i;
    return -1;
}

/* The value as nvidia-smi prints it; 15 ends the run, what a GPU cannot answer is [N/A]. */
static int value(void *gpu, const char *name, char *into, size_t size, const char **unit) {
    int at = field_named(name), code = fields[at].read(gpu, fields[at].which, into, size);
    *unit = fields[at].unit;
    if (code == 0)
        return 0;
    *unit = "";
    snprintf(into, size, "%s", code == LOST ? "[GPU is lost]" : "[N/A]");
    return code == LOST ? LOST : 0;
}

static const char *show(void *gpu, const char *name, char *into, size_t size) {
    const char *unit;
    value(gpu, name, into, size, &unit);
    if (*unit) {
        size_t used = strlen(into);
        snprintf(into + used, size - used, " %s", unit);
    }
    return into;
}

/* ---- choosing GPUs -------------------------------------------------------------------------- */

static int lost(unsigned index) {
    char address[32] = "";
    struct lab_hardware hardware;
    if (lab_hardware(&hardware) == 0 && (int)index < hardware.gpu_count)
        snprintf(address, sizeof address, "%s", hardware.gpus[index].pci_address);
    for (char *at = address; *at; at++)
        if (*at >= 'a' && *at <= 'f')
            *at = (char)(*at - 32);
    printf("Unable to determine the device handle for GPU%u: %s: GPU is lost.  Reboot the system to recover this GPU\n", index, address);
    return LOST;
}

/* All GPUs, or those of the list given with -i: an index, a UUID or a bus id. */
static int choose(const char *wanted, void **gpus, unsigned *count) {
    unsigned all = 0;
    *count = 0;
    CALL("nvmlDeviceGetCount_v2", &all);
    if (!wanted) {
        for (unsigned i = 0; i < all && i < LAB_MAX_GPUS; i++)
            if (CALL("nvmlDeviceGetHandleByIndex_v2", i, &gpus[(*count)++]) == LOST)
                return lost(i);
        if (!*count)
            printf("No devices were found\n");
        return *count ? 0 : NOTHING_FOUND;
    }
    char list[1024], *rest = list, *item;
    snprintf(list, sizeof list, "%s", wanted);
    while ((item = strsep(&rest, ",")) && *count < LAB_MAX_GPUS) {
        void **into = &gpus[(*count)++];
        int code = strchr(item, ':') ? CALL("nvmlDeviceGetHandleByPciBusId_v2", item, into)
                   : strchr(item, '-') ? CALL("nvmlDeviceGetHandleByUUID", item, into)
                                       : CALL("nvmlDeviceGetHandleByIndex_v2", (unsigned)lab_number(item, 10), into);
        if (code == LOST)
            return lost((unsigned)lab_number(item, 10));
        if (code) {
            printf("No devices were found\n");
            return NOTHING_FOUND;
        }
    }
    return 0;
}

/* ---- what it prints ------------------------------------------------------------------------- */

static int list(void **gpus, unsigned count) {
    char name[96], uuid[96], index[16];
    for (unsigned i = 0; i < count; i++)
        printf("GPU %s: %s (UUID: %s)\n", show(gpus[i], "index", index, sizeof index),
               show(gpus[i], "name", name, sizeof name), show(gpus[i], "uuid", uuid, sizeof uuid));
    return 0;
}

static int query(void **gpus, unsigned count, const char *wanted, int header, int units) {
    char names[2048], *rest = names, *item, text[128];
    const char *chosen[FIELD_COUNT * 2], *unit;
    unsigned width = 0;
    snprintf(names, sizeof names, "%s", wanted);
    while ((item = strsep(&rest, ",")) && width < FIELD_COUNT * 2) {
        while (*item == ' ')
            item++;
        if (field_named(item) < 0) {
            printf("Field \"%s\" is not a valid field to query.\n\n", item);
            return BAD_ARGUMENT;
        }
        chosen[width++] = item;
    }
    for (unsigned f = 0; header && f < width; f++) {
        unit = fields[field_named(chosen[f])].unit;
        printf("%s%s%s%s%s%s", f ? ", " : "", chosen[f], *unit ? " [" : "", unit, *unit ? "]" : "", f + 1 == width ? "\n" : "");
    }
    for (unsigned i = 0; i < count; i++)
        for (unsigned f = 0; f < width; f++) {
            if (value(gpus[i], chosen[f], text, sizeof text, &unit) == LOST)
                return lost(i);
            printf("%s%s%s%s%s", f ? ", " : "", text, units && *unit ? " " : "", units ? unit : "", f + 1 == width ? "\n" : "");
        }
    return 0;
}

static int processes_of(void *gpu, process_info *into, unsigned room) {
    unsigned count = room;
    return CALL("nvmlDeviceGetComputeRunningProcesses_v3", gpu, &count, into) ? 0 : (int)count;
}

static int query_apps(void **gpus, unsigned count, const char *wanted, int header, int units) {
    process_info found[LAB_MAX_HOLDERS];
    char names[512], text[256];
    if (header)
        printf("%s\n", wanted);
    for (unsigned i = 0; i < count; i++) {
        int total = processes_of(gpus[i], found, LAB_MAX_HOLDERS);
        for (int p = 0; p < total; p++) {
            char *rest = names, *item;
            int first = 1;
            snprintf(names, sizeof names, "%s", wanted);
            while ((item = strsep(&rest, ","))) {
                while (*item == ' ')
                    item++;
                if (!strcmp(item, "pid"))
                    snprintf(text, sizeof text, "%u", found[p].pid);
                else if (!strcmp(item, "process_name") || !strcmp(item, "name")) {
                    if (CALL("nvmlSystemGetProcessName", found[p].pid, text, (unsigned)sizeof text))
                        snprintf(text, sizeof text, "[Not Found]");
                } else if (!strcmp(item, "used_memory") || !strcmp(item, "used_gpu_memory"))
                    snprintf(text, sizeof text, "%llu%s", found[p].bytes >> 20, units ? " MiB" : "");
                else if (!strcmp(item, "gpu_uuid") || !strcmp(item, "gpu_bus_id") || !strcmp(item, "gpu_name"))
                    show(gpus[i], item, text, sizeof text);
                else {
                    printf("Field \"%s\" is not a valid field to query.\n\n", item);
                    return BAD_ARGUMENT;
                }
                printf("%s%s", first ? "" : ", ", text);
                first = 0;
            }
            printf("\n");
        }
    }
    return 0;
}

static void show_details(void *gpu) {
    static const struct { const char *title, *name; } lines[] = {
        {"    Product Name                          ", "name"}, {"    Persistence Mode                      ", "persistence_mode"},
        {"    MIG Mode\n        Current                           ", "mig.mode.current"},
        {"        Pending                           ", "mig.mode.pending"},
        {"    Serial Number                         ", "serial"}, {"    GPU UUID                              ", "uuid"},
        {"    VBIOS Version                         ", "vbios_version"},
        {"    GPU Recovery Action                   ", "gpu_recovery_action"},
        {"    PCI\n        Bus Id                            ", "pci.bus_id"},
        {"        Device Id                         ", "pci.device_id"},
        {"    Fabric\n        State                             ", "fabric.state"},
        {"        Status                            ", "fabric.status"},
        {"        Clique ID                         ", "fabric.cliqueId"},
        {"        Cluster UUID                      ", "fabric.clusterUuid"},
        {"    FB Memory Usage\n        Total                             ", "memory.total"},
        {"        Reserved                          ", "memory.reserved"}, {"        Used                              ", "memory.used"},
        {"        Free                              ", "memory.free"}, {"    Compute Mode                          ", "compute_mode"},
        {"    ECC Mode\n        Current                           ", "ecc.mode.current"},
        {"        Pending                           ", "ecc.mode.pending"},
        {"    Remapped Rows\n        Correctable Error                 ", "remapped_rows.correctable"},
        {"        Uncorrectable Error               ", "remapped_rows.uncorrectable"},
        {"        Pending                           ", "remapped_rows.pending"},
        {"        Remapping Failure Occurred        ", "remapped_rows.failure"},
        {"    Temperature\n        GPU Current Temp                  ", "temperature.gpu"},
    };
    process_info found[LAB_MAX_HOLDERS];
    char text[128];
    printf("GPU %s\n", show(gpu, "pci.bus_id", text, sizeof text));
    for (unsigned i = 0; i < sizeof lines / sizeof *lines; i++) {
        show(gpu, lines[i].name, text, sizeof text);
        printf("%s: %s\n", lines[i].title, strcmp(text, "[N/A]") ? text : "N/A");
    }
    int total = processes_of(gpu, found, LAB_MAX_HOLDERS);
    printf("    Processes                             %s\n", total ? "" : ": None");
    for (int p = 0; p < total; p++)
        printf("        Process ID                        : %u\n            Type                          : C\n"
               "            Used GPU Memory               : %llu MiB\n", found[p].pid, found[p].bytes >> 20);
    printf("\n");
}

static int details(void **gpus, unsigned count) {
    char stamp[64], number[16];
    time_t now = time(NULL);
    strftime(stamp, sizeof stamp, "%a %b %e %H:%M:%S %Y", localtime(&now));
    printf("\n==============NVSMI LOG==============\n\nTimestamp                                 : %s\n", stamp);
    printf("Driver Version                            : %s\nCUDA Version                              : %d.%d\n\n",
           driver_version, cuda_version / 1000, cuda_version % 1000 / 10);
    printf("Attached GPUs                             : %s\n", show(gpus[0], "count", number, sizeof number));
    for (unsigned i = 0; i < count; i++)
        show_details(gpus[i]);
    return 0;
}

static int table(void **gpus, unsigned count) {
    static const char rule[] = "+-----------------------------------------+------------------------+----------------------+\n";
    char a[96], b[96], c[96];
    const char *unit;
    process_info found[LAB_MAX_HOLDERS];
    printf("+-----------------------------------------------------------------------------------------+\n");
    snprintf(a, sizeof a, "%d.%d", cuda_version / 1000, cuda_version % 1000 / 10);
    printf("| NVIDIA-SMI %-22s Driver Version: %-15s CUDA Version: %-7s |\n%s", driver_version, driver_version, a, rule);
    printf("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
           "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
           "|                                         |                        |               MIG M. |\n%s", rule);
    for (unsigned i = 0; i < count; i++) {
        unsigned index = 0;
        CALL("nvmlDeviceGetIndex", gpus[i], &index);
        printf("| %3u  %-26.26s %7s ", index, show(gpus[i], "name", a, sizeof a),
               strcmp(show(gpus[i], "persistence_mode", b, sizeof b), "Enabled") ? "Off" : "On");
        printf("|   %-16s Off | %20s |\n", show(gpus[i], "pci.bus_id", a, sizeof a),
               show(gpus[i], "ecc.errors.uncorrected.volatile.total", b, sizeof b));
        value(gpus[i], "power.draw", b, sizeof b, &unit);
        value(gpus[i], "power.limit", c, sizeof c, &unit);
        b[strcspn(b, ".")] = c[strcspn(c, ".")] = 0; /* the table shows whole watts */
        printf("| N/A  %3sC    P0    %8sW / %7sW ", show(gpus[i], "temperature.gpu", a, sizeof a), b, c);
        printf("| %10s / %9s ", show(gpus[i], "memory.used", a, sizeof a), show(gpus[i], "memory.total", b, sizeof b));
        printf("| %8s %11s |\n", show(gpus[i], "utilization.gpu", a, sizeof a), show(gpus[i], "compute_mode", b, sizeof b));
        printf("|                                         |                        | %20s |\n%s",
               show(gpus[i], "mig.mode.current", a, sizeof a), rule);
    }
    printf("\n+-----------------------------------------------------------------------------------------+\n| Processes:%78s|\n", "");
    unsigned shown = 0;
    for (unsigned i = 0; i < count; i++) {
        int total = processes_of(gpus[i], found, LAB_MAX_HOLDERS);
        for (int p = 0; p < total; p++, shown++) {
            if (CALL("nvmlSystemGetProcessName", found[p].pid, a, (unsigned)sizeof a))
                strcpy(a, "[Not Found]");
            printf("| %4u   N/A  N/A %16u      C   %-32.32s %6lluMiB   |\n", i, found[p].pid, a, found[p].bytes >> 20);
        }
    }
    if (!shown)
        printf("|  No running processes found%60s |\n", "");
    printf("+-----------------------------------------------------------------------------------------+\n");
    return 0;
}

static int set_persistence(void **gpus, unsigned count, unsigned mode) {
    char address[64];
    for (unsigned i = 0; i < count; i++) {
        unsigned now = 0;
        const char *word = mode ? "Enabled" : "Disabled";
        show(gpus[i], "pci.bus_id", address, sizeof address);
        int code = CALL("nvmlDeviceGetPersistenceMode", gpus[i], &now);
        if (!code && now == mode) {
            printf("Persistence mode is already %s for GPU %s.\n", word, address);
            continue;
        }
        code = CALL("nvmlDeviceSetPersistenceMode", gpus[i], mode);
        if (code) {
            printf("Unable to set persistence mode for GPU %s: %s\nTerminating early due to previous errors.\n", address, error_text(code));
            return code;
        }
        printf("%s persistence mode for GPU %s.\n", word, address);
    }
    printf("All done.\n");
    return 0;
}

/* 580.178.04 is NVML 580.178. */
static const char *short_version(const char *version, char *into, size_t size) {
    const char *dot = strchr(version, '.'), *second = dot ? strchr(dot + 1, '.') : NULL;
    snprintf(into, size, "%.*s", second ? (int)(second - version) : (int)strlen(version), version);
    return into;
}

/* ---- start ---------------------------------------------------------------------------------- */

static int start(void) {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
               "Driver is properly installed and present in your system.\nPlease also try adding directory that contains "
               "libnvidia-ml.so to your system PATH.\n");
        return NO_LIBRARY;
    }
    int code = CALL("nvmlInitWithFlags", 0u);
    if (code == NOT_LOADED)
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
               "NVIDIA driver is installed and running.\n\n");
    else if (code) {
        const char *built_for = dlsym(library, "lab_driver_version");
        char text[32];
        printf("Failed to initialize NVML: %s\n", error_text(code));
        if (code == MISMATCH && built_for)
            printf("NVML library version: %s\n", short_version(built_for, text, sizeof text));
    }
    if (code)
        return code == 1 || code == 999 ? 255 : code;
    CALL("nvmlSystemGetDriverVersion", driver_version, (unsigned)sizeof driver_version);
    CALL("nvmlSystemGetCudaDriverVersion_v2", &cuda_version);
    return 0;
}

struct options { const char *query, *apps, *format, *gpus; int list, details, version, persistence; };

static const char *argument(const char *given, const char *name, char **argv, int *at) {
    size_t length = strlen(name);
    if (strncmp(given, name, length))
        return NULL;
    if (given[length] == '=')
        return given + length + 1;
    return !given[length] && argv[*at + 1] ? argv[++*at] : NULL;
}

static int read_options(int argc, char **argv, struct options *options) {
    options->persistence = -1;
    for (int i = 1; i < argc; i++) {
        const char *given = argv[i], *text;
        if (!strcmp(given, "-L") || !strcmp(given, "--list-gpus"))
            options->list = 1;
        else if (!strcmp(given, "-q") || !strcmp(given, "--query"))
            options->details = 1;
        else if (!strcmp(given, "--version"))
            options->version = 1;
        else if ((text = argument(given, "--query-gpu", argv, &i)))
            options->query = text;
        else if ((text = argument(given, "--query-compute-apps", argv, &i)))
            options->apps = text;
        else if ((text = argument(given, "--format", argv, &i)))
            options->format = text;
        else if ((text = argument(given, "--id", argv, &i)) || (text = argument(given, "-i", argv, &i)))
            options->gpus = text;
        else if (((text = argument(given, "--persistence-mode", argv, &i)) || (text = argument(given, "-pm", argv, &i))) &&
                 (!strcmp(text, "0") || !strcmp(text, "1")))
            options->persistence = *text == '1';
        else {
            printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n");
            return BAD_ARGUMENT;
        }
    }
    if ((options->query || options->apps) && (!options->format || strncmp(options->format, "csv", 3))) {
        printf("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n\n");
        return BAD_ARGUMENT;
    }
    return 0;
}

int main(int argc, char **argv) {
    struct options options = {0};
    void *gpus[LAB_MAX_GPUS];
    unsigned count = 0;
    int code = start();
    if (!code)
        code = read_options(argc, argv, &options);
    if (!code && options.version) {
        char text[32];
        printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %d.%d\n",
               driver_version, short_version(driver_version, text, sizeof text), driver_version, cuda_version / 1000, cuda_version % 1000 / 10);
        return 0;
    }
    if (!code)
        code = choose(options.gpus, gpus, &count);
    if (code)
        return code;
    int header = !options.format || !strstr(options.format, "noheader");
    int units = !options.format || !strstr(options.format, "nounits");
    if (options.persistence >= 0)
        return set_persistence(gpus, count, (unsigned)options.persistence);
    if (options.query)
        return query(gpus, count, options.query, header, units);
    if (options.apps)
        return query_apps(gpus, count, options.apps, header, units);
    return options.list ? list(gpus, count) : options.details ? details(gpus, count) : table(gpus, count);
}
