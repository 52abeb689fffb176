/* Simulated nvidia-uvm.ko. */
#include "nv-version.h"
#include "lab.h"
MODULE_NAME("nvidia_uvm");
MODULE_LICENSE(NV_LICENSE);
MODULE_DEPENDS("nvidia");
extern int nvidia_get_rm_ops(void);
int nvidia_uvm_init(void);
int nvidia_uvm_init(void) { return nvidia_get_rm_ops(); }
