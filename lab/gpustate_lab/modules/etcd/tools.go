//go:build tools

// The programs that the lab builds from this module.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)
