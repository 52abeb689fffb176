# shellcheck shell=sh
# Validates every GPU of this node. Reads FOLDER, in which the programs and config.json are;
# arguments are those of validate.py.
for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
  python=$(command -v $name) &&
    "$python" -I -S -c 'import sys, ctypes, hashlib, json, subprocess
sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
  python=
done
[ -n "$python" ] || {
  version=$(python3 --version 2>/dev/null)
  echo "validation needs python3 3.9 or newer, complete (not python3-minimal);" \
    "this node has ${version:-none}; install python3, or beside an older one python39 or python311"
  exit 69
}
exec "$python" -I -S -B "$FOLDER"/validate.pyz validate --config "$FOLDER"/config.json "$@"
