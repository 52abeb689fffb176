# shellcheck shell=sh
# Defines build_module: it ends the shell in which it runs. Reads R; calls have, unlinked and complain.
compiler() { # kernel: the toolset that it was built with goes first, where the node has it, as Oracle's UEK needs
  set -- "$(sed -n 's/^CONFIG_CC_VERSION_TEXT="gcc (GCC) \([0-9]*\)\..*/\1/p' "/lib/modules/$1/build/.config" 2>/dev/null)"
  [ ! -d "/opt/rh/gcc-toolset-$1/root/usr/bin" ] || PATH=/opt/rh/gcc-toolset-$1/root/usr/bin:$PATH
}
build_module() { # kernel, version, version with type
  k=$1 v=$2 want=$3
  depmod "$k"; [ "$(have "$k")" != "$want" ] || { effect same; exit 0; }
  n=; for d in /usr/src/nvidia*-"$v"; do [ -e "$d/dkms.conf" ] && n=${d##*/} && n=${n%-"$v"} && break; done
  [ -n "$n" ] || fail "no DKMS source for $v below /usr/src; the package that brings it is not installed"
  unlinked "/var/lib/dkms/$n" "$k"; compiler "$k"
  made() { dkms install "$n/$v" -k "$k" >"$R/dkms.log" 2>&1; }
  # A build that DKMS cannot install is rebuilt.
  t=/var/lib/dkms/$n/$v/$k; if ! made && ! { [ -d "$t" ] && rm -rf "$t" && made; }; then
    complain "/var/lib/dkms/$n/$v/build/make.log"; tail -c 3000 "$R/dkms.log"; exit 1
  fi
  depmod "$k"
  # DKMS may believe it is installed while the file is gone.
  if [ "$(have "$k")" != "$want" ]; then dkms install --force "$n/$v" -k "$k" >>"$R/dkms.log" 2>&1 || :; depmod "$k"; fi
  if [ "$(have "$k")" != "$want" ]; then dkms remove "$n/$v" -k "$k" || :; dkms install --force "$n/$v" -k "$k"; depmod "$k"; fi
  got=$(have "$k"); [ "$got" = "$want" ] || fail "kernel $k has nvidia module ${got:-none} after the build, wanted $want"
}
