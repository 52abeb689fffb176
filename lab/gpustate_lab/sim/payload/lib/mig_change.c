/* Simulated: what changes MIG, and what is in the way of it. See mig.h.
 *
 * Sources: MIG User Guide r620 (modes, resets); nvml.h 13.0, nvmlDeviceSetMigMode (activation status);
 * what -lgi prints in NVIDIA/go-nvml#146 (numbers of instances: 0 for one that takes the whole GPU, 1
 * and 2 for halves, 3 to 6 for quarters, from 7 on for eighths).
 */
#define _GNU_SOURCE
#include "mig.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum {
    OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, RESET_REQUIRED = 16,
    IN_USE = 19, INSUFFICIENT_RESOURCES = 23, UNKNOWN = 999
};

static int change_lock(void) {
    char full[512];
    int fd = open(lab_path(full, sizeof full, "/run/gpustate-lab/mig.lock"), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd >= 0)
        flock(fd, LOCK_EX);
    return fd;
}

/* What every change starts with; `answer` ends it. */
struct change {
    int lock;
    struct mig_geometry geometry;
    struct mig_state state, before;
};

static int begin(const struct lab_gpu *gpu, struct change *change) {
    if (mig_geometry(gpu, &change->geometry) < 0)
        return NOT_SUPPORTED;
    if (geteuid() != 0)
        return NO_PERMISSION;
    change->lock = change_lock();
    mig_read_all(gpu, &change->geometry, &change->state);
    change->before = change->state;
    return OK;
}

static int answer(const struct lab_gpu *gpu, struct change *change, int code) {
    if (code == OK)
        code = mig_write(gpu, &change->geometry, &change->before, &change->state);
    if (change->lock >= 0)
        close(change->lock);
    return code;
}

/* ---- who is in the way ---------------------------------------------------------------------- */

/* A client of a compute instance (compute -1: of any in the GPU instance). */
static int instance_held(const struct lab_gpu *gpu, unsigned instance, int compute) {
    struct lab_holder holders[LAB_MAX_HOLDERS];
    int count = lab_holders(holders, LAB_MAX_HOLDERS);
    for (int i = 0; i < count; i++)
        if (!strcmp(holders[i].what, gpu->pci_address) && holders[i].gpu_instance == (int)instance &&
            (compute < 0 || holders[i].compute_instance == compute))
            return 1;
    return 0;
}

/* Any client; a reset is in the way of nvidia-persistenced too. That it is on a real Ampere board is
 * not confirmed anywhere: the simulation takes the harder case. */
static int gpu_held(const struct lab_gpu *gpu, int for_reset) {
    struct lab_holder holders[LAB_MAX_HOLDERS];
    int count = lab_holders(holders, LAB_MAX_HOLDERS);
    for (int i = 0; i < count; i++)
        if (!strcmp(holders[i].what, gpu->pci_address) && (for_reset || strcmp(holders[i].kind, "persistence")))
            return 1;
    return 0;
}

static int resettable(const struct lab_hardware *hardware, const struct lab_gpu *gpu) {
    return !lab_fault_at(hardware, "no-reset", (int)(gpu - hardware->gpus));
}

/* ---- modes and resets ----------------------------------------------------------------------- */

static void after_reset(const struct lab_gpu *gpu, struct mig_state *state) {
    state->count = 0;
    state->current = state->pending = gpu->architecture == AMPERE ? mig_on_board(gpu) : state->current;
}

int mig_set_mode(const struct lab_hardware *hardware, const struct lab_gpu *gpu, int mode, int *activation) {
    struct change change;
    char path[96];
    int code = begin(gpu, &change);
    if (code != OK)
        return code;
    *activation = OK;
    struct mig_state *state = &change.state;
    if (gpu->architecture == AMPERE) {
        mig_make_folders(mig_board_path(gpu, path, sizeof path));
        lab_write(path, mode ? "1\n" : "0\n");
        if (state->current == mode)
            return answer(gpu, &change, OK);
        if (!resettable(hardware, gpu))
            *activation = RESET_REQUIRED;
        else if (state->count || gpu_held(gpu, 1))
            *activation = IN_USE;
        else
            after_reset(gpu, state);
        return answer(gpu, &change, OK);
    }
    if (state->current != mode && (state->count || gpu_held(gpu, 0)))
        *activation = IN_USE;
    else
        state->current = mode;
    return answer(gpu, &change, OK);
}

int mig_reset(const struct lab_hardware *hardware, const struct lab_gpu *gpu) {
    struct change change;
    if (geteuid() != 0)
        return NO_PERMISSION;
    if (!resettable(hardware, gpu))
        return NOT_SUPPORTED;
    if (gpu_held(gpu, 1))
        return IN_USE;
    if (begin(gpu, &change) != OK)
        return OK; /* a GPU without MIG has nothing to forget */
    after_reset(gpu, &change.state);
    return answer(gpu, &change, OK);
}

/* ---- GPU instances -------------------------------------------------------------------------- */

/* May one more instance of a profile lie here, beside what is there? */
static int fits(const struct mig_geometry *geometry, const struct mig_state *state, const struct mig_profile *wanted, unsigned start) {
    unsigned slices = wanted->slices, same = 1, media[4];
    memcpy(media, wanted->media, sizeof media);
    for (unsigned i = 0; i < state->count; i++) {
        const struct mig_instance *one = &state->instances[i];
        const struct mig_profile *profile = &geometry->profiles[one->profile];
        if (start < one->start + profile->size && one->start < start + wanted->size)
            return 0;
        slices += profile->slices;
        same += profile == wanted;
        for (int m = 0; m < 4; m++)
            media[m] += profile->media[m];
    }
    for (int m = 0; m < 4; m++)
        if (media[m] > geometry->media[m])
            return 0;
    return slices <= geometry->compute_slices && same <= wanted->most;
}

