# shellcheck shell=sh
# Validates every GPU of this node. Reads FOLDER, in which the programs and config.json are; arguments are those of
# validate.py.
for n in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
  p=$(command -v $n) && "$p" -I -S -c 'import sys, ctypes, hashlib, json, subprocess; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
  p=
done
[ -n "$p" ] || {
  v=$(python3 --version 2>/dev/null)
  echo "validation needs python3 3.9 or newer, complete (not python3-minimal); this node has ${v:-none}; install python3, or beside an older one python39 or python311"
  exit 69
}
exec "$p" -I -S -B "$FOLDER"/validate.pyz validate --config "$FOLDER"/config.json "$@"
