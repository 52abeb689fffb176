"""An inventory as pyinfra has them: each top-level list is a group, a dict beside a name its data."""

_bastion_port = 2200

gpu = ["gpu-a", ("gpu-b", {"ssh_hostname": "203.0.113.12", "ssh_port": _bastion_port})]

slurm = (["gpu-b", "login"], {"ssh_user": "slurm", "_sudo": True, "_sudo_user": "root"})

controller = ["@local"]
