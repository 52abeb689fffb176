# shellcheck shell=sh
# Defines forget_archives, and records in $R/archives which modules DKMS has archived. DKMS archives modules that it finds without a
# record: those of the replaced set, where open and proprietary ones have different names. It would restore them when the new ones
# are removed.
archives() { for ar_d in /var/lib/dkms/nvidia*/original_module/*; do [ ! -d "$ar_d" ] || echo "$ar_d"; done; }
archives >"$R/archives"
forget_archives() { # kernel...: whose modules were those of the packages before
  for ar_k do for ar_d in /var/lib/dkms/nvidia*/original_module/"$ar_k"; do
    [ ! -d "$ar_d" ] || grep -qxF -e "$ar_d" "$R/archives" || rm -rf "$ar_d"
  done; done
}
