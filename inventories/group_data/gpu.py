"""What all nodes of the group "gpu" of inventory.py have."""

from pathlib import Path

ssh_user = "ops"
ssh_key = str(Path("~") / ".ssh" / "gpu_fleet")
gpustate = {"driver": {"branch": 570}}
