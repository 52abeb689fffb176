# Slurm's controller, from Debian itself. Key and slurm.conf are the lab's, so none is made here.
apt-get -q -o Acquire::Check-Valid-Until=false update
apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install slurmctld slurm-client munge
rm -f /etc/munge/munge.key
mkdir -p /etc/slurm
systemctl enable munge slurmctld
systemctl disable containerd
