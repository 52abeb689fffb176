//go:build tools

// The programs that the lab builds from this module.
package tools

import (
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/config-manager"
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/nvidia-device-plugin"
	_ "github.com/NVIDIA/k8s-device-plugin/cmd/gpu-feature-discovery"
)
