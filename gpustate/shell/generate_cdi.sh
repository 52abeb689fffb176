# shellcheck shell=sh
# Writes the CDI specification SPEC; if that fails, the shell ends.
# A .yaml in the folder itself would be read by runtimes before it is complete, and twice.
# containerd 1.7 to 2.2 and CRI-O notice a file only that is renamed within the folder, not one that
# is moved into it.
nvidia-smi -L >/dev/null 2>&1 || :
nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules >/dev/null 2>&1 || :
folder /var/run/cdi
cdi_temporary=$(mktemp -d /run/gpustate-cdi.XXXXXXXX)
cdi_new=${SPEC%/*}/.gpustate-cdi
trap 'rm -rf "$cdi_temporary" "$cdi_new"' EXIT
nvidia-ctk cdi generate --output="$cdi_temporary/nvidia.yaml" 2>"$cdi_temporary/errors" || {
  code=$?
  grep -q 'empty device edits' "$cdi_temporary/errors" &&
    fail "no GPU can be described: in MIG mode, and without MIG devices, a GPU has nothing for" \
      "containers; apply a layout with the state mig, or run nvidia-smi -mig 0"
  cat "$cdi_temporary/errors" >&2
  exit "$code"
}
[ -s "$cdi_temporary/nvidia.yaml" ] || fail "nvidia-ctk wrote no specification"
cp "$cdi_temporary/nvidia.yaml" "$cdi_new"
chmod 0644 "$cdi_new"
mv -fT "$cdi_new" "$SPEC"
