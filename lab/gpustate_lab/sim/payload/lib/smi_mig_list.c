/* Simulated: what nvidia-smi lists of MIG. Sources: see smi_mig.c. */
#define _GNU_SOURCE
#include "smi_mig.h"
#include "smi_mig_inner.h"

#include "lab.h"

#include <stdio.h>
#include <string.h>

#define RULE "+-------------------------------------------------------+\n"
#define PROFILE_RULE "+-------------------------------------------------------------------------------+\n"
#define COMPUTE_RULE "+--------------------------------------------------------------------+\n"

/* ---- walking what is there ------------------------------------------------------------------ */

unsigned index_of(void *gpu) {
    unsigned index = 0;
    CALL("nvmlDeviceGetIndex", gpu, &index);
    return index;
}

int enabled(void *gpu) {
    unsigned current = 0, pending = 0;
    return CALL("nvmlDeviceGetMigMode", gpu, &current, &pending) == 0 && current;
}

int profile_at(void *gpu, unsigned nvml_id, gi_profile *into) {
    into->version = (unsigned)(sizeof *into | 2 << 24);
    return CALL("nvmlDeviceGetGpuInstanceProfileInfoV", gpu, nvml_id, into) == 0;
}

int compute_profile_at(void *instance, unsigned nvml_id, ci_profile *into) {
    into->version = (unsigned)(sizeof *into | 2 << 24);
    return CALL("nvmlGpuInstanceGetComputeInstanceProfileInfoV", instance, nvml_id, 0u, into) == 0;
}

/* GPU instances of a GPU, by profile as NVML numbers them, then by number. */
unsigned instances_of(void *gpu, struct whole *into) {
    void *found[MIG_MAX_INSTANCES];
    gi_profile profile;
    unsigned total = 0, count;
    for (unsigned p = 0; p < GI_PROFILES; p++) {
        if (!profile_at(gpu, p, &profile) || CALL("nvmlDeviceGetGpuInstances", gpu, profile.id, found, &count))
            continue;
        for (unsigned i = 0; i < count; i++) {
            into[total] = (struct whole){.handle = found[i], .profile = profile};
            CALL("nvmlGpuInstanceGetInfo", found[i], &into[total++].info);
        }
    }
    return total;
}

unsigned computes_of(void *instance, struct part *into) {
    void *found[MIG_MAX_COMPUTE];
    ci_profile profile;
    unsigned total = 0, count;
    for (unsigned p = 0; p < CI_PROFILES; p++) {
        if (!compute_profile_at(instance, p, &profile) || CALL("nvmlGpuInstanceGetComputeInstances", instance, p, found, &count))
            continue;
        for (unsigned i = 0; i < count; i++) {
            into[total] = (struct part){.handle = found[i], .profile = profile};
            CALL("nvmlComputeInstanceGetInfo_v2", found[i], &into[total++].info);
        }
    }
    return total;
}

int chosen(const char *list, unsigned id) {
    char text[256], *rest = text, *item;
    if (!list)
        return 1;
    snprintf(text, sizeof text, "%s", list);
    while ((item = strsep(&rest, ",")))
        if (lab_number(item, 10) == id)
            return 1;
    return 0;
}

/* ---- lists ---------------------------------------------------------------------------------- */

int smi_list_profiles(void **gpus, unsigned count) {
    gi_profile p;
    unsigned shown = 0, room;
    for (unsigned g = 0; g < count; g++)
        for (unsigned n = GI_PROFILES; n-- > 0;) {
            if (!profile_at(gpus[g], n, &p))
                continue;
            if (!shown++)
                printf(PROFILE_RULE "| GPU instance profiles:                                                        |\n"
                       "| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |\n"
                       "|                                Free/Total   GiB              CE    JPEG  OFA  |\n"
                       "|===============================================================================|\n");
            CALL("nvmlDeviceGetGpuInstanceRemainingCapacity", gpus[g], p.id, &room);
            printf("| %3u  %-17s %4u     %u/%u      %8.2f      %-3s   %4u   %4u  %4u   |\n", index_of(gpus[g]), p.name, p.id, room,
                   p.instances, (double)p.memory_mib / 1024, p.p2p ? "Yes" : "No", p.sm, p.decoders, p.encoders);
            printf("| %58u   %4u  %4u      |\n" PROFILE_RULE, p.copy, p.jpeg, p.ofa);
        }
    if (!shown)
        printf("No MIG-supported devices found.\n");
    return shown ? 0 : NOTHING_FOUND;
}

