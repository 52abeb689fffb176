# shellcheck shell=sh
# Validates every GPU of this node. Reads FOLDER, in which the programs and config.json are; arguments are those of
# validate.py.
p=$(command -v python3) && "$p" -I -S -c 'import ctypes, hashlib, json, subprocess' 2>/dev/null || {
  echo "validation needs python3, which is missing or incomplete (python3-minimal); install python3"
  exit 69
}
exec "$p" -I -S -B "$FOLDER"/gpustate/nodeside/validate.py --config "$FOLDER"/config.json "$@"
