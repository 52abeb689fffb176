/* Simulated. See mig.h.
 *
 * Sources: MIG User Guide r620 (what a reboot keeps); NVIDIA/nvidia-container-toolkit, nvcaps (the
 * files of capabilities; their minor numbers are made up in the driver's order).
 */
#define _GNU_SOURCE
#include "mig.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define UNKNOWN 999
#define CAPS_MAJOR 236 /* as the node's modules have it */
#define MINORS_OF_GPU 135 /* 15 GPU instances, each with itself and 8 compute instances */

/* ---- what a GPU can be divided into --------------------------------------------------------- */

static unsigned numbers(const char *array, unsigned *into, unsigned room) {
    unsigned count = 0;
    for (const char *at = array ? lab_element(array, NULL) : NULL; at && count < room; at = lab_element(array, at))
        into[count++] = (unsigned)lab_number(at, 10);
    return count;
}

static void read_profile(const char *object, struct mig_profile *into) {
    lab_text_of(lab_member(object, "name"), into->name, sizeof into->name);
    into->nvml_id = (unsigned)lab_number_member(object, "nvml_id", 10);
    into->smi_id = (unsigned)lab_number_member(object, "smi_id", 10);
    into->slices = (unsigned)lab_number_member(object, "slices", 10);
    into->size = (unsigned)lab_number_member(object, "size", 10);
    into->most = (unsigned)lab_number_member(object, "most", 10);
    into->sm_count = (unsigned)lab_number_member(object, "sm_count", 10);
    into->memory_mib = (unsigned)lab_number_member(object, "memory_mib", 10);
    numbers(lab_member(object, "media"), into->media, 4);
    into->start_count = numbers(lab_member(object, "starts"), into->starts, MIG_MAX_STARTS);
    const char *compute = lab_member(object, "compute");
    for (const char *at = compute ? lab_element(compute, NULL) : NULL; at; at = lab_element(compute, at)) {
        if (into->compute_count == MIG_MAX_COMPUTE)
            return;
        struct mig_compute_profile *kind = &into->compute[into->compute_count++];
        kind->slices = (unsigned)lab_number_member(at, "slices", 10);
        kind->nvml_id = (unsigned)lab_number_member(at, "nvml_id", 10);
        kind->start_count = numbers(lab_member(at, "starts"), kind->starts, MIG_MAX_STARTS);
    }
}

int mig_geometry(const struct lab_gpu *gpu, struct mig_geometry *into) {
    static char text[65536];
    char key[8];
    if (!gpu->max_mig_devices || lab_read("/etc/gpustate-lab/mig.json", text, sizeof text) < 0)
        return -1;
    snprintf(key, sizeof key, "%04x", gpu->device_id & 0xffff);
    const char *object = lab_member(text, key);
    if (!object)
        return -1;
    memset(into, 0, sizeof *into);
    into->memory_slices = (unsigned)lab_number_member(object, "memory_slices", 10);
    into->compute_slices = (unsigned)lab_number_member(object, "compute_slices", 10);
    numbers(lab_member(object, "media"), into->media, 4);
    const char *profiles = lab_member(object, "profiles");
    for (const char *at = lab_element(profiles, NULL); at && into->count < MIG_MAX_PROFILES; at = lab_element(profiles, at))
        read_profile(at, &into->profiles[into->count++]);
    return 0;
}

/* ---- what it is divided into ---------------------------------------------------------------- */

static const char *state_path(const struct lab_gpu *gpu, char *into, size_t size) {
    snprintf(into, size, "/run/gpustate-lab/state/mig-%s", gpu->pci_address);
    return into;
}

const char *mig_board_path(const struct lab_gpu *gpu, char *into, size_t size) {
    snprintf(into, size, "/var/lib/gpustate-lab/inforom/mig-%s", gpu->pci_address);
    return into;
}

int mig_on_board(const struct lab_gpu *gpu) {
    char path[96], text[16];
    if (gpu->architecture != AMPERE)
        return 0;
    return lab_read(mig_board_path(gpu, path, sizeof path), text, sizeof text) > 0 && text[0] == '1';
}

static void read_line(const char *line, const struct mig_geometry *geometry, struct mig_state *into) {
    unsigned field[4] = {0, 0, 0, 0}, count = 0;
    for (const char *at = strchr(line, ' '); at && count < 4; at = strchr(at + 1, ' '))
        field[count++] = (unsigned)lab_number(at + 1, 10);
    if (!strncmp(line, "current ", 8))
        into->current = (int)field[0];
    else if (!strncmp(line, "gi ", 3) && into->count < MIG_MAX_INSTANCES) {
        for (unsigned i = 0; i < geometry->count; i++)
            if (geometry->profiles[i].smi_id == field[1])
                into->instances[into->count++] = (struct mig_instance){.id = field[0], .profile = i, .start = field[2]};
    } else if (!strncmp(line, "ci ", 3)) {
        struct mig_instance *instance = mig_find(into, field[0]);
        if (!instance || instance->count == MIG_MAX_COMPUTE)
            return;
        const struct mig_profile *profile = &geometry->profiles[instance->profile];
        for (unsigned i = 0; i < profile->compute_count; i++)
            if (profile->compute[i].nvml_id == field[2])
                instance->compute[instance->count++] = (struct mig_compute){field[1], i, field[3]};
    }
}

