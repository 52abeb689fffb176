/* Simulated. The macros of the kernel's module.h that the modules need come from the headers. */
#include <linux/module.h>
#include "conftest.h"
MODULE_VERSION(NV_VERSION);
