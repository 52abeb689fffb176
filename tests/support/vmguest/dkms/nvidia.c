// SPDX-License-Identifier: Dual MIT/GPL
/* Stands in for nvidia.ko: binds to the device, shows what the real one shows in /proc. */
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include "nv-version.h"

#define MAJOR_NUMBER 195

static int NVreg_RestrictProfilingToAdminUsers = 1;
module_param(NVreg_RestrictProfilingToAdminUsers, int, 0400);
static int NVreg_EnableGpuFirmware = 18;
module_param(NVreg_EnableGpuFirmware, int, 0400);

static int probed;
static struct proc_dir_entry *folder;

static int nvidia_probe(struct pci_dev *device, const struct pci_device_id *id)
{
	probed++;
	return 0;
}

static const struct pci_device_id nvidia_ids[] = {
	{ PCI_DEVICE(0x10de, PCI_ANY_ID), .class = 0x030200, .class_mask = 0xffff00 },
	{ PCI_DEVICE(0x10de, PCI_ANY_ID), .class = 0x030000, .class_mask = 0xffff00 },
	{ }
};
MODULE_DEVICE_TABLE(pci, nvidia_ids);

static struct pci_driver nvidia_driver = {
	.name = "nvidia", .id_table = nvidia_ids, .probe = nvidia_probe,
};

static int show_version(struct seq_file *file, void *unused)
{
	seq_puts(file, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " NV_VERSION "  Release Build  (simulated)\n");
	seq_puts(file, "GCC version:  " __VERSION__ "\n");
	return 0;
}

static int show_params(struct seq_file *file, void *unused)
{
	seq_printf(file, "EnableGpuFirmware: %d\n", NVreg_EnableGpuFirmware);
	seq_printf(file, "RmProfilingAdminOnly: %d\n", NVreg_RestrictProfilingToAdminUsers);
	return 0;
}

static const struct file_operations devices = { .owner = THIS_MODULE };

#ifdef NV_CHANGED_INTERFACE
/* What a kernel looks like to a driver that does not know it yet. */
static inline int nv_pin_user_pages(unsigned long start, unsigned int flags) { return 0; }
#else
static inline int nv_pin_user_pages(unsigned long start) { return 0; }
#endif

int nvidia_get_rm_ops(void);
int nvidia_get_rm_ops(void)
{
	return nv_pin_user_pages(0);
}
EXPORT_SYMBOL(nvidia_get_rm_ops);

static int __init nvidia_init(void)
{
	int error = pci_register_driver(&nvidia_driver);

	if (error)
		return error;
	if (!probed) {
		pr_err("NVRM: No NVIDIA GPU found, or another driver has it.\n");
		pci_unregister_driver(&nvidia_driver);
		return -ENODEV;
	}
	error = register_chrdev(MAJOR_NUMBER, "nvidia-frontend", &devices);
	if (error < 0) {
		pci_unregister_driver(&nvidia_driver);
		return error;
	}
	folder = proc_mkdir("driver/nvidia", NULL);
	proc_create_single("version", 0444, folder, show_version);
	proc_create_single("params", 0444, folder, show_params);
	return 0;
}

static void __exit nvidia_exit(void)
{
	proc_remove(folder);
	unregister_chrdev(MAJOR_NUMBER, "nvidia-frontend");
	pci_unregister_driver(&nvidia_driver);
}

module_init(nvidia_init);
module_exit(nvidia_exit);
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION(NV_VERSION);
MODULE_DESCRIPTION("Simulated nvidia, for tests of gpustate");
