/* Simulated nvidia-modeset.ko. */
#include "nv-version.h"
#include "lab.h"
MODULE_NAME("nvidia_modeset");
MODULE_LICENSE(NV_LICENSE);
MODULE_DEPENDS("nvidia");
extern int nvidia_get_rm_ops(void);
int nvidia_modeset_init(void);
int nvidia_modeset_init(void) { return nvidia_get_rm_ops(); }
EXPORT_SYMBOL(nvKmsKapiGetFunctionsTable);
int nvKmsKapiGetFunctionsTable(void);
int nvKmsKapiGetFunctionsTable(void) { return 0; }