void mig_read_all(const struct lab_gpu *gpu, const struct mig_geometry *geometry, struct mig_state *into) {
    char path[96], text[4096];
    memset(into, 0, sizeof *into);
    into->current = mig_on_board(gpu);
    if (lab_read(state_path(gpu, path, sizeof path), text, sizeof text) > 0) {
        char *rest = text, *line;
        while ((line = strsep(&rest, "\n")))
            read_line(line, geometry, into);
    }
    into->pending = gpu->architecture == AMPERE ? mig_on_board(gpu) : into->current;
}

/* Opening says whether the device cgroup allows it; without a driver behind the node it fails later. */
static int may_open(unsigned minor) {
    char path[64], full[512];
    snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%u", minor);
    int node = open(lab_path(full, sizeof full, path), O_RDONLY | O_CLOEXEC);
    if (node >= 0)
        close(node);
    return node >= 0 || errno == ENXIO || errno == ENODEV;
}

/* In a container there are only the devices whose capabilities it was given. */
static void keep_given(const struct lab_gpu *gpu, struct mig_state *state) {
    unsigned count = 0;
    for (unsigned i = 0; i < state->count; i++) {
        struct mig_instance instance = state->instances[i];
        unsigned given = 0;
        if (!may_open(mig_capability(gpu, instance.id, -1)))
            continue;
        for (unsigned c = 0; c < instance.count; c++)
            if (may_open(mig_capability(gpu, instance.id, (int)instance.compute[c].id)))
                instance.compute[given++] = instance.compute[c];
        instance.count = given;
        state->instances[count++] = instance;
    }
    state->count = count;
}

void mig_read(const struct lab_gpu *gpu, const struct mig_geometry *geometry, struct mig_state *into) {
    mig_read_all(gpu, geometry, into);
    if (lab_in_container())
        keep_given(gpu, into);
}

static int by_start(const void *a, const void *b) {
    const struct mig_instance *one = a, *two = b;
    return (int)one->start - (int)two->start;
}

void mig_make_folders(const char *path) {
    char full[512];
    lab_path(full, sizeof full, path);
    for (char *at = full + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        mkdir(full, 0755);
        *at = '/';
    }
}

/* Files of the capabilities as /proc/driver/nvidia shows them; they come and go with the instances. */
static void show_capability(const struct lab_gpu *gpu, int instance, int compute, int there) {
    char path[160], text[96], full[512];
    int used = snprintf(path, sizeof path, "/proc/driver/nvidia/capabilities/gpu%u/mig/", gpu->minor);
    if (instance >= 0)
        used += snprintf(path + used, sizeof path - (size_t)used, "gi%d/", instance);
    if (compute >= 0)
        used += snprintf(path + used, sizeof path - (size_t)used, "ci%d/", compute);
    if (instance < 0) {
        if (there)
            mig_make_folders(path);
        else if (rmdir(lab_path(full, sizeof full, path)) == 0) {
            *strrchr(full, '/') = 0; /* ".../gpuN/mig" */
            *strrchr(full, '/') = 0;
            rmdir(full);
        }
        return;
    }
    snprintf(path + used, sizeof path - (size_t)used, "access");
    if (there) {
        mig_make_folders(path);
        snprintf(text, sizeof text, "DeviceFileMinor: %u\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
                 mig_capability(gpu, (unsigned)instance, compute));
        lab_write(path, text);
        return;
    }
    unlink(lab_path(full, sizeof full, path));
    *strrchr(full, '/') = 0;
    rmdir(full);
}

static void show_all(const struct lab_gpu *gpu, const struct mig_state *state, int there) {
    if (there && state->current)
        show_capability(gpu, -1, -1, 1);
    for (unsigned i = 0; i < state->count; i++) {
        const struct mig_instance *instance = &state->instances[i];
        if (there)
            show_capability(gpu, (int)instance->id, -1, 1);
        for (unsigned c = 0; c < instance->count; c++)
            show_capability(gpu, (int)instance->id, (int)instance->compute[c].id, there);
        if (!there)
            show_capability(gpu, (int)instance->id, -1, 0);
    }
    if (!there)
        show_capability(gpu, -1, -1, 0);
}

