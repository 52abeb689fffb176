//go:build tools

// The programs that the lab builds from this module.
package tools

import (
	_ "gpustate.lab/dra-driver/gpu-kubelet-plugin"
)
