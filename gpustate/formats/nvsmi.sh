# shellcheck shell=sh
# Prints the exit code on a separate line, the table of @COLUMNS@, or of @OLD_COLUMNS@ where a
# driver does not know those, then versions and MIG devices.
smi() { timeout -k 2 20 nvidia-smi "$@" 2>&1; }
table=$(smi --query-gpu=@COLUMNS@ --format=csv,noheader,nounits)
status=$?
[ $status != 2 ] || {
  table=$(smi --query-gpu=@OLD_COLUMNS@ --format=csv,noheader,nounits)
  status=$?
}
printf 'smi-status=%s\n%s\n' $status "$table"
[ $status != 0 ] || {
  echo smi-more
  smi --version
  smi -L
}
# Mode now and mode to come stand side by side.
case $table in *"Enabled, Enabled, "*)
  [ $status != 0 ] || {
    smi mig -lgi
    smi mig -lci
  }
  ;;
esac
