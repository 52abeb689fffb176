//go:build tools

// The programs that the lab builds from this module.
package tools

import (
	_ "github.com/cri-o/cri-o/cmd/crio"
)