int smi_list_placements(void **gpus, unsigned count) {
    gi_profile p;
    placement places[16];
    unsigned shown = 0, total;
    for (unsigned g = 0; g < count; g++)
        for (unsigned n = 0; n < GI_PROFILES; n++) {
            if (!profile_at(gpus[g], n, &p) || CALL("nvmlDeviceGetGpuInstancePossiblePlacements_v2", gpus[g], p.id, places, &total))
                continue;
            printf("GPU %2u Profile ID %2u Placement%s {", index_of(gpus[g]), p.id, total > 1 ? "s:" : "  :");
            for (unsigned i = 0; i < total; i++)
                printf("%s%u", i ? "," : "", places[i].start);
            printf("}:%u\n", places[0].size);
            shown++;
        }
    if (!shown)
        printf("No MIG-supported devices found.\n");
    return shown ? 0 : NOTHING_FOUND;
}

int smi_list_instances(void **gpus, unsigned count) {
    struct whole found[MIG_MAX_INSTANCES];
    unsigned shown = 0;
    for (unsigned g = 0; g < count; g++) {
        unsigned total = instances_of(gpus[g], found);
        for (unsigned i = 0; i < total; i++) {
            if (!shown++)
                printf(RULE "| GPU instances:                                        |\n"
                       "| GPU   Name             Profile  Instance   Placement  |\n"
                       "|                          ID       ID       Start:Size |\n"
                       "|=======================================================|\n");
            printf("| %3u  %-17s %4u     %4u     %6u:%-2u    |\n" RULE, index_of(gpus[g]), found[i].profile.name,
                   found[i].profile.id, found[i].info.id, found[i].info.place.start, found[i].info.place.size);
        }
    }
    if (!shown)
        printf("No GPU instances found: Not Found\n");
    return shown ? 0 : NOTHING_FOUND;
}

int smi_list_computes(void **gpus, unsigned count, const char *within) {
    struct whole whole[MIG_MAX_INSTANCES];
    struct part parts[MIG_MAX_COMPUTE];
    unsigned shown = 0;
    for (unsigned g = 0; g < count; g++) {
        unsigned total = instances_of(gpus[g], whole);
        for (unsigned i = 0; i < total; i++) {
            unsigned inside = chosen(within, whole[i].info.id) ? computes_of(whole[i].handle, parts) : 0;
            for (unsigned c = 0; c < inside; c++) {
                if (!shown++)
                    printf(COMPUTE_RULE "| Compute instances:                                                 |\n"
                           "| GPU     GPU       Name             Profile   Instance   Placement  |\n"
                           "|       Instance                       ID        ID       Start:Size |\n"
                           "|         ID                                                         |\n"
                           "|====================================================================|\n");
                printf("| %3u   %4u       %-18s %3u   %7u   %8u:%-2u    |\n" COMPUTE_RULE, index_of(gpus[g]), whole[i].info.id,
                       parts[c].profile.name, parts[c].profile.id, parts[c].info.id, parts[c].info.place.start,
                       parts[c].info.place.size);
            }
        }
    }
    if (!shown)
        printf("No compute instances found: Not Found\n");
    return shown ? 0 : NOTHING_FOUND;
}

void smi_list_mig_devices(void *gpu) {
    void *device;
    char name[160], uuid[96];
    for (unsigned i = 0; CALL("nvmlDeviceGetMigDeviceHandleByIndex", gpu, i, &device) == 0; i++) {
        CALL("nvmlDeviceGetName", device, name, (unsigned)sizeof name);
        CALL("nvmlDeviceGetUUID", device, uuid, (unsigned)sizeof uuid);
        const char *profile = strstr(name, " MIG ");
        printf("  MIG %-12s Device %2u: (UUID: %s)\n", profile ? profile + 5 : name, i, uuid);
    }
}
