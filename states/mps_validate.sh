# shellcheck shell=sh
# Starts two clients of MPS side by side with the program $R/mps_validation.py, whose arguments are
# this one's, and records the result. Reads R, G; PIPES (pipe folder), PROOF (content of the
# record); calls remedy_for, which prints what helps against an error, behind a colon.
python=$(command -v python3) || fail 'validation needs python3, which is missing; install python3'
CUDA_MPS_PIPE_DIRECTORY=$PIPES
export CUDA_MPS_PIPE_DIRECTORY
rm -f "$G/mps-proof"
status=0
output=$("$python" -I -S -B "$R/mps_validation.py" "$@") || status=$?
rm -f "$R/mps_validation.py"
[ $status = 0 ] || output="$output$(remedy_for "$output")"
printf "%s\n" "$output"
[ $status = 0 ] || exit 1
printf '%s\n' "$PROOF" >"$G/mps-proof"
sync "$G/mps-proof"
effect proven
