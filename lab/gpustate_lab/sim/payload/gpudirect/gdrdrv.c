/* Simulated gdrdrv.ko: its description says for which kind of driver it was built, as the real one's. */
#include "nv-version.h"
#include <linux/module.h>
#ifndef NVIDIA_KIND
#define NVIDIA_KIND "proprietary"
#endif
MODULE_NAME("gdrdrv");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_INFO(description, "GDRCopy kernel-mode driver built for " NVIDIA_KIND " NVIDIA driver");
MODULE_INFO(lab_nvidia, NV_VERSION);
MODULE_VERSION("@VERSION@");
MODULE_DEPENDS("nvidia");
extern int nvidia_get_rm_ops(void);
int gdrdrv_init(void);
int gdrdrv_init(void) { return nvidia_get_rm_ops(); }
