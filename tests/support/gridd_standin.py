"""A stand-in for nvidia-gridd with its unit, its configuration, and nvidia-smi's view of its licence."""

from __future__ import annotations

GRIDD = """#!/bin/sh
# Stands for nvidia-gridd: licensed while there is a token and FeatureType is not 0.
s=Unlicensed
t=/etc/nvidia/ClientConfigToken/client_configuration_token.tok
[ -s $t ] && grep -q '^FeatureType=[124]' /etc/nvidia/gridd.conf && s='Licensed (Expiry: 2030-1-1 0:0:0 GMT)'
mkdir -p /run/nvidia-gridd; printf '%s' "$s" >/run/nvidia-gridd/status
exec sleep infinity
"""
GRIDD_UNIT = """[Unit]
Description=Stands for nvidia-gridd
[Service]
ExecStart=/usr/bin/nvidia-gridd
[Install]
WantedBy=multi-user.target
"""
SMI = """#!/bin/sh
# Stands for nvidia-smi -q in a machine with a vGPU.
printf '    GPU Virtualization Mode\\n        Virtualization Mode               : VGPU\\n'
printf '    vGPU Software Licensed Product\\n        License Status                    : %s\\n' "$(cat /run/nvidia-gridd/status)"
"""
CONF = "# of the site\nEnableUI=FALSE\nFeatureType=0\n"
