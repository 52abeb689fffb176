# What the script after this one installs is from unstable, with the packages that it needs from there.
mirror=$(awk '$1 == "deb" { print $2; exit }' /etc/apt/sources.list)
echo "deb $mirror sid main" > /etc/apt/sources.list.d/gpustate-lab-sid.list
echo 'APT::Default-Release "sid";' > /etc/apt/apt.conf.d/gpustate-lab-sid
trap 'rm -f /etc/apt/sources.list.d/gpustate-lab-sid.list /etc/apt/apt.conf.d/gpustate-lab-sid' EXIT
