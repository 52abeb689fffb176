# shellcheck shell=sh
# Defines build_module: it ends the shell in which it runs. Reads R; calls have, unlinked and
# complain.
# compiler KERNEL: the toolset that it was built with goes first, where the node has it, as Oracle's
# UEK needs
compiler() {
  set -- \
    "$(sed -n 's/^CONFIG_CC_VERSION_TEXT="gcc (GCC) \([0-9]*\)\..*/\1/p' \
      "/lib/modules/$1/build/.config" 2>/dev/null)"
  [ ! -d "/opt/rh/gcc-toolset-$1/root/usr/bin" ] || PATH=/opt/rh/gcc-toolset-$1/root/usr/bin:$PATH
}
build_module() { # kernel, version, version with type
  kernel=$1 version=$2 want=$3
  depmod "$kernel"
  [ "$(have "$kernel")" != "$want" ] || {
    effect same
    exit 0
  }
  name=
  for source in /usr/src/nvidia*-"$version"; do
    [ -e "$source/dkms.conf" ] && name=${source##*/} && name=${name%-"$version"} && break
  done
  [ -n "$name" ] ||
    fail "no DKMS source for $version below /usr/src; the package that brings it is not installed"
  unlinked "/var/lib/dkms/$name" "$kernel"
  compiler "$kernel"
  install_module() { dkms install "$name/$version" -k "$kernel" >"$R/dkms.log" 2>&1; }
  # A build that DKMS cannot install is rebuilt.
  build_folder=/var/lib/dkms/$name/$version/$kernel
  if ! install_module && ! {
    [ -d "$build_folder" ] && rm -rf "$build_folder" && install_module
  }; then
    complain "/var/lib/dkms/$name/$version/build/make.log"
    tail -c 3000 "$R/dkms.log"
    exit 1
  fi
  depmod "$kernel"
  # DKMS may believe it is installed while the file is gone.
  if [ "$(have "$kernel")" != "$want" ]; then
    dkms install --force "$name/$version" -k "$kernel" >>"$R/dkms.log" 2>&1 || :
    depmod "$kernel"
  fi
  if [ "$(have "$kernel")" != "$want" ]; then
    dkms remove "$name/$version" -k "$kernel" || :
    dkms install --force "$name/$version" -k "$kernel"
    depmod "$kernel"
  fi
  got=$(have "$kernel")
  [ "$got" = "$want" ] ||
    fail "kernel $kernel has nvidia module ${got:-none} after the build, wanted $want"
}
