//go:build tools

// The programs that the lab builds from this module.
package tools

import (
	_ "sigs.k8s.io/dra-driver-nvidia-gpu/cmd/gpu-kubelet-plugin"
)
