# shellcheck shell=sh
# Removes the program, whose files are the arguments, the validation record, and status files. Reads
# G; STATUS, their folder. A validation that was killed may have left a container.
[ ! -f "$G/validator/validate" ] || sh "$G/validator/validate" --clean >/dev/null 2>&1 || :
# Only what still is what we wrote: name, inode and time are compared.
if [ -f "$G/status-files" ]; then
  while read -r name inode time; do
    f=$STATUS/$name
    if [ "$(stat -c '%i %Y' "$f" 2>/dev/null)" = "$inode $time" ]; then rm -f "$f"; fi
  done <"$G/status-files"
fi
for f; do forget_original "$f"; done
rm -rf "$G/validator" "$G/validate.lock" "$G/proof.json" "$G/status-files"
rmdir "$STATUS" /run/nvidia 2>/dev/null || :
effect removed
