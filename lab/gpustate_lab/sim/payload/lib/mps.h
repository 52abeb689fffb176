/* Simulated: compute modes, and the client's side of MPS. */
#ifndef GPUSTATE_LAB_MPS_H
#define GPUSTATE_LAB_MPS_H

#include "lab.h"

enum { PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 };                      /* nvmlComputeMode_t */
enum { DEVICE_UNAVAILABLE = 46, MPS_CONNECTION_FAILED = 805 }; /* CUresult */

unsigned lab_compute_mode(const struct lab_gpu *gpu);
int lab_set_compute_mode(const struct lab_gpu *gpu, unsigned mode);
/* Whether this process may have a context on a GPU now; 0, or a CUresult. */
int lab_may_use(const struct lab_gpu *gpu);

#endif
