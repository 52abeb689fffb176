#!/bin/sh
# Build the root of one Debian suite.
# Usage, in mount and pid namespaces of its own: base.sh ROOT SUITE DOWNLOADS PACKAGE...
set -eu
root=$1 suite=$2 downloads=$3
shift 3

proxy=
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "$proxy" ] || export http_proxy="$proxy"
# The mirror of this machine: mmdebstrap by itself would add updates and security.
of_debian() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Component: main' "$@" | sed -n '1s:/*$::p'; }
mirror=$(of_debian 'Label: Debian')
[ -n "$mirror" ] || mirror=$(of_debian)
[ -n "$mirror" ] || { echo "apt has no mirror of Debian on this machine: add one to /etc/apt/sources.list" >&2; exit 1; }

# dpkg forces every file to disk otherwise; a root that is not finished is thrown away anyway.
# busybox-static is for a container image. Not installed: it would replace busybox, which initramfs-tools may use.
mkdir -p "$downloads/partial" "$root"
DOWNLOADS=$downloads LC_ALL=C.UTF-8 mmdebstrap --verbose --mode=root --variant=minbase --format=directory --include="$*" \
    --skip=download/empty --skip=essential/unlink \
    --dpkgopt=force-unsafe-io \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --setup-hook='mkdir -p "$1/var/cache/apt/archives" && mount --bind "$DOWNLOADS" "$1/var/cache/apt/archives"' \
    --customize-hook='cd "$1/tmp" && chroot "$1" sh -c "cd /tmp && apt-get -q download busybox-static"
        dpkg-deb -x busybox-static_*.deb busybox && mkdir -p "$1/usr/lib/gpustate-lab"
        mv "$(find busybox -type f -path "*bin/busybox")" "$1/usr/lib/gpustate-lab/busybox"; rm -r busybox busybox-static_*.deb' \
    --customize-hook='umount "$1/var/cache/apt/archives"' \
    "$suite" "$root" "$mirror"

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
rm -f /etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub /etc/resolv.conf
rm -f /etc/dpkg/dpkg.cfg.d/99mmdebstrap /var/log/*.log /var/log/apt/* /var/cache/debconf/*-old
EOF
