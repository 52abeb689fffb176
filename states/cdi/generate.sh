# shellcheck shell=sh
# Writes the specification SPEC. A file in the folder itself would be read by runtimes before it is complete, and twice.
nvidia-smi -L >/dev/null 2>&1 || :
nvidia-ctk system create-device-nodes --control-devices --load-kernel-modules >/dev/null 2>&1 || :
folder /var/run/cdi
t=$(mktemp -d /run/gpustate-cdi.XXXXXXXX)
trap 'rm -rf "$t"' EXIT
nvidia-ctk cdi generate --output="$t/nvidia.yaml" 2>"$t/errors" || {
  code=$?
  grep -q 'empty device edits' "$t/errors" && fail "no GPU can be described: in MIG mode, and without MIG devices, a GPU has nothing for containers; apply a layout with the state mig, or run nvidia-smi -mig 0"
  cat "$t/errors" >&2
  exit "$code"
}
[ -s "$t/nvidia.yaml" ] || fail "nvidia-ctk wrote no specification"
chmod 0644 "$t/nvidia.yaml"
mv -fT "$t/nvidia.yaml" "$SPEC"
effect generated
