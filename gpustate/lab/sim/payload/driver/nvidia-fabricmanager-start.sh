#!/bin/sh
# Simulated start script of the fabric manager.
set -eu
pid_file=/run/nvidia-fabricmanager/nv-fabricmanager.pid
mode= config=/usr/share/nvidia/nvswitch/fabricmanager.cfg
while [ $# -gt 0 ]; do
    case $1 in
    --mode) mode=$2; shift ;;
    --fm-config-file) config=$2; shift ;;
    esac
    shift
done
case $mode in
precheck) ;;
start) exec /usr/bin/nv-fabricmanager -c "$config" ;;
stop) [ ! -e "$pid_file" ] || kill -TERM "$(cat "$pid_file")" ;;
*) echo "unknown mode '$mode'" >&2; exit 2 ;;
esac
