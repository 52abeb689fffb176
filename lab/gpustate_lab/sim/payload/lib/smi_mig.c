/* Simulated. See smi_mig.h.
 *
 * Sources: nvidia-smi.1 of 580 (options, exit codes); MIG User Guide r620 (tables, "Insufficient
 * Resources"); NVIDIA/go-nvml#146, NVIDIA/DCGM#95, NVIDIA/gpu-operator#1845, NVIDIA/mig-parted#181 and
 * ComputeCanada/puppet-magic_castle#387 (messages, as people pasted them). Which number it exits with
 * when it cannot create or destroy is not written anywhere: NVML's is taken.
 */
#define _GNU_SOURCE
#include "smi_mig.h"

#include "lab.h"
#include "smi_mig_inner.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define IN_USE 19
#define UNSUPPORTED 3

/* ---- creating ------------------------------------------------------------------------------- */

/* "19", "3g.40gb", "MIG 3g.40gb". */
static int is_named(const char *item, const char *name, unsigned id) {
    if (strspn(item, "0123456789") == strlen(item))
        return lab_number(item, 10) == id;
    return !strcasecmp(item, name) || !strcasecmp(item, name + strlen("MIG "));
}

/* Of two with all slices the driver takes the later one, which has more multiprocessors. */
static int default_kind(void *instance, unsigned slices) {
    ci_profile p;
    for (unsigned n = CI_PROFILES; n-- > 0;)
        if (compute_profile_at(instance, n, &p) && p.slices == slices)
            return (int)n;
    return -1;
}

static int create_compute(void *gpu, void *instance, unsigned instance_id, unsigned nvml_id) {
    ci_profile p;
    ci_info info;
    void *made;
    int code = CALL("nvmlGpuInstanceCreateComputeInstance", instance, nvml_id, &made);
    if (code) {
        printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %u: %s\n", index_of(gpu),
               instance_id, nvml_id, error_text(code));
        return code;
    }
    compute_profile_at(instance, nvml_id, &p);
    CALL("nvmlComputeInstanceGetInfo_v2", made, &info);
    printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n", info.id,
           index_of(gpu), instance_id, p.name, nvml_id);
    return 0;
}

/* One "profile[:start]" of -cgi. */
static int create_instance(void *gpu, char *item, int with_compute) {
    gi_profile p;
    gi_info info;
    void *made;
    char *colon = strchr(item, ':');
    int known = 0, code = 2;
    if (colon)
        *colon++ = 0;
    for (unsigned n = 0; n < GI_PROFILES && !known; n++)
        known = profile_at(gpu, n, &p) && is_named(item, p.name, p.id);
    if (known && colon) {
        placement place = {(unsigned)lab_number(colon, 10), 0};
        code = CALL("nvmlDeviceCreateGpuInstanceWithPlacement", gpu, p.id, &place, &made);
    } else if (known)
        code = CALL("nvmlDeviceCreateGpuInstance", gpu, p.id, &made);
    if (code) {
        printf("Unable to create a GPU instance on GPU %2u using profile %s: %s\n", index_of(gpu), item, error_text(code));
        return code;
    }
    CALL("nvmlGpuInstanceGetInfo", made, &info);
    printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", info.id, index_of(gpu), p.name, p.id);
    return with_compute ? create_compute(gpu, made, info.id, (unsigned)default_kind(made, p.slices)) : 0;
}

static int create(void **gpus, unsigned count, const char *wanted, int with_compute) {
    char list[512], *rest, *item;
    unsigned tried = 0;
    for (unsigned g = 0; g < count; g++) {
        if (!enabled(gpus[g]))
            continue;
        tried++;
        snprintf(list, sizeof list, "%s", wanted);
        for (rest = list; (item = strsep(&rest, ","));) {
            int code = create_instance(gpus[g], item, with_compute);
            if (code) {
                printf("Failed to create GPU instances: %s\n", error_text(code));
                return code;
            }
        }
    }
    if (!tried)
        printf("No MIG-enabled devices found.\n");
    return tried ? 0 : NOTHING_FOUND;
}

