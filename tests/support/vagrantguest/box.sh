#!/bin/sh
# Make what a Vagrant box of Debian 12 is made of: a disk, and the packages that its machine installs later.
# Usage, in mount and pid namespaces of its own: box.sh OUT DOWNLOADS KEY ARCHIVE_KEY ARCHIVE_URL
# OUT gets box.img and debs/; KEY is Vagrant's public key; ARCHIVE_URL is the only apt source of the
# machine, signed with ARCHIVE_KEY, and stands for the distribution's archive.
set -eu
out=$1 downloads=$2 key=$3 archive_key=$4 archive_url=$5
root=$out/root
mkdir -p "$root/etc/dpkg/dpkg.cfg.d" "$downloads/partial" "$out/debs/partial"
cat > "$root/etc/dpkg/dpkg.cfg.d/build" <<'END'
force-unsafe-io
path-exclude=/usr/share/doc/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/man/*
END
proxy=
eval "$(apt-config shell proxy Acquire::http::Proxy)"
[ -z "$proxy" ] || export http_proxy="$proxy"
debootstrap --variant=minbase --cache-dir="$downloads" bookworm "$root"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d"
cp /etc/resolv.conf "$root/etc/resolv.conf"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mkdir "$root/run/debs"
mount --bind "$downloads" "$root/var/cache/apt/archives"
mount --bind "$out/debs" "$root/run/debs"

# A short list instead of MODULES=most, which takes minutes under emulation. nouveau is in it, as where an
# administrator wanted early mode setting: so there is something to be removed.
mkdir -p "$root/etc/initramfs-tools/conf.d" "$root/etc/ssh/sshd_config.d"
printf 'MODULES=list\nCOMPRESS=gzip\nCOMPRESSLEVEL=1\n' > "$root/etc/initramfs-tools/conf.d/box"
printf 'virtio_pci\nvirtio_blk\next4\nnouveau\n' > "$root/etc/initramfs-tools/modules"

DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root chroot "$root" sh -eu <<'INSIDE'
get() { apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install "$@"; }
get systemd systemd-sysv udev dbus openssh-server sudo iproute2 ifupdown isc-dhcp-client procps kmod pciutils \
    ca-certificates gnupg python3 initramfs-tools zstd linux-image-amd64 grub2-common grub-pc-bin gcc libc6-dev make dpkg-dev
kernel=$(ls /lib/modules)
# What else a driver needs to be built there is in the archive alone. The compiler is in the box, for it takes
# minutes to be unpacked under emulation.
get --download-only -o Dir::Cache::archives=/run/debs "linux-headers-$kernel" dkms
# The root is named by its device, so nothing has to be looked for by udev: half of an initramfs' work.
for part in hooks/udev hooks/dmsetup scripts/init-top/udev scripts/init-bottom/udev; do
    [ ! -e "/usr/share/initramfs-tools/$part" ] || chmod a-x "/usr/share/initramfs-tools/$part"
done
# Half of the modules, for devices that no virtual machine has: depmod takes a minute for all of them there.
cd "/lib/modules/$kernel/kernel"
rm -rf sound drivers/media/pci drivers/media/usb drivers/media/i2c drivers/media/dvb-frontends drivers/staging drivers/iio drivers/infiniband drivers/net/wireless drivers/net/ethernet \
    drivers/gpu/drm/amd drivers/gpu/drm/radeon drivers/gpu/drm/i915 drivers/hwmon drivers/mtd drivers/isdn
depmod "$kernel"
update-initramfs -u -k "$kernel"

mkdir -p /boot/grub
cp -r /usr/lib/grub/i386-pc /boot/grub/
grub-mkimage -O i386-pc -o /run/core.img -p '(hd0,msdos1)/boot/grub' biosdisk part_msdos ext2
command_line="root=/dev/vda1 ro console=tty0 console=ttyS0 net.ifnames=0 mitigations=off"
cat > /boot/grub/grub.cfg <<END
set default="0"
set timeout=0
menuentry 'Debian GNU/Linux' --class debian {
	linux /boot/vmlinuz-$kernel $command_line
	initrd /boot/initrd.img-$kernel
}
END
cat >> /etc/default/grub <<END
GRUB_CMDLINE_LINUX="${command_line#*ro }"
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_TIMEOUT=0
GRUB_DISABLE_LINUX_UUID=true
GRUB_DISABLE_OS_PROBER=true
END
echo '/dev/vda1 / ext4 defaults 0 0' > /etc/fstab
echo debian > /etc/hostname
printf '127.0.0.1 localhost\n127.0.1.1 debian\n' > /etc/hosts
printf 'auto lo\niface lo inet loopback\nauto eth0\niface eth0 inet dhcp\n' > /etc/network/interfaces
useradd --create-home --shell /bin/bash --groups sudo vagrant
usermod --password '*' vagrant
echo 'vagrant ALL=(ALL:ALL) NOPASSWD: ALL' > /etc/sudoers.d/vagrant
chmod 440 /etc/sudoers.d/vagrant
install -d -m 700 -o vagrant -g vagrant /home/vagrant/.ssh
echo 'UseDNS no' > /etc/ssh/sshd_config.d/box.conf
# What costs boot time under emulation and serves nobody here.
systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer getty@tty1.service 2> /dev/null
systemctl mask systemd-timesyncd.service 2> /dev/null || :
INSIDE

install -m 600 "$key" "$root/home/vagrant/.ssh/authorized_keys"
chown --reference="$root/home/vagrant" "$root/home/vagrant/.ssh/authorized_keys"
install -D -m 644 "$archive_key" "$root/usr/share/keyrings/box-archive.asc"
echo "deb [signed-by=/usr/share/keyrings/box-archive.asc] $archive_url ./" > "$root/etc/apt/sources.list"
dd if=/proc/sys/kernel/random/uuid bs=36 count=1 2> /dev/null | tr -d - > "$root/etc/machine-id"
touch "$root/etc/.updated" "$root/var/.updated"
rm -f "$root/etc/resolv.conf" "$root/usr/sbin/policy-rc.d" "$root/etc/dpkg/dpkg.cfg.d/build"
cp "$root/run/core.img" "$root/usr/lib/grub/i386-pc/boot.img" "$out/"
umount "$root/var/cache/apt/archives" "$root/run/debs" "$root/proc"
rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/*.bin "$root"/run/* "$root"/var/log/*.log "$out/debs/partial" "$out/debs/lock"

sh "${0%/*}/../bootdisk.sh" "$root" "$out" 6 200000
qemu-img convert -f raw -O qcow2 "$out/disk.raw" "$out/box.img"
rm -rf "$root" "$out/disk.raw"
