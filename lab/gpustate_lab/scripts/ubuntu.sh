# Make the Debian root answer as Ubuntu: names, apt's sources, and how Ubuntu configures unattended-upgrades and needrestart.
# Reads distribution (ubuntu2404). The programs stay Debian's; the archive is the lab's.
apt-get -q update
apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install lsb-release udev unattended-upgrades needrestart
case $distribution in
ubuntu2204) number=22.04 codename=jammy name='Jammy Jellyfish' point=22.04.5 ;;
ubuntu2404) number=24.04 codename=noble name='Noble Numbat' point=24.04.3 ;;
ubuntu2604) number=26.04 codename=resolute name='Resolute Raccoon' point=26.04 ;;
esac
cat > /usr/lib/os-release << EOF
PRETTY_NAME="Ubuntu $point LTS"
NAME="Ubuntu"
VERSION_ID="$number"
VERSION="$point LTS ($name)"
VERSION_CODENAME=$codename
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=$codename
EOF
cat > /etc/lsb-release << EOF
DISTRIB_ID=Ubuntu
DISTRIB_RELEASE=$number
DISTRIB_CODENAME=$codename
DISTRIB_DESCRIPTION="Ubuntu $point LTS"
EOF
printf 'Vendor: Ubuntu\nParent: Debian\n' > /etc/dpkg/origins/ubuntu
ln -sf ubuntu /etc/dpkg/origins/default
mkdir -p /usr/lib/gpustate-lab
mv /etc/apt/sources.list /usr/lib/gpustate-lab/sources.list
echo '# Ubuntu sources have moved to /etc/apt/sources.list.d/ubuntu.sources' > /etc/apt/sources.list
rm -f /etc/apt/sources.list.d/*
cat > /etc/apt/apt.conf.d/50unattended-upgrades << 'EOF'
Unattended-Upgrade::Allowed-Origins {
	"${distro_id}:${distro_codename}";
	"${distro_id}:${distro_codename}-security";
	"${distro_id}ESMApps:${distro_codename}-apps-security";
	"${distro_id}ESM:${distro_codename}-infra-security";
};
Unattended-Upgrade::Package-Blacklist {
};
Unattended-Upgrade::DevRelease "auto";
EOF
# From 24.04 on its needrestart restarts services after each run of apt, also when nobody is asked (option -m u).
case $distribution in ubuntu2204) ;; *) echo "\$nrconf{restart} = 'a';" > /etc/needrestart/conf.d/ubuntu.conf ;; esac
cat > /etc/apt/apt.conf.d/20auto-upgrades << 'EOF'
APT::Periodic::Update-Package-Lists "1";
APT::Periodic::Unattended-Upgrade "1";
EOF
systemctl unmask apt-daily.timer apt-daily-upgrade.timer
systemctl enable apt-daily.timer apt-daily-upgrade.timer
# As kubeadm's documentation has it. Ubuntu's containerd has the project's folder of CNI plugins, Debian's another one.
mkdir -p /etc/containerd
containerd config default | sed 's#"/usr/lib/cni"#"/opt/cni/bin"#' > /etc/containerd/config.toml
