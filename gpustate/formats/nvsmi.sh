# shellcheck shell=sh
# Prints the exit code on a separate line, the table of @COLUMNS@, or of @OLD_COLUMNS@ where a driver does not know
# those, then versions and MIG devices.
s() { timeout -k 2 20 nvidia-smi "$@" 2>&1; }
o=$(s --query-gpu=@COLUMNS@ --format=csv,noheader,nounits); r=$?
[ $r != 2 ] || { o=$(s --query-gpu=@OLD_COLUMNS@ --format=csv,noheader,nounits); r=$?; }
printf 'smi-status=%s\n%s\n' $r "$o"
[ $r != 0 ] || { echo smi-more; s --version; s -L; }
# Mode now and mode to come stand side by side.
case $o in *"Enabled, Enabled, "*) [ $r != 0 ] || { s mig -lgi; s mig -lci; };; esac
