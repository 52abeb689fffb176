# shellcheck shell=sh
# Defines keep_modules and modules_back. A package's scripts remove the modules of all kernels
# before they build, and what fails to build in one version may fail in the other as well. Reads G;
# calls have.
keep_modules() { # kernel...: copies of what DKMS has installed, until what replaces it is built
  for kept_kernel; do
    kept_file=
    for kept_file in /lib/modules/"$kept_kernel"/updates/dkms/nvidia*.ko*; do break; done
    [ -f "$kept_file" ] || continue
    rm -rf "$G/modules/$kept_kernel"
    mkdir -p "$G/modules/$kept_kernel" &&
      cp -p "${kept_file%/*}"/nvidia*.ko* "$G/modules/$kept_kernel/" ||
      rm -rf "$G/modules/$kept_kernel"
  done
}
modules_back() { # kernel...: where none is left, what was kept; says so
  for kept_kernel; do
    depmod "$kept_kernel" || :
    [ -z "$(have "$kept_kernel")" ] || continue
    kept_folder=/lib/modules/$kept_kernel/updates/dkms
    if [ -d "$G/modules/$kept_kernel" ]; then
      mkdir -p "$kept_folder" && cp -p "$G/modules/$kept_kernel"/* "$kept_folder/" &&
        sync "$kept_folder"/nvidia*.ko* &&
        depmod "$kept_kernel" || :
    fi
    module_back=$(have "$kept_kernel")
    if [ -n "$module_back" ]; then
      echo "Kernel $kept_kernel has the files of its module $module_back back;" \
        "that could not be rebuilt either."
    else
      echo "No nvidia module is left for kernel $kept_kernel, and what was there before could not" \
        "be put back: its next boot has no driver."
    fi
  done
  rm -rf "$G/modules"
}
