# shellcheck shell=sh
# Rebuilds modules in DKMS's folder that DKMS has no record of. It does not install over them, and
# the package whose script builds them stays half-configured. With --force it would treat them as
# foreign and restore them whenever it removes its own. So they are deleted as soon as their
# replacements are built. Reads R; calls complain.
adopt() {
  arch=$(uname -m)
  dpkg-query -W -f '${db:Status-Status} ${Version}\n' '*nvidia*' 2>/dev/null |
    sed -n 's/^half-configured \([0-9]*:\)*//p' | sort -u | while read -r version; do
    version=${version%-*}
    for name in /usr/src/nvidia*-"$version"/dkms.conf; do
      [ -r "$name" ] || continue
      name=${name%/*}
      name=${name##*/}
      name=${name%-"$version"}
      dkms_folder=/var/lib/dkms/$name
      for kernel in /lib/modules/*/updates/dkms; do
        installed_folder=$kernel
        kernel=${kernel%/updates/dkms}
        kernel=${kernel##*/}
        set -- "$installed_folder"/nvidia*.ko*
        [ -e "$1" ] && [ -e "/lib/modules/$kernel/build/Makefile" ] &&
          [ ! -e "$dkms_folder/kernel-$kernel-$arch" ] || continue
        echo "rebuilding the modules for $kernel, of which DKMS has no record"
        dkms build "$name/$version" -k "$kernel" </dev/null >"$R/dkms.log" 2>&1 || {
          complain "$dkms_folder/$version/build/make.log"
          tail -c 2000 "$R/dkms.log"
          continue
        }
        for module in "$dkms_folder/$version/$kernel/$arch"/module/*.ko*; do
          module=${module##*/}
          rm -f "$installed_folder/${module%%.ko*}".ko*
        done
        dkms install "$name/$version" -k "$kernel" </dev/null >"$R/dkms.log" 2>&1 ||
          tail -c 2000 "$R/dkms.log"
      done
    done
  done
}
if command -v dkms >/dev/null; then (adopt); fi
