# shellcheck shell=sh
# Defines keep_modules and modules_back. A package's scripts remove the modules of all kernels before they build, and what
# fails to build in one version may fail in the other as well. Reads G; calls have.
keep_modules() { # kernel...: copies of what DKMS has installed, until what replaces it is built
  for km_k do
    km_f=; for km_f in /lib/modules/"$km_k"/updates/dkms/nvidia*.ko*; do break; done; [ -f "$km_f" ] || continue
    rm -rf "$G/modules/$km_k"; mkdir -p "$G/modules/$km_k" && cp -p "${km_f%/*}"/nvidia*.ko* "$G/modules/$km_k/" || rm -rf "$G/modules/$km_k"
  done
}
modules_back() { # kernel...: where none is left, what was kept; says so
  for km_k do
    depmod "$km_k" || :; [ -z "$(have "$km_k")" ] || continue
    km_d=/lib/modules/$km_k/updates/dkms
    if [ -d "$G/modules/$km_k" ]; then mkdir -p "$km_d" && cp -p "$G/modules/$km_k"/* "$km_d/" && sync "$km_d"/nvidia*.ko* && depmod "$km_k" || :; fi
    km_h=$(have "$km_k")
    if [ -n "$km_h" ]; then echo "Kernel $km_k has the files of its module $km_h back; that could not be rebuilt either."
    else echo "No nvidia module is left for kernel $km_k, and what was there before could not be put back: its next boot has no driver."; fi
  done
  rm -rf "$G/modules"
}
