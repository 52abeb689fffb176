# shellcheck shell=sh
# What somebody would type to set up the node of docs/examples/clusterpolicy.yaml: the same packages and services.
# Expects URL, the lab's server of packages, in $1, and the key of its packages on standard input.
set -e
export DEBIAN_FRONTEND=noninteractive
cat >/etc/apt/keyrings/lab.asc
for path in mirror/ubuntu2404 libnvidia-container/stable/deb/amd64; do
  echo "deb [signed-by=/etc/apt/keyrings/lab.asc] $1/$path/ /"
done >/etc/apt/sources.list.d/lab.list
printf '%s\n' 'Package: *nvidia*' 'Pin: version 580.65.06*' 'Pin-Priority: 1001' >/etc/apt/preferences.d/nvidia
printf '%s\n' 'blacklist nouveau' 'options nouveau modeset=0' >/etc/modprobe.d/nouveau.conf
echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0' >/etc/modprobe.d/nvidia-profiling.conf
printf '%s\n' nvidia nvidia-uvm nvidia-modeset >/etc/modules-load.d/nvidia.conf
apt-get update -q
apt-get install -y -q --no-install-recommends linux-headers-6.8.0-106-generic \
  libnvidia-compute-580=580.65.06-0ubuntu1 nvidia-compute-utils-580=580.65.06-0ubuntu1 \
  nvidia-dkms-580-open=580.65.06-0ubuntu1 nvidia-headless-no-dkms-580-open=580.65.06-0ubuntu1 \
  nvidia-modprobe=580.65.06-0ubuntu1 nvidia-persistenced=580.65.06-0ubuntu1 \
  nvidia-utils-580=580.65.06-0ubuntu1 nvidia-fabricmanager=580.65.06-1 \
  nvidia-container-toolkit=1.20.1-1 nvidia-container-toolkit-base=1.20.1-1 \
  libnvidia-container-tools=1.20.1-1 libnvidia-container1=1.20.1-1
apt-mark hold nvidia-dkms-580-open nvidia-headless-no-dkms-580-open nvidia-utils-580 \
  nvidia-compute-utils-580 libnvidia-compute-580 nvidia-fabricmanager nvidia-container-toolkit
modprobe -a nvidia nvidia-uvm nvidia-modeset
systemctl enable -q --now nvidia-fabricmanager nvidia-persistenced
nvidia-ctk --quiet runtime configure --runtime=containerd --set-as-default=false
systemctl restart containerd
nvidia-smi -L
