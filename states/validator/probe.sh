# shellcheck shell=sh
# Prints what there is of the validation: its program, its files, whether its unit is enabled,
# status files, and the record. Reads G, PROC, SYS; LINK (of the unit), STATUS (folder of status
# files).
printf 'proc=%s\nsys=%s\nstate=%s\n' "$PROC" "$SYS" "$G"
d=$G/validator
[ ! -d "$d" ] ||
  (cd "$d" && sha256sum validate validate.pyz config.json 2>/dev/null) |
  while IFS= read -r line; do printf 'program=%s\n' "$line"; done
for f in "$d" "$G/proof.json" "$G/status-files" "$G/validate.lock"; do
  [ -e "$f" ] && printf 'left=%s\n' "${f##*/}"
done
[ -L "$LINK" ] && echo enabled=1
for f in "$STATUS"/*-ready; do [ -e "$f" ] && printf 'status=%s\n' "${f##*/}"; done
[ -s "$G/proof.json" ] && {
  printf 'proof='
  tr '\n' ' ' <"$G/proof.json"
  echo
}
:
