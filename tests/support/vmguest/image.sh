#!/bin/sh
# Make the disk of a virtual machine: a Debian root with its own kernels, boot loader and initramfs.
# Usage, in mount and pid namespaces of its own: image.sh OUT LOWER DOWNLOADS GUEST KEY KERNELS REPOSITORY
# OUT gets disk.raw; LOWER is a Debian 12 root, only read; GUEST is the folder of this script; KEY a
# public key for root; KERNELS how many kernels there are, the oldest of which boots first; REPOSITORY
# a folder of packages that the machine finds at /opt/nvidia.
set -eu
out=$1 lower=$2 downloads=$3 guest=$4 key=$5 kernels=$6 repository=$7
root=$out/merged
mkdir -p "$out/upper" "$out/work" "$root" "$downloads/partial"
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$out/upper,workdir=$out/work" "$root"
mount -t proc proc "$root/proc"
for folder in run tmp var/lib/apt/lists; do mount -t tmpfs tmpfs "$root/$folder"; done
mount --bind "$downloads" "$root/var/cache/apt/archives"
cp -r "$guest" "$root/tmp/guest"
cp /etc/resolv.conf "$root/etc/resolv.conf"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
echo force-unsafe-io > "$root/etc/dpkg/dpkg.cfg.d/build"

mkdir -p "$root/etc/initramfs-tools/conf.d" "$root/etc/ssh/sshd_config.d" "$root/root/.ssh"
# A short list instead of everything: the machine's disk and what this test is about.
printf 'MODULES=list\nCOMPRESS=gzip\nCOMPRESSLEVEL=1\n' > "$root/etc/initramfs-tools/conf.d/gpustate-vm"
printf 'virtio_pci\nvirtio_blk\next4\ngpustate_gpu\nnouveau\n' > "$root/etc/initramfs-tools/modules"

DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root chroot "$root" sh -eu -s "$kernels" <<'INSIDE'
get() { apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install "$@"; }
apt-get -q update
# Newer branches than the release's own do not boot under qemu's software emulation.
newest=$(apt-cache show linux-image-cloud-amd64 | sed -n 's/^Depends: linux-image-\([^ ,]*\).*/\1/p' | sort -V | tail -n 1)
branch=${newest%-*-cloud-amd64}
releases=$(apt-cache pkgnames "linux-image-$branch-" | sed -n 's/^linux-image-\(.*-cloud-amd64\)$/\1/p' | sort -V | tail -n "$1")
[ "$(echo "$releases" | wc -l)" = "$1" ] || { echo "the archive has too few kernels of $branch: $releases"; exit 1; }
set --
for k in $releases; do set -- "$@" "linux-image-$k" "linux-headers-$k"; done
get "$@"
# The root is named by its device, so nothing has to be looked for by udev: half of an initramfs' work.
for part in hooks/udev hooks/dmsetup scripts/init-top/udev scripts/init-bottom/udev; do
    [ ! -e "/usr/share/initramfs-tools/$part" ] || chmod a-x "/usr/share/initramfs-tools/$part"
done
for k in $releases; do
    rm -rf /tmp/build && mkdir /tmp/build && cp /tmp/guest/*.c /tmp/build/
    printf 'obj-m := gpustate_gpu.o nouveau.o\n' > /tmp/build/Makefile
    make -s -C "/lib/modules/$k/build" M=/tmp/build modules
    install -D -m 644 /tmp/build/gpustate_gpu.ko "/lib/modules/$k/extra/gpustate_gpu.ko"
    install -D -m 644 /tmp/build/nouveau.ko "/lib/modules/$k/kernel/drivers/gpu/drm/nouveau/nouveau.ko"
    depmod "$k"
    update-initramfs -u -k "$k"
done
# After the kernels: their hooks would run update-grub, which finds no device below a chroot.
get grub2-common grub-pc-bin
mkdir -p /boot/grub
cp -r /usr/lib/grub/i386-pc /boot/grub/
grub-mkimage -O i386-pc -o /tmp/core.img -p '(hd0,msdos1)/boot/grub' biosdisk part_msdos ext2
cat > /boot/grub/grub.cfg <<END
# The first boot only: update-grub replaces it.
linux /boot/vmlinuz-$(echo "$releases" | head -n 1) root=/dev/vda1 rw console=ttyS0 mitigations=off
initrd /boot/initrd.img-$(echo "$releases" | head -n 1)
boot
END
cat >> /etc/default/grub <<'END'
GRUB_CMDLINE_LINUX="console=ttyS0 mitigations=off"
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_TIMEOUT=0
GRUB_DISABLE_LINUX_UUID=true
GRUB_DISABLE_OS_PROBER=true
END
# 0: without fsck in the initramfs, which is then built in half of the time; ext4 has its journal.
echo '/dev/vda1 / ext4 defaults 0 0' > /etc/fstab
echo vm1 > /etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 vm1\n' > /etc/hosts
printf '[Match]\nName=e*\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n' > /etc/systemd/network/vm.network
systemctl enable systemd-networkd 2> /dev/null
systemctl disable containerd 2> /dev/null
# What costs boot time under emulation and serves nobody here.
systemctl mask sys-kernel-config.mount sys-fs-fuse-connections.mount sys-kernel-debug.mount sys-kernel-tracing.mount dev-hugepages.mount dev-mqueue.mount 2> /dev/null
systemctl mask getty@tty1 serial-getty@ttyS0 systemd-networkd-wait-online systemd-timesyncd 2> /dev/null
printf 'HostKey /etc/ssh/ssh_host_ed25519_key\nUseDNS no\n' > /etc/ssh/sshd_config.d/vm.conf
rm -f /etc/ssh/ssh_host_*
ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key
echo gpustate_gpu > /etc/modules-load.d/gpustate-vm.conf
INSIDE

dd if=/proc/sys/kernel/random/uuid bs=36 count=1 2> /dev/null | tr -d - > "$root/etc/machine-id"
touch "$root/etc/.updated" "$root/var/.updated"
cp "$key" "$root/root/.ssh/authorized_keys"
cp -r "$repository" "$root/opt/nvidia"
chmod 700 "$root/root/.ssh"
rm -f "$root/etc/resolv.conf" "$root/usr/sbin/policy-rc.d" "$root/etc/dpkg/dpkg.cfg.d/build"
rm -f "$root/etc/apt/sources.list"
cp "$root/etc/ssh/ssh_host_ed25519_key.pub" "$out/host.pub"
cp "$root/tmp/core.img" "$root/usr/lib/grub/i386-pc/boot.img" "$out/"
umount "$root/var/cache/apt/archives" "$root/var/lib/apt/lists" "$root/tmp" "$root/run" "$root/proc"

sh "$guest/../bootdisk.sh" "$root" "$out" 5 120000
umount "$root"
rm -rf "$out/upper" "$out/work" "$root"
