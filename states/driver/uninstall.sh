# shellcheck shell=sh
# Removes the driver with NVIDIA's own UNINSTALLER, whose exit code is 0 even if it fails. Reads R.
[ -x "$UNINSTALLER" ] || {
  effect same
  exit 0
}
timeout -k 10 900 "$UNINSTALLER" --silent >"$R/uninstall.log" 2>&1 </dev/null || code=$?
[ ! -e "$UNINSTALLER" ] || {
  tail -n 15 "$R/uninstall.log"
  fail "$UNINSTALLER --silent did not remove the driver (exit code ${code:-0});" \
    "see /var/log/nvidia-uninstall.log on the node"
}
effect uninstalled
