# shellcheck shell=sh
# Defines forget_archives, and records in $R/archives which modules DKMS has archived. DKMS archives
# modules that it finds without a record: those of the replaced set, where open and proprietary ones
# have different names. It would restore them when the new ones are removed.
archives() {
  for archive in /var/lib/dkms/nvidia*/original_module/*; do
    [ ! -d "$archive" ] || echo "$archive"
  done
}
archives >"$R/archives"
forget_archives() { # kernel...: whose modules were those of the packages before
  for archived_kernel; do
    for archive in /var/lib/dkms/nvidia*/original_module/"$archived_kernel"; do
      [ ! -d "$archive" ] || grep -qxF -e "$archive" "$R/archives" || rm -rf "$archive"
    done
  done
}
