/* Simulated nouveau.ko. */
#include <linux/module.h>
MODULE_NAME("nouveau");
MODULE_LICENSE("GPL and additional rights");
MODULE_DEPENDS("");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc03sc*i*");
MODULE_PARM("modeset", "int");
int nouveau_init(void);
int nouveau_init(void) { return 0; }
