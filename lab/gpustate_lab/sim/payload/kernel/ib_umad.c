/* Simulated ib_umad.ko; what it depends on is left out. Nothing loads it by itself. */
#include <linux/module.h>
MODULE_NAME("ib_umad");
MODULE_LICENSE("Dual BSD/GPL");
MODULE_DEPENDS("");
int ib_umad_init(void);
int ib_umad_init(void) { return 0; }
