/* Simulated nvidia-smi, over the stub NVML it finds as libnvidia-ml.so.1.
 *
 * Taken: the plain table, -L, -q, --query-gpu, --query-compute-apps, --format, -i, -pm, -c, --version, and of
 * MIG: mig, -mig, --gpu-reset.
 * Exit codes are the NVML code of what went wrong, as the real one does it: 9, 12, 15, 18; 2 for a
 * bad argument, 6 for nothing found. Anything else of the real tool is refused with 2.
 *
 * Sources: nvidia-smi.1 of 580.178.04; its messages as seen in public bug reports.
 */
#define _GNU_SOURCE
#include "lab.h"
#include "mig.h"
#include "smi_fields.h"
#include "smi_mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } process_info;

static int cuda_version;

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
int choose(const char *wanted, void **gpus, unsigned *count) {
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
    for (unsigned i = 0; i < count; i++) {
        printf("GPU %s: %s (UUID: %s)\n", show(gpus[i], "index", index, sizeof index),
               show(gpus[i], "name", name, sizeof name), show(gpus[i], "uuid", uuid, sizeof uuid));
        smi_list_mig_devices(gpus[i]);
    }
    return 0;
}

static int query(void **gpus, unsigned count, const char *wanted, int header, int units) {
    char names[2048], *rest = names, *item, text[128];
    const char *chosen[MAX_FIELDS * 2], *unit;
    unsigned width = 0;
    snprintf(names, sizeof names, "%s", wanted);
    while ((item = strsep(&rest, ",")) && width < MAX_FIELDS * 2) {
        while (*item == ' ')
            item++;
        if (!field_known(item)) {
            printf("Field \"%s\" is not a valid field to query.\n\n", item);
            return BAD_ARGUMENT;
        }
        chosen[width++] = item;
    }
    for (unsigned f = 0; header && f < width; f++) {
        unit = field_unit(chosen[f]);
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

static int set_compute_mode(void **gpus, unsigned count, unsigned mode) {
    static const char *words[] = {"DEFAULT", "", "PROHIBITED", "EXCLUSIVE_PROCESS"};
    char address[64];
    for (unsigned i = 0; i < count; i++) {
        unsigned now = 0;
        show(gpus[i], "pci.bus_id", address, sizeof address);
        if (CALL("nvmlDeviceGetComputeMode", gpus[i], &now) == 0 && now == mode) {
            printf("Compute mode is already set to %s for GPU %s.\n", words[mode], address);
            continue;
        }
        int code = CALL("nvmlDeviceSetComputeMode", gpus[i], mode);
        if (code) {
            printf("Unable to set compute mode for GPU %s: %s\nTerminating early due to previous errors.\n", address, error_text(code));
            return code;
        }
        printf("Set compute mode to %s for GPU %s.\n", words[mode], address);
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

struct options { const char *query, *apps, *format, *gpus; int list, details, version, persistence, mig, reset, compute; };

static const char *argument(const char *given, const char *name, char **argv, int *at) {
    size_t length = strlen(name);
    if (strncmp(given, name, length))
        return NULL;
    if (given[length] == '=')
        return given + length + 1;
    return !given[length] && argv[*at + 1] ? argv[++*at] : NULL;
}

static int read_options(int argc, char **argv, struct options *options) {
    options->persistence = options->mig = options->compute = -1;
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
        else if (((text = argument(given, "--multi-instance-gpu", argv, &i)) || (text = argument(given, "-mig", argv, &i))) &&
                 (!strcmp(text, "0") || !strcmp(text, "1")))
            options->mig = *text == '1';
        else if ((text = argument(given, "--compute-mode", argv, &i)) || (text = argument(given, "-c", argv, &i))) {
            options->compute = !strcmp(text, "0") || !strcmp(text, "DEFAULT") ? 0 : !strcmp(text, "2") || !strcmp(text, "PROHIBITED") ? 2
                               : !strcmp(text, "3") || !strcmp(text, "EXCLUSIVE_PROCESS") ? 3 : 1;
        } else if (!strcmp(given, "-r") || !strcmp(given, "--gpu-reset"))
            options->reset = 1;
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
    int code = start(), is_mig = argc > 1 && !strcmp(argv[1], "mig");
    struct lab_hardware hardware;
    if (code)
        return code;
    if (is_mig)
        code = smi_mig(argc - 2, argv + 2);
    if (lab_hardware(&hardware) == 0)
        mig_make_nodes(&hardware);
    if (is_mig)
        return code;
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
    if (options.compute >= 0)
        return set_compute_mode(gpus, count, (unsigned)options.compute);
    if (options.mig >= 0)
        return smi_set_mig_mode(gpus, count, (unsigned)options.mig);
    if (options.reset)
        return smi_reset(gpus, count);
    if (options.query)
        return query(gpus, count, options.query, header, units);
    if (options.apps)
        return query_apps(gpus, count, options.apps, header, units);
    return options.list ? list(gpus, count) : options.details ? details(gpus, count) : table(gpus, count);
}
