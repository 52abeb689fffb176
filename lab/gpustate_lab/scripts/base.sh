#!/bin/sh
# Build the root of one Debian suite.
# Usage, in mount and pid namespaces of its own: base.sh ROOT SUITE DOWNLOADS PACKAGE...
set -eu
root=$1 suite=$2 downloads=$3
shift 3

# dpkg forces every file to disk otherwise; a root that is not finished is thrown away anyway.
mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
cat > "$root/etc/dpkg/dpkg.cfg.d/gpustate-lab-build" <<'EOF'
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/man/*
EOF

proxy=
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "$proxy" ] || export http_proxy="$proxy"

mkdir -p "$downloads"
debootstrap --variant=minbase --cache-dir="$downloads" "$suite" "$root"

printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mkdir -p "$downloads/partial"
mount --bind "$downloads" "$root/var/cache/apt/archives"
DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root chroot "$root" \
    apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install "$@"
# For a container image. Not installed: it would replace busybox, which initramfs-tools may use.
LC_ALL=C.UTF-8 HOME=/root chroot "$root" sh -euc 'cd /tmp; apt-get -q download busybox-static
    dpkg-deb -x busybox-static_*.deb busybox; mkdir -p /usr/lib/gpustate-lab
    mv "$(find busybox -type f -path "*bin/busybox")" /usr/lib/gpustate-lab/busybox; rm -r busybox busybox-static_*.deb'
umount "$root/var/cache/apt/archives"

chroot "$root" sh -eu <<'EOF'
for timer in apt-daily apt-daily-upgrade dpkg-db-backup e2scrub_all fstrim systemd-tmpfiles-clean; do
    systemctl mask "$timer.timer" 2> /dev/null
done
systemctl mask console-getty.service e2scrub_reap.service systemd-timesyncd.service 2> /dev/null
systemctl set-default multi-user.target 2> /dev/null
for user in op oppw; do
    useradd --create-home --shell /bin/bash --groups sudo "$user"
done
echo 'op ALL=(ALL:ALL) NOPASSWD: ALL' > /etc/sudoers.d/gpustate-lab
chmod 440 /etc/sudoers.d/gpustate-lab
usermod --password '*' op
echo 'oppw:gpustate-lab' | chpasswd
rm -f /etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub /etc/resolv.conf /usr/sbin/policy-rc.d
rm -f /etc/dpkg/dpkg.cfg.d/gpustate-lab-build /var/log/*.log /var/log/apt/* /var/cache/debconf/*-old
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
EOF
