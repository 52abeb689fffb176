/* Simulated: nvidia-smi's MIG verbs, -mig and --gpu-reset. */
#ifndef GPUSTATE_LAB_SMI_MIG_H
#define GPUSTATE_LAB_SMI_MIG_H

/* `nvidia-smi mig ...`; argv begins behind "mig". */
int smi_mig(int argc, char **argv);
int smi_set_mig_mode(void **gpus, unsigned count, unsigned mode);
int smi_reset(void **gpus, unsigned count);
/* The lines of a GPU's MIG devices below it in -L. */
void smi_list_mig_devices(void *gpu);
/* All GPUs, or those that -i names: an index, a UUID or a bus id; in smi.c. */
int choose(const char *wanted, void **gpus, unsigned *count);

#endif
