# shellcheck shell=sh
# Replaces the packages with their modules and ends, or continues after restoring the previous ones.
# Reads R; OWN (kernels whose module is a package); calls check_modules, which sets bad, and
# forget_archives.
if rpm_along rpm_swap; then
  bad=
  check_modules
  [ -n "$bad" ] || {
    forget_archives $OWN
    exit 0
  }
  rm -f "$R/came"
  rpm_wait && rpm_back >"$R/back.log" 2>&1 || :
  if rpm_list | cmp -s - "$R/before"; then
    # shellcheck disable=SC2034 # read by who calls
    ROLLED=1
    echo "All packages are installed as they were before."
  else
    echo "Not all packages could be put back as they were:"
    tail -c 700 "$R/back.log"
  fi
  run_again
fi
