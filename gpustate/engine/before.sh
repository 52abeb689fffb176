# shellcheck shell=sh
# Prints what each run changed from, oldest first, one line each; see before.py.
# shellcheck disable=SC2012 # in the order of time; names are those of runs
ls -1tr "$G/before" 2>/dev/null | while read -r run; do
  [ ! -f "$G/before/$run" ] || {
    cat "$G/before/$run"
    echo
  }
done
:
