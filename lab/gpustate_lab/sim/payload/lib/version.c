/* Simulated. The one object that differs between driver versions. */
#include "lab.h"
const char lab_driver_version[] = LAB_DRIVER_VERSION;
const int lab_cuda_version = LAB_CUDA_VERSION;