static int create_computes_in(void *gpu, const struct whole *whole, const char *wanted) {
    char list[512], *rest = list, *item;
    ci_profile p;
    if (!*wanted)
        return create_compute(gpu, whole->handle, whole->info.id, (unsigned)default_kind(whole->handle, whole->profile.slices));
    snprintf(list, sizeof list, "%s", wanted);
    while ((item = strsep(&rest, ","))) {
        int kind = -1, code = 2;
        for (unsigned n = 0; n < CI_PROFILES && kind < 0; n++)
            if (compute_profile_at(whole->handle, n, &p) && is_named(item, p.name, n))
                kind = (int)n;
        if (kind >= 0)
            code = create_compute(gpu, whole->handle, whole->info.id, (unsigned)kind);
        else
            printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %s: %s\n", index_of(gpu),
                   whole->info.id, item, error_text(code));
        if (code)
            return code;
    }
    return 0;
}

static int create_computes(void **gpus, unsigned count, const char *wanted, const char *within) {
    struct whole found[MIG_MAX_INSTANCES];
    unsigned tried = 0;
    for (unsigned g = 0; g < count; g++) {
        unsigned total = instances_of(gpus[g], found);
        for (unsigned i = 0; i < total; i++) {
            if (!chosen(within, found[i].info.id))
                continue;
            tried++;
            int code = create_computes_in(gpus[g], &found[i], wanted);
            if (code) {
                printf("Failed to create compute instances: %s\n", error_text(code));
                return code;
            }
        }
    }
    if (!tried)
        printf("No GPU instances found: Not Found\n");
    return tried ? 0 : NOTHING_FOUND;
}

/* ---- destroying ----------------------------------------------------------------------------- */

static int destroy_computes(void **gpus, unsigned count, const char *within, const char *which) {
    struct whole whole[MIG_MAX_INSTANCES];
    struct part parts[MIG_MAX_COMPUTE];
    unsigned tried = 0;
    int bad = 0;
    for (unsigned g = 0; g < count; g++) {
        unsigned total = instances_of(gpus[g], whole);
        for (unsigned i = 0; i < total; i++) {
            unsigned inside = chosen(within, whole[i].info.id) ? computes_of(whole[i].handle, parts) : 0;
            for (unsigned c = 0; c < inside; c++) {
                if (!chosen(which, parts[c].info.id))
                    continue;
                tried++;
                int code = CALL("nvmlComputeInstanceDestroy", parts[c].handle);
                if (code)
                    printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\n", parts[c].info.id,
                           index_of(gpus[g]), whole[i].info.id, error_text(bad = code));
                else
                    printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", parts[c].info.id,
                           index_of(gpus[g]), whole[i].info.id);
            }
        }
    }
    if (bad)
        printf("Failed to destroy compute instances: %s\n", error_text(bad));
    else if (!tried)
        printf("No compute instances found: Not Found\n");
    return bad ? bad : tried ? 0 : NOTHING_FOUND;
}

static int destroy(void **gpus, unsigned count, const char *which) {
    struct whole found[MIG_MAX_INSTANCES];
    unsigned tried = 0;
    int bad = 0;
    for (unsigned g = 0; g < count; g++) {
        unsigned total = instances_of(gpus[g], found);
        for (unsigned i = 0; i < total; i++) {
            if (!chosen(which, found[i].info.id))
                continue;
            tried++;
            int code = CALL("nvmlGpuInstanceDestroy", found[i].handle);
            if (code)
                printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n", found[i].info.id, index_of(gpus[g]), error_text(bad = code));
            else
                printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", found[i].info.id, index_of(gpus[g]));
        }
    }
    if (bad)
        printf("Failed to destroy GPU instances: %s\n", error_text(bad));
    else if (!tried)
        printf("No GPU instances found: Not Found\n");
    return bad ? bad : tried ? 0 : NOTHING_FOUND;
}

/* ---- the verb ------------------------------------------------------------------------------- */

enum { VERB_NONE, LGIP, LGIPP, LGI, LCI, CGI, CCI, DGI, DCI };
static const struct { const char *brief, *whole; int verb; } verbs[] = {
    {"-lgip", "--list-gpu-instance-profiles", LGIP}, {"-lgipp", "--list-gpu-instance-possible-placements", LGIPP},
    {"-lgi", "--list-gpu-instances", LGI}, {"-lci", "--list-compute-instances", LCI},
    {"-cgi", "--create-gpu-instance", CGI}, {"-cci", "--create-compute-instance", CCI},
    {"-dgi", "--destroy-gpu-instance", DGI}, {"-dci", "--destroy-compute-instance", DCI},
};

static int verb_of(const char *given) {
    for (unsigned i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(given, verbs[i].brief) || !strcmp(given, verbs[i].whole))
            return verbs[i].verb;
    return VERB_NONE;
}

