# shellcheck shell=sh
# Defines whole KERNEL MODULE: what belongs to it is beside it, or wl is the file that is missing. Expects sound.
whole() { # kernel module
  wd=${2%/*}; wb=${2##*/}; we=.ko${wb#*.ko}; wb=${wb%%.ko*}
  for ws in uvm modeset drm peermem; do wb=${wb%-$ws}; done
  for ws in '' -uvm -modeset; do wl=$wd/$wb$ws$we; sound "$wl" || return 1; done
  # DKMS knows whether it has built and installed these.
  case $wd in */updates/dkms|*/extra) ;; *) return 0;; esac
  for ws in "$wb-drm" "$wb-peermem"; do
    for wf in /var/lib/dkms/nvidia*/kernel-"$1"-*/module/"$ws".ko*; do
      wl=$wd/$ws$we; [ ! -e "$wf" ] || sound "$wl" || return 1
    done
  done
}
