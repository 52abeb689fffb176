# shellcheck shell=sh
# Defines forget_archives, and writes down in $R/archives which modules DKMS keeps that it found in its place and has no
# record of by that name: those of the set that is replaced, where open and proprietary ones have different names. It would put
# them back when the new ones leave.
archives() { for ar_d in /var/lib/dkms/nvidia*/original_module/*; do [ ! -d "$ar_d" ] || echo "$ar_d"; done; }
archives >"$R/archives"
forget_archives() { # kernel...: whose modules were those of the packages before
  for ar_k do for ar_d in /var/lib/dkms/nvidia*/original_module/"$ar_k"; do
    [ ! -d "$ar_d" ] || grep -qxF -e "$ar_d" "$R/archives" || rm -rf "$ar_d"
  done; done
}
