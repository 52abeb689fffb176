# shellcheck shell=sh
# Writes the CDI specification SPEC; if that fails, the shell ends.
# A .yaml in the folder itself would be read by runtimes before it is complete, and twice.
# containerd 1.7 to 2.2 and CRI-O notice a file only that is renamed within the folder, not one that is moved into it.
nvidia-smi -L >/dev/null 2>&1 || :
nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules >/dev/null 2>&1 || :
folder /var/run/cdi
t=$(mktemp -d /run/gpustate-cdi.XXXXXXXX); n=${SPEC%/*}/.gpustate-cdi
trap 'rm -rf "$t" "$n"' EXIT
nvidia-ctk cdi generate --output="$t/nvidia.yaml" 2>"$t/errors" || {
  code=$?
  grep -q 'empty device edits' "$t/errors" && fail "no GPU can be described: in MIG mode, and without MIG devices, a GPU has nothing for containers; apply a layout with the state mig, or run nvidia-smi -mig 0"
  cat "$t/errors" >&2
  exit "$code"
}
[ -s "$t/nvidia.yaml" ] || fail "nvidia-ctk wrote no specification"
cp "$t/nvidia.yaml" "$n"
chmod 0644 "$n"
mv -fT "$n" "$SPEC"
