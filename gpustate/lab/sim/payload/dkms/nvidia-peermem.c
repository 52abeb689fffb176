/* Simulated nvidia-peermem.ko. */
#include "nv-version.h"
#include "lab.h"
MODULE_NAME("nvidia_peermem");
MODULE_LICENSE(NV_LICENSE);
MODULE_DEPENDS("nvidia");
extern int nvidia_get_rm_ops(void);
int nvidia_peermem_init(void);
int nvidia_peermem_init(void) { return nvidia_get_rm_ops(); }
