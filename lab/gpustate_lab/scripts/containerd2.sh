# containerd 2 on Debian 13: from unstable, together with runc; everything else stays Debian 13's.
mirror=$(awk '$1 == "deb" { print $2; exit }' /etc/apt/sources.list)
echo "deb $mirror sid main" > /etc/apt/sources.list.d/gpustate-lab-sid.list
cat > /etc/apt/preferences.d/gpustate-lab-sid <<'EOF'
Package: *
Pin: release n=sid
Pin-Priority: 50

Package: containerd runc
Pin: release n=sid
Pin-Priority: 600
EOF
# A mirror frozen at some day serves release files past their date.
apt-get -q -o Acquire::Check-Valid-Until=false update
apt-get -q -y -o Dpkg::Use-Pty=0 -o APT::Install-Recommends=false -o Binary::apt-get::APT::Keep-Downloaded-Packages=true install containerd runc
rm /etc/apt/sources.list.d/gpustate-lab-sid.list /etc/apt/preferences.d/gpustate-lab-sid
