# shellcheck shell=sh
# Removes files of a damaged copy and bundles of before.
# Reads FOLDER (of this bundle), KNOWN (its files, in spaces) and LISTS (folder of package lists).
cd "$FOLDER" || exit 1
keep=${FOLDER##*/}
find . -type f -printf '%P\n' | while read -r f; do
  case $KNOWN in *" $f "*) ;; *) rm -f "$f" ;; esac
done
for d in ../[0-9a-f]*/; do [ "$d" = "../$keep/" ] || rm -rf "$d"; done
for f in "$LISTS"/*gpustate-bundle*; do
  case $f in *_"$keep"_*) ;; *) rm -f "$f" ;; esac
done
