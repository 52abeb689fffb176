/* Simulated. MIG as the driver keeps it: the mode, the instances of every GPU, what they may be.
 *
 * What a GPU can be divided into stands in /etc/gpustate-lab/mig.json; what it is divided into in
 * /run/gpustate-lab/state/mig-<PCI address>, which a reboot and an unloaded module forget. The mode of
 * an Ampere board is kept on the board: /var/lib/gpustate-lab/inforom.
 */
#ifndef GPUSTATE_LAB_MIG_H
#define GPUSTATE_LAB_MIG_H

#include "lab.h"

#define MIG_MAX_PROFILES 20
#define MIG_MAX_INSTANCES 16
#define MIG_MAX_COMPUTE 8
#define MIG_MAX_STARTS 16
#define MIG_ANYWHERE (~0u)
#define AMPERE 7 /* NVML_DEVICE_ARCH_AMPERE */

enum { MIG_DECODERS, MIG_ENCODERS, MIG_JPEG, MIG_OFA };

struct mig_compute_profile {
    unsigned slices, nvml_id, start_count;
    unsigned starts[MIG_MAX_STARTS];
};

struct mig_profile {
    char name[32]; /* 1g.10gb+me */
    unsigned nvml_id, smi_id, slices, size, most, sm_count, memory_mib, media[4];
    unsigned start_count, compute_count;
    unsigned starts[MIG_MAX_STARTS];
    struct mig_compute_profile compute[MIG_MAX_COMPUTE];
};

struct mig_geometry {
    unsigned memory_slices, compute_slices, media[4], count;
    struct mig_profile profiles[MIG_MAX_PROFILES];
};

struct mig_compute {
    unsigned id, profile, start; /* profile: its place in mig_profile.compute */
};

struct mig_instance {
    unsigned id, profile, start, count; /* profile: its place in mig_geometry.profiles */
    struct mig_compute compute[MIG_MAX_COMPUTE];
};

struct mig_state {
    int current, pending; /* mode now, and after the next reset */
    unsigned count;
    struct mig_instance instances[MIG_MAX_INSTANCES]; /* by place */
};

/* 0, or -1 for a GPU that cannot be divided. */
int mig_geometry(const struct lab_gpu *gpu, struct mig_geometry *into);
/* What this process may use; the other: all there is. */
void mig_read(const struct lab_gpu *gpu, const struct mig_geometry *geometry, struct mig_state *into);
void mig_read_all(const struct lab_gpu *gpu, const struct mig_geometry *geometry, struct mig_state *into);
struct mig_instance *mig_find(struct mig_state *state, unsigned id);
struct mig_compute *mig_find_compute(struct mig_instance *instance, unsigned id);
/* How many more of a profile there is room for, in legal places. */
unsigned mig_room(const struct mig_geometry *geometry, const struct mig_state *state, unsigned profile);
unsigned mig_compute_room(const struct mig_profile *profile, const struct mig_instance *instance, unsigned kind);
void mig_uuid(const struct lab_gpu *gpu, const struct mig_instance *instance, const struct mig_compute *compute, char *into, size_t size);
/* "1c.3g.40gb", or "3g.40gb" for all of it. */
void mig_device_name(const struct mig_profile *profile, const struct mig_compute *compute, char *into, size_t size);
/* Minor number of a capability; compute -1 for that of the GPU instance. */
unsigned mig_capability(const struct lab_gpu *gpu, unsigned instance, int compute);

/* Ampere: the mode that the board keeps. */
int mig_on_board(const struct lab_gpu *gpu);
const char *mig_board_path(const struct lab_gpu *gpu, char *into, size_t size);
void mig_make_folders(const char *path);
/* Keep a state, and show its capabilities in place of those before. */
int mig_write(const struct lab_gpu *gpu, const struct mig_geometry *geometry, const struct mig_state *before, struct mig_state *state);

/* Changes; NVML's numbers. `index` is the GPU's, for faults. */
int mig_set_mode(const struct lab_hardware *hardware, const struct lab_gpu *gpu, int mode, int *activation);
int mig_reset(const struct lab_hardware *hardware, const struct lab_gpu *gpu);
int mig_create(const struct lab_gpu *gpu, unsigned smi_id, unsigned start, unsigned *id);
int mig_destroy(const struct lab_gpu *gpu, unsigned id);
int mig_create_compute(const struct lab_gpu *gpu, unsigned instance, unsigned nvml_id, unsigned start, unsigned *id);
int mig_destroy_compute(const struct lab_gpu *gpu, unsigned instance, unsigned id);
/* Device nodes of all capabilities, as nvidia-smi has nvidia-modprobe make them. */
void mig_make_nodes(const struct lab_hardware *hardware);

#endif
