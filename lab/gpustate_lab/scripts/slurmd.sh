# Slurm's daemon for nodes, from Debian itself. Key and slurm.conf are the lab's, so none is made here.
debian=/usr/lib/gpustate-lab/sources.list
[ ! -e $debian ] || mount --bind $debian /etc/apt/sources.list
apt-get -q -o Acquire::Check-Valid-Until=false update
apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install slurmd slurm-client munge
rm -f /etc/munge/munge.key
mkdir -p /etc/slurm /var/lib/slurm/slurmd /etc/systemd/system/slurmd.service.d
# A node shares the controller's uptime, by which Slurm knows a reboot: -b at the first start of a boot
# is what tells it. The processors are a GPU server's, whatever the controller has.
cat > /etc/systemd/system/slurmd.service.d/gpustate-lab.conf <<'UNIT'
[Service]
Environment="HWLOC_SYNTHETIC=package:2 core:32 pu:1"
EnvironmentFile=-/run/gpustate-lab-slurmd
ExecStartPost=-/bin/rm -f /run/gpustate-lab-slurmd
UNIT
mkdir -p /etc/tmpfiles.d
echo 'f! /run/gpustate-lab-slurmd 0644 root root - SLURMD_OPTIONS=-b' > /etc/tmpfiles.d/gpustate-lab-slurmd.conf
systemctl enable munge slurmd
