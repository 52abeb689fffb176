# What a Kubernetes node has beside containerd: Debian's CNI plugins, and busybox for a container image.
apt-get -q -o Acquire::Check-Valid-Until=false update
apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install containernetworking-plugins
# Not installed: it would replace busybox, which initramfs-tools may use.
cd /tmp
apt-get -q download busybox-static
dpkg-deb -x busybox-static_*.deb busybox
mkdir -p /usr/lib/gpustate-lab /opt/cni
cp "$(find busybox -type f -path "*bin/busybox")" /usr/lib/gpustate-lab/busybox
# Where the plugins are looked for by a containerd without Debian's configuration.
ln -s /usr/lib/cni /opt/cni/bin
