# Other container runtimes beside containerd: docker, podman and crun, from Debian itself; and what
# upgrades packages and restarts services when nobody looks.
apt-get -q update
case $(. /etc/os-release; echo "$VERSION_CODENAME") in bookworm) cli= ;; *) cli=docker-cli ;; esac
apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install docker.io $cli podman crun udev unattended-upgrades needrestart
# A node of the lab has no kernel modules to load, so docker may have no bridge and no NAT; its own
# containerd is the system's. The storage driver is the one that works on an overlay.
mkdir -p /etc/systemd/system/docker.service.d
cat > /etc/systemd/system/docker.service.d/lab.conf <<'UNIT'
[Service]
ExecStart=
ExecStart=/usr/sbin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock --bridge=none --iptables=false --ip6tables=false --ip-forward=false --storage-driver=vfs
UNIT
