# shellcheck shell=sh
# Prints beside=FOREIGN|OWN for each library whose link leads to a file of no package, with the
# package's file.
owned() {
  if command -v dpkg-query; then dpkg-query -S "*/${1##*/}"; else rpm -qf "$1"; fi
} >/dev/null 2>&1
for library in libcuda libnvidia-ml libnvidia-ptxjitcompiler; do
  for library_folder in /usr/lib/*-linux-gnu /usr/lib64; do
    [ -L "$library_folder/$library.so.1" ] || continue
    set --
    for library_file in "$library_folder/$library".so.[0-9]*.[0-9]* \
      "$library_folder/nvidia/current/$library".so.[0-9]*.[0-9]*; do
      [ ! -f "$library_file" ] || [ -L "$library_file" ] || set -- "$@" "$library_file"
    done
    [ $# -gt 1 ] || continue
    owned_file=
    foreign_file=
    for library_file; do
      if owned "$library_file"; then
        owned_file=$library_file
      elif [ "$library_file" -ef "$library_folder/$library.so.1" ]; then
        foreign_file=$library_file
      fi
    done
    [ -z "$owned_file" ] || [ -z "$foreign_file" ] ||
      printf 'beside=%s|%s\n' "$foreign_file" "$owned_file"
  done
done