int smi_mig(int argc, char **argv) {
    const char *which = NULL, *within = NULL, *compute = NULL, *wanted = "";
    int verb = VERB_NONE, with_compute = 0;
    void *gpus[LAB_MAX_GPUS];
    unsigned count = 0;
    for (int i = 0; i < argc; i++) {
        int value = i + 1 < argc && argv[i + 1][0] != '-', known = verb_of(argv[i]);
        if (known && verb == VERB_NONE) {
            verb = known;
            if ((known == CGI || known == CCI) && value)
                wanted = argv[++i];
        } else if ((!strcmp(argv[i], "-i") || !strcmp(argv[i], "--id")) && value)
            which = argv[++i];
        else if ((!strcmp(argv[i], "-gi") || !strcmp(argv[i], "--gpu-instance-id")) && value)
            within = argv[++i];
        else if ((!strcmp(argv[i], "-ci") || !strcmp(argv[i], "--compute-instance-id")) && value)
            compute = argv[++i];
        else if (!strcmp(argv[i], "-C") || !strcmp(argv[i], "--default-compute-instance"))
            with_compute = 1;
        else
            verb = -1;
    }
    if (verb <= VERB_NONE || (verb == CGI && !*wanted)) {
        printf("Invalid combination of input arguments. Please run 'nvidia-smi mig -h' for help.\n\n");
        return BAD_ARGUMENT;
    }
    int code = choose(which, gpus, &count);
    if (code)
        return code;
    switch (verb) {
    case LGIP: return smi_list_profiles(gpus, count);
    case LGIPP: return smi_list_placements(gpus, count);
    case LGI: return smi_list_instances(gpus, count);
    case LCI: return smi_list_computes(gpus, count, within);
    case CGI: return create(gpus, count, wanted, with_compute);
    case CCI: return create_computes(gpus, count, wanted, within);
    case DGI: return destroy(gpus, count, within);
    default: return destroy_computes(gpus, count, within, compute);
    }
}

/* ---- mode and reset ------------------------------------------------------------------------- */

int smi_set_mig_mode(void **gpus, unsigned count, unsigned mode) {
    char address[64];
    const char *word = mode ? "enable" : "disable";
    for (unsigned i = 0; i < count; i++) {
        int activation = 0, code = CALL("nvmlDeviceSetMigMode", gpus[i], mode, &activation);
        show(gpus[i], "pci.bus_id", address, sizeof address);
        if (code) {
            printf("Unable to %s MIG Mode for GPU %s: %s\nTerminating early due to previous errors.\n", word, address, error_text(code));
            return code;
        }
        if (activation == IN_USE)
            printf("Warning: MIG mode is in pending %s state for GPU %s:In use by another client\n%s is currently being used by one or "
                   "more other processes (e.g. CUDA application or a monitoring application such as another instance of nvidia-smi). "
                   "Please first kill all processes using the device and retry the command or reboot the system to make MIG mode "
                   "effective.\n", word, address, address);
        else if (activation)
            printf("Warning: MIG mode is in pending %s state for GPU %s:%s\nReboot the system or try nvidia-smi --gpu-reset to make MIG "
                   "mode effective on GPU %s\n", word, address, error_text(activation), address);
        else
            printf("%sd MIG Mode for GPU %s\n", mode ? "Enable" : "Disable", address);
    }
    printf("All done.\n");
    return 0;
}

int smi_reset(void **gpus, unsigned count) {
    char address[64];
    unsigned busy = 0;
    for (unsigned i = 0; i < count; i++) {
        show(gpus[i], "pci.bus_id", address, sizeof address);
        int code = CALL("lab_reset_gpu", gpus[i]);
        if (code == UNSUPPORTED) {
            printf("Resetting GPU %s is not supported.\n", address);
            return UNSUPPORTED;
        }
        if (code)
            printf("%s  GPU %s: %s\n", busy++ ? "" : "\nThe following GPUs could not be reset:\n", address, error_text(code));
        else
            printf("GPU %s was successfully reset.\n", address);
    }
    if (busy)
        printf("\n%u device%s currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, graphics "
               "application such as an X server, or a monitoring application such as another instance of nvidia-smi). Please first "
               "kill all processes using this device and all compute applications running in the system.\n", busy, busy > 1 ? "s are" : " is");
    else
        printf("All done.\n");
    return busy ? 255 : 0;
}
