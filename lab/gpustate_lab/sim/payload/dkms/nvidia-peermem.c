/* Simulated nvidia-peermem.ko. */
#include "nv-version.h"
#include "lab.h"
MODULE_NAME("nvidia_peermem");
MODULE_LICENSE(NV_LICENSE);
#ifdef NV_IB_PEER_MEMORY_CRC
MODULE_DEPENDS("nvidia,ib_core");
/* What "modprobe --dump-modversions" reads: with OFED's headers the module wants this symbol. */
static const struct { unsigned long crc; char name[64 - sizeof(unsigned long)]; } lab_versions[]
    __attribute__((used, section("__versions"), aligned(8))) = {{NV_IB_PEER_MEMORY_CRC, "ib_register_peer_memory_client"}};
#else
/* A shell: the kernel's own RDMA stack has nothing it could register with. */
MODULE_DEPENDS("nvidia");
#endif
extern int nvidia_get_rm_ops(void);
int nvidia_peermem_init(void);
int nvidia_peermem_init(void) { return nvidia_get_rm_ops(); }
