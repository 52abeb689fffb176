# shellcheck shell=sh
# Defines configless UNIT: whether slurmd, by its service, gets its files from slurmctld.
configless() {
  {
    systemctl cat "$1"
    cat /etc/default/slurmd /etc/sysconfig/slurmd
  } 2>/dev/null |
    grep -v '^ *#' | grep -q -e --conf-server
}
