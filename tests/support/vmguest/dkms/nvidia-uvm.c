// SPDX-License-Identifier: Dual MIT/GPL
/* Stands in for nvidia-uvm.ko: needs nvidia.ko, and nothing else. */
#include <linux/module.h>
#include "nv-version.h"

extern int nvidia_get_rm_ops(void);

static int __init lab_init(void)
{
	return nvidia_get_rm_ops();
}

static void __exit lab_exit(void)
{
}

module_init(lab_init);
module_exit(lab_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(NV_VERSION);
MODULE_DESCRIPTION("Simulated nvidia-uvm, for tests of gpustate");
