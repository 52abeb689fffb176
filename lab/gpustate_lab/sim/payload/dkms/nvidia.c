/* Simulated nvidia.ko. */
#include "nv-version.h"
#include "lab.h"
MODULE_NAME("nvidia");
MODULE_LICENSE(NV_LICENSE);
MODULE_INFO(supported, "external");
MODULE_FIRMWARE("nvidia/" NV_VERSION "/gsp_tu10x.bin");
MODULE_FIRMWARE("nvidia/" NV_VERSION "/gsp_ga10x.bin");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc06sc80i00*");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc03sc02i00*");
MODULE_ALIAS("pci:v000010DEd*sv*sd*bc03sc00i00*");
MODULE_DEPENDS("");
MODULE_PARM("NVreg_ModifyDeviceFiles", "int");
MODULE_PARM("NVreg_DeviceFileMode", "int");
MODULE_PARM("NVreg_RestrictProfilingToAdminUsers", "int");
MODULE_PARM("NVreg_CreateImexChannel0", "int");
MODULE_PARM("NVreg_CoherentGPUMemoryMode", "charp");
MODULE_PARM("NVreg_OpenRmEnableUnsupportedGpus", "int");
MODULE_PARM("NVreg_PreserveVideoMemoryAllocations", "int");
MODULE_PARM("NVreg_EnableGpuFirmware", "int");
EXPORT_SYMBOL(nvidia_get_rm_ops);
int nvidia_get_rm_ops(void);
int nvidia_get_rm_ops(void) { void *pages[1]; return nv_pin_user_pages(0, pages); }
