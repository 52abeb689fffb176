// SPDX-License-Identifier: GPL-2.0
/*
 * A PCI root bus with one NVIDIA H100 on it that is nothing but a config space, for machines without
 * a GPU. The kernel enumerates it, so sysfs, uevents, modalias and the binding of drivers are real.
 */
#include <linux/module.h>
#include <linux/pci.h>

#define BUS 0x81

static u8 space[256];
static struct pci_bus *bus;
static struct pci_sysdata sysdata = { .domain = 0, .node = NUMA_NO_NODE };

static int lab_read(struct pci_bus *b, unsigned int devfn, int where, int size, u32 *value)
{
	*value = ~0U;
	if (b->number != BUS || devfn != 0 || where + size > sizeof(space))
		return PCIBIOS_DEVICE_NOT_FOUND;
	*value = 0;
	memcpy(value, space + where, size);
	return PCIBIOS_SUCCESSFUL;
}

static int lab_write(struct pci_bus *b, unsigned int devfn, int where, int size, u32 value)
{
	/* Base address registers stay 0, which says that there is no memory behind the device. */
	if (where == PCI_COMMAND && size == 2)
		memcpy(space + where, &value, size);
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_ops lab_ops = { .read = lab_read, .write = lab_write };

static void put16(int where, u16 value)
{
	memcpy(space + where, &value, sizeof(value));
}

static int __init lab_init(void)
{
	LIST_HEAD(resources);

	put16(PCI_VENDOR_ID, 0x10de);
	put16(PCI_DEVICE_ID, 0x2330);
	put16(PCI_CLASS_DEVICE, 0x0302);
	put16(PCI_SUBSYSTEM_VENDOR_ID, 0x10de);
	put16(PCI_SUBSYSTEM_ID, 0x16c1);
	bus = pci_scan_root_bus(NULL, BUS, &lab_ops, &sysdata, &resources);
	if (!bus)
		return -ENOMEM;
	pci_bus_add_devices(bus);
	return 0;
}

module_init(lab_init);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Simulated PCI device, for tests of gpustate");
