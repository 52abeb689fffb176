/* Simulated module of OFED. */
#include <linux/module.h>
MODULE_NAME("@MODULE@");
MODULE_LICENSE("Dual BSD/GPL");
MODULE_VERSION("@VERSION@");
MODULE_INFO(lab_peer_memory_crc, "@CRC@");
MODULE_DEPENDS("@DEPENDS@");
@SYMBOLS@
