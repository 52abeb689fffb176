# shellcheck shell=sh
# Validates every GPU of this node, with the programs and config.json that follow this script as JSON; arguments are those
# of validate.py. They are unpacked for the time of a validation.
for n in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
  p=$(command -v $n) && "$p" -I -S -c 'import sys, ctypes, hashlib, json, subprocess; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
  p=
done
[ -n "$p" ] || {
  v=$(python3 --version 2>/dev/null)
  echo "validation needs python3 3.9 or newer, complete (not python3-minimal); this node has ${v:-none}; install python3, or beside an older one python39 or python311"
  exit 69
}
exec "$p" -I -S -B -c '
import json, os, runpy, shutil, sys, tempfile
folder = tempfile.mkdtemp(prefix="gpustate-validate-", dir="/run" if os.path.isdir("/run") else None)
program = os.path.join(folder, "gpustate/nodeside/validate.py")
try:
    with open(sys.argv[1], encoding="ascii") as file:
        files = json.loads(file.read().partition("\n# files\n")[2])
    for name, text in files.items():
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    sys.argv = [program, "--config", os.path.join(folder, "config.json"), *sys.argv[2:]]
    runpy.run_path(program, run_name="__main__")
finally:
    shutil.rmtree(folder, ignore_errors=True)
' "$0" "$@"