/* Whole or not at all: a process that is killed here must not leave half a layout. */
int mig_write(const struct lab_gpu *gpu, const struct mig_geometry *geometry, const struct mig_state *before,
                       struct mig_state *state) {
    char path[96], fresh[128], text[4096], from[512], to[512];
    qsort(state->instances, state->count, sizeof *state->instances, by_start);
    size_t used = (size_t)snprintf(text, sizeof text, "current %d\n", state->current);
    for (unsigned i = 0; i < state->count; i++) {
        const struct mig_instance *one = &state->instances[i];
        const struct mig_profile *profile = &geometry->profiles[one->profile];
        used += (size_t)snprintf(text + used, sizeof text - used, "gi %u %u %u\n", one->id, profile->smi_id, one->start);
        for (unsigned c = 0; c < one->count; c++)
            used += (size_t)snprintf(text + used, sizeof text - used, "ci %u %u %u %u\n", one->id, one->compute[c].id,
                                     profile->compute[one->compute[c].profile].nvml_id, one->compute[c].start);
    }
    snprintf(fresh, sizeof fresh, "%s.new", state_path(gpu, path, sizeof path));
    mig_make_folders(path);
    if (lab_write(fresh, text) < 0 || rename(lab_path(from, sizeof from, fresh), lab_path(to, sizeof to, path)) < 0)
        return UNKNOWN;
    show_all(gpu, before, 0);
    show_all(gpu, state, 1);
    return 0;
}

struct mig_instance *mig_find(struct mig_state *state, unsigned id) {
    for (unsigned i = 0; i < state->count; i++)
        if (state->instances[i].id == id)
            return &state->instances[i];
    return NULL;
}

struct mig_compute *mig_find_compute(struct mig_instance *instance, unsigned id) {
    for (unsigned i = 0; instance && i < instance->count; i++)
        if (instance->compute[i].id == id)
            return &instance->compute[i];
    return NULL;
}

/* ---- names and nodes ------------------------------------------------------------------------ */

void mig_device_name(const struct mig_profile *profile, const struct mig_compute *compute, char *into, size_t size) {
    unsigned slices = profile->compute[compute->profile].slices;
    if (slices == profile->slices)
        snprintf(into, size, "%s", profile->name);
    else
        snprintf(into, size, "%uc.%s", slices, profile->name);
}

void mig_uuid(const struct lab_gpu *gpu, const struct mig_instance *instance, const struct mig_compute *compute, char *into, size_t size) {
    char seed[160];
    uint64_t half[2] = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
    snprintf(seed, sizeof seed, "%s/%u/%u/%u/%u", gpu->uuid, instance->id, instance->start, instance->profile, compute->id);
    for (int h = 0; h < 2; h++)
        for (const char *at = seed; *at; at++)
            half[h] = (half[h] ^ (unsigned char)*at) * 0x100000001b3u;
    snprintf(into, size, "MIG-%08x-%04x-5%03x-%04x-%012llx", (unsigned)(half[0] >> 32), (unsigned)(half[0] >> 16) & 0xffff,
             (unsigned)half[0] & 0xfff, (unsigned)(half[1] >> 48 & 0x3fff) | 0x8000, (unsigned long long)half[1] & 0xffffffffffffu);
}

unsigned mig_capability(const struct lab_gpu *gpu, unsigned instance, int compute) {
    return 3 + gpu->minor * MINORS_OF_GPU + instance * 9 + (unsigned)(compute + 1);
}

static void make_node(unsigned minor) {
    char path[64], full[512];
    snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%u", minor);
    if (mknod(lab_path(full, sizeof full, path), S_IFCHR | 0444, makedev(CAPS_MAJOR, minor)) == 0)
        chmod(full, 0444);
    else if (errno == EPERM && secure_getenv("GPUSTATE_LAB_ROOT"))
        lab_write(path, ""); /* a test without the right to make nodes */
}

void mig_make_nodes(const struct lab_hardware *hardware) {
    struct mig_geometry geometry;
    struct mig_state state;
    if (geteuid() != 0 || lab_in_container())
        return;
    for (int g = 0; g < hardware->gpu_count; g++) {
        const struct lab_gpu *gpu = &hardware->gpus[g];
        if (mig_geometry(gpu, &geometry) < 0)
            continue;
        mig_read(gpu, &geometry, &state);
        for (unsigned i = 0; i < state.count; i++) {
            make_node(mig_capability(gpu, state.instances[i].id, -1));
            for (unsigned c = 0; c < state.instances[i].count; c++)
                make_node(mig_capability(gpu, state.instances[i].id, (int)state.instances[i].compute[c].id));
        }
    }
}
