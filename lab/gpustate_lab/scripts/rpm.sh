# dnf, rpm and zypper as Debian packages them, for nodes that are to be managed with them. The rpm database
# starts empty: which distribution such a node is said to be, and its base packages, are a test's to put there.
apt-get -q update
apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install dnf rpm zypper gpg
# versionlock: the package it comes in cannot be installed beside zypper (both have needs-restarting).
cd /tmp
apt-get -q download dnf-plugins-core
dpkg-deb --fsys-tarfile dnf-plugins-core_*.deb | tar -x -C / ./etc/dnf/plugins/versionlock.conf ./etc/dnf/plugins/versionlock.list \
    ./usr/lib/python3/dist-packages/dnf-plugins/versionlock.py ./usr/lib/python3/dist-packages/dnfpluginscore
mkdir -p /etc/dnf/vars /etc/yum.repos.d /etc/zypp/repos.d /etc/pki/rpm-gpg
# Neither has a package here that says which release this is.
echo 9 > /etc/dnf/vars/releasever
rpm --initdb
