# containerd as its own project releases it, in place of Debian's: programs in /usr/local/bin and a unit.
# The runc is Debian's.
dpkg --purge --force-depends containerd
install -m 755 /run/gpustate-lab-repository/containerd /run/gpustate-lab-repository/containerd-shim-runc-v2 \
    /run/gpustate-lab-repository/ctr /usr/local/bin/
mkdir -p /usr/local/lib/systemd/system
cat > /usr/local/lib/systemd/system/containerd.service <<'UNIT'
[Unit]
Description=containerd container runtime
After=network.target local-fs.target

[Service]
ExecStart=/usr/local/bin/containerd
Type=notify
Delegate=yes
KillMode=process
Restart=always
RestartSec=5
LimitNPROC=infinity
LimitCORE=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
UNIT
systemctl enable containerd.service
