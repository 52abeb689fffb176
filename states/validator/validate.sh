# shellcheck shell=sh
# Proves that every GPU of this node works. Reads FOLDER, in which the programs and config.json are; arguments are those of
# validate.py.
p=$(command -v python3) && "$p" -I -S -c 'import ctypes, hashlib, json, subprocess' 2>/dev/null || {
  echo "the proof runs in python3, which is missing here or incomplete (python3-minimal); install python3"
  exit 69
}
exec "$p" -I -S -B "$FOLDER"/gpustate/nodeside/validate.py --config "$FOLDER"/config.json "$@"
