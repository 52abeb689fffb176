/* Simulated: answers of the functions that the simulated boards do not have. */
#include "nvml_inner.h"

#define UNSUPPORTED(name) LAB_API int name(void) { return is_started() ? NOT_SUPPORTED : UNINITIALIZED; }

#include "nvml_unsupported.def"
