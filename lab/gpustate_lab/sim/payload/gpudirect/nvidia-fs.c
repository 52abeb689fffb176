/* Simulated nvidia-fs.ko. */
#include "nv-version.h"
#include <linux/module.h>
MODULE_NAME("nvidia_fs");
MODULE_LICENSE("GPL v2");
MODULE_INFO(lab_nvidia, NV_VERSION);
MODULE_VERSION("@VERSION@");
MODULE_DEPENDS("nvidia");
extern int nvidia_get_rm_ops(void);
int nvidia_fs_init(void);
int nvidia_fs_init(void) { return nvidia_get_rm_ops(); }
