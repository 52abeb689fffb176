# CRI-O in the layout of its project's packages: crio and pinns as built, and Debian's conmon, crun and runc, which
# the packages keep in /usr/libexec/crio. Reads PROGRAMS (folder; /run/gpustate-lab-repository if unset).
programs=${PROGRAMS-/run/gpustate-lab-repository}
if [ -z "${PROGRAMS-}" ]; then
    dpkg --purge --force-depends containerd
    apt-get -q update
    apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install conmon crun runc skopeo
fi
install -m 755 "$programs/crio" "$programs/pinns" /usr/bin/
mkdir -p /usr/libexec/crio /etc/crio/crio.conf.d /etc/containers
# CRI-O has no setting against a lower oom_score_adj, which a node may not be allowed to write.
cat > /usr/local/bin/crun <<'WRAPPER'
#!/bin/sh
own=$(cat /proc/self/oom_score_adj)
for word; do
    case $option in -b | --bundle) sed -i "s/\"oomScoreAdj\": *-[0-9]*/\"oomScoreAdj\":$own/" "$word/config.json" ;; esac
    option=$word
done
exec "$(PATH=/usr/sbin:/usr/bin command -v "${0##*/}")" "$@"
WRAPPER
chmod 755 /usr/local/bin/crun
ln -sf crun /usr/local/bin/runc
for program in crun runc; do ln -sf /usr/local/bin/$program /usr/libexec/crio/$program; done
ln -sf /usr/bin/conmon /usr/libexec/crio/conmon
echo 'runtime-endpoint: unix:///run/crio/crio.sock' > /etc/crictl.yaml
echo '{"default": [{"type": "insecureAcceptAnything"}]}' | tee /etc/containers/policy.json > /etc/crio/policy.json
# A storage driver that works on an overlay. Podman and skopeo have it, too, and find the same images.
printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' > /etc/containers/storage.conf
cat > /etc/crio/crio.conf.d/10-crio.conf <<'CONF'
[crio.image]
signature_policy = "/etc/crio/policy.json"

[crio.runtime]
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = [
    "io.containers.trace-syscall",
]

[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
runtime_root = "/run/runc"
monitor_path = "/usr/libexec/crio/conmon"
CONF
# As its packages have it. A node has no nftables, which it would use for host ports.
cat > /usr/lib/systemd/system/crio.service <<'UNIT'
[Unit]
Description=Container Runtime Interface for OCI (CRI-O)
Wants=network-online.target
Before=kubelet.service
After=network-online.target

[Service]
Type=notify
EnvironmentFile=-/etc/default/crio
Environment=GOTRACEBACK=crash DISABLE_HOSTPORT_MAPPING=true
ExecStart=/usr/bin/crio $CRIO_CONFIG_OPTIONS
ExecReload=/bin/kill -s HUP $MAINPID
TasksMax=infinity
LimitNPROC=1048576
LimitCORE=infinity
OOMScoreAdjust=-999
TimeoutStartSec=0
Restart=on-failure
RestartSec=10

[Install]
WantedBy=multi-user.target
Alias=cri-o.service
UNIT
systemctl enable crio.service
