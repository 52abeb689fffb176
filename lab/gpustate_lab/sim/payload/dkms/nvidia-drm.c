/* Simulated nvidia-drm.ko. */
#include "nv-version.h"
#include "lab.h"
MODULE_NAME("nvidia_drm");
MODULE_LICENSE(NV_LICENSE);
MODULE_DEPENDS("nvidia-modeset,nvidia");
extern int nvKmsKapiGetFunctionsTable(void);
int nvidia_drm_init(void);
int nvidia_drm_init(void) { return nvKmsKapiGetFunctionsTable(); }
