/* Simulated. What the two halves of nvidia-smi's MIG verbs share. */
#ifndef GPUSTATE_LAB_SMI_MIG_INNER_H
#define GPUSTATE_LAB_SMI_MIG_INNER_H

#include "mig.h"
#include "smi_fields.h"

typedef struct { unsigned start, size; } placement;
typedef struct { unsigned version, id, p2p, slices, instances, sm, copy, decoders, encoders, jpeg, ofa; unsigned long long memory_mib; char name[96]; } gi_profile;
typedef struct { void *device; unsigned id, profile; placement place; } gi_info;
typedef struct { unsigned version, id, slices, instances, sm, copy, decoders, encoders, jpeg, ofa; char name[96]; } ci_profile;
typedef struct { void *device, *instance; unsigned id, profile; placement place; } ci_info;

#define GI_PROFILES 0x12
#define CI_PROFILES 9

struct whole { void *handle; gi_info info; gi_profile profile; };
struct part { void *handle; ci_info info; ci_profile profile; };

unsigned index_of(void *gpu);
int enabled(void *gpu);
int profile_at(void *gpu, unsigned nvml_id, gi_profile *into);
int compute_profile_at(void *instance, unsigned nvml_id, ci_profile *into);
unsigned instances_of(void *gpu, struct whole *into);
unsigned computes_of(void *instance, struct part *into);
/* Is a number in a list such as "1,2"? Without a list it is. */
int chosen(const char *list, unsigned id);

int smi_list_profiles(void **gpus, unsigned count);
int smi_list_placements(void **gpus, unsigned count);
int smi_list_instances(void **gpus, unsigned count);
int smi_list_computes(void **gpus, unsigned count, const char *within);

#endif
