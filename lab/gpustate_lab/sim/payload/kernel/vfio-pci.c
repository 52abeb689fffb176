/* Simulated vfio-pci.ko. */
#include <linux/module.h>
MODULE_NAME("vfio_pci");
MODULE_LICENSE("GPL v2");
MODULE_DEPENDS("");
MODULE_ALIAS("vfio_pci:v*d*sv*sd*bc*sc*i*");
