// SPDX-License-Identifier: GPL-2.0
/*
 * Stands in for nouveau: takes every NVIDIA display device, and keeps itself in use from then on, as
 * the real one does through the console.
 */
#include <linux/module.h>
#include <linux/pci.h>

static int nouveau_probe(struct pci_dev *device, const struct pci_device_id *id)
{
	__module_get(THIS_MODULE);
	pci_info(device, "taken by nouveau (simulated)\n");
	return 0;
}

static const struct pci_device_id nouveau_ids[] = {
	{ PCI_DEVICE(0x10de, PCI_ANY_ID), .class = 0x030000, .class_mask = 0xff0000 },
	{ }
};
MODULE_DEVICE_TABLE(pci, nouveau_ids);

static int modeset = -1;
module_param(modeset, int, 0400);

static struct pci_driver nouveau_driver = {
	.name = "nouveau", .id_table = nouveau_ids, .probe = nouveau_probe,
};
module_pci_driver(nouveau_driver);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Simulated nouveau, for tests of gpustate");