unsigned mig_room(const struct mig_geometry *geometry, const struct mig_state *state, unsigned profile) {
    const struct mig_profile *wanted = &geometry->profiles[profile];
    struct mig_state trial = *state;
    unsigned room = 0;
    for (unsigned i = wanted->start_count; i-- > 0 && trial.count < MIG_MAX_INSTANCES;)
        if (fits(geometry, &trial, wanted, wanted->starts[i])) {
            trial.instances[trial.count++] = (struct mig_instance){.id = 99, .profile = profile, .start = wanted->starts[i]};
            room++;
        }
    return room;
}

/* The lowest free number of those that instances of this size get. */
static unsigned free_number(const struct mig_geometry *geometry, struct mig_state *state, unsigned size) {
    unsigned number = geometry->memory_slices / size - 1;
    while (mig_find(state, number))
        number++;
    return number;
}

int mig_create(const struct lab_gpu *gpu, unsigned smi_id, unsigned start, unsigned *id) {
    struct change change;
    int code = begin(gpu, &change);
    if (code != OK)
        return code;
    struct mig_geometry *geometry = &change.geometry;
    struct mig_state *state = &change.state;
    unsigned at = 0;
    while (at < geometry->count && geometry->profiles[at].smi_id != smi_id)
        at++;
    if (at == geometry->count)
        return answer(gpu, &change, INVALID_ARGUMENT);
    if (!state->current)
        return answer(gpu, &change, NOT_SUPPORTED);
    const struct mig_profile *profile = &geometry->profiles[at];
    /* Without a wish the last legal place is taken: that is what the driver does with the first 1g. */
    for (unsigned i = profile->start_count; i-- > 0;) {
        unsigned place = profile->starts[i];
        if ((start != MIG_ANYWHERE && place != start) || !fits(geometry, state, profile, place))
            continue;
        *id = free_number(geometry, state, profile->size);
        state->instances[state->count++] = (struct mig_instance){.id = *id, .profile = at, .start = place};
        return answer(gpu, &change, OK);
    }
    for (unsigned i = 0; start != MIG_ANYWHERE && i < profile->start_count; i++)
        if (profile->starts[i] == start)
            return answer(gpu, &change, INSUFFICIENT_RESOURCES);
    return answer(gpu, &change, start == MIG_ANYWHERE ? INSUFFICIENT_RESOURCES : INVALID_ARGUMENT);
}

int mig_destroy(const struct lab_gpu *gpu, unsigned id) {
    struct change change;
    int code = begin(gpu, &change);
    if (code != OK)
        return code;
    struct mig_instance *instance = mig_find(&change.state, id);
    if (!instance)
        return answer(gpu, &change, NOT_FOUND);
    if (instance->count || instance_held(gpu, id, -1))
        return answer(gpu, &change, IN_USE);
    *instance = change.state.instances[--change.state.count];
    return answer(gpu, &change, OK);
}

/* ---- compute instances ---------------------------------------------------------------------- */

static unsigned taken_slices(const struct mig_profile *profile, const struct mig_instance *instance) {
    unsigned taken = 0;
    for (unsigned i = 0; i < instance->count; i++)
        taken |= ((1u << profile->compute[instance->compute[i].profile].slices) - 1) << instance->compute[i].start;
    return taken;
}

unsigned mig_compute_room(const struct mig_profile *profile, const struct mig_instance *instance, unsigned kind) {
    const struct mig_compute_profile *wanted = &profile->compute[kind];
    unsigned taken = taken_slices(profile, instance), room = 0;
    for (unsigned i = 0; i < wanted->start_count; i++) {
        unsigned mask = ((1u << wanted->slices) - 1) << wanted->starts[i];
        if (!(taken & mask)) {
            taken |= mask;
            room++;
        }
    }
    return room;
}

int mig_create_compute(const struct lab_gpu *gpu, unsigned instance_id, unsigned nvml_id, unsigned start, unsigned *id) {
    struct change change;
    int code = begin(gpu, &change);
    if (code != OK)
        return code;
    struct mig_instance *instance = mig_find(&change.state, instance_id);
    if (!instance)
        return answer(gpu, &change, NOT_FOUND);
    const struct mig_profile *profile = &change.geometry.profiles[instance->profile];
    unsigned kind = 0, taken = taken_slices(profile, instance);
    while (kind < profile->compute_count && profile->compute[kind].nvml_id != nvml_id)
        kind++;
    if (kind == profile->compute_count)
        return answer(gpu, &change, INVALID_ARGUMENT);
    const struct mig_compute_profile *wanted = &profile->compute[kind];
    for (unsigned i = 0; i < wanted->start_count; i++) {
        unsigned place = wanted->starts[i];
        if ((start != MIG_ANYWHERE && start != place) || taken & ((1u << wanted->slices) - 1) << place)
            continue;
        *id = 0;
        while (mig_find_compute(instance, *id))
            ++*id;
        instance->compute[instance->count++] = (struct mig_compute){*id, kind, place};
        return answer(gpu, &change, OK);
    }
    return answer(gpu, &change, INSUFFICIENT_RESOURCES);
}

int mig_destroy_compute(const struct lab_gpu *gpu, unsigned instance_id, unsigned id) {
    struct change change;
    int code = begin(gpu, &change);
    if (code != OK)
        return code;
    struct mig_instance *instance = mig_find(&change.state, instance_id);
    struct mig_compute *compute = mig_find_compute(instance, id);
    if (!compute)
        return answer(gpu, &change, NOT_FOUND);
    if (instance_held(gpu, instance_id, (int)id))
        return answer(gpu, &change, IN_USE);
    *compute = instance->compute[--instance->count];
    return answer(gpu, &change, OK);
}
