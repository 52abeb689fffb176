# shellcheck shell=sh
# Prints beside=FOREIGN|OWN for each library whose link leads to a file of no package, with the package's file.
owned() { if command -v dpkg-query; then dpkg-query -S "*/${1##*/}"; else rpm -qf "$1"; fi; } >/dev/null 2>&1
for ln in libcuda libnvidia-ml libnvidia-ptxjitcompiler; do
  for ld in /usr/lib/*-linux-gnu /usr/lib64; do
    [ -L "$ld/$ln.so.1" ] || continue
    set --; for lf in "$ld/$ln".so.[0-9]*.[0-9]* "$ld/nvidia/current/$ln".so.[0-9]*.[0-9]*; do
      [ ! -f "$lf" ] || [ -L "$lf" ] || set -- "$@" "$lf"
    done
    [ $# -gt 1 ] || continue
    lo=; ls=; for lf do
      if owned "$lf"; then lo=$lf; elif [ "$lf" -ef "$ld/$ln.so.1" ]; then ls=$lf; fi
    done
    [ -z "$lo" ] || [ -z "$ls" ] || printf 'beside=%s|%s\n' "$ls" "$lo"
  done
done
