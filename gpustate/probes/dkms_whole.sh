# shellcheck shell=sh
# Defines whole KERNEL MODULE: what belongs to it is beside it, or lost_module is the file that is
# missing. Expects sound.
whole() { # kernel module
  module_folder=${2%/*}
  module_base=${2##*/}
  module_suffix=.ko${module_base#*.ko}
  module_base=${module_base%%.ko*}
  for module_part in uvm modeset drm peermem; do module_base=${module_base%-$module_part}; done
  for module_part in '' -uvm -modeset; do
    lost_module=$module_folder/$module_base$module_part$module_suffix
    sound "$lost_module" || return 1
  done
  # DKMS knows whether it has built and installed these.
  case $module_folder in */updates/dkms | */extra) ;; *) return 0 ;; esac
  for module_part in "$module_base-drm" "$module_base-peermem"; do
    for built_module in /var/lib/dkms/nvidia*/kernel-"$1"-*/module/"$module_part".ko*; do
      lost_module=$module_folder/$module_part$module_suffix
      [ ! -e "$built_module" ] || sound "$lost_module" || return 1
    done
  done
}
