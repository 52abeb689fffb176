#!/bin/sh
# Simulated start script of the fabric manager. On a board whose switches are behind ConnectX functions it
# wants ib_umad, waits for such a function, and starts the subnet manager first, in the same service.
set -eu
sys=/run/gpustate-lab/sys modules=/run/gpustate-lab/proc/modules
nvlsm=/opt/nvidia/nvlsm/sbin/nvlsm
run=/run/nvidia-fabricmanager
mode= config=/usr/share/nvidia/nvswitch/fabricmanager.cfg
while [ $# -gt 0 ]; do
    case $1 in
    --mode) mode=$2; shift ;;
    --fm-config-file) config=$2; shift ;;
    esac
    shift
done
nvl5() { for f in /sys/bus/pci/devices/*/vpd; do if grep -qs SW_MNG "$f"; then return 0; fi; done; return 1; }
end() { # pid file
    [ -e "$1" ] || return 0
    pid=$(cat "$1"); kill -TERM "$pid" 2>/dev/null || :
    n=0; while kill -0 "$pid" 2>/dev/null && [ $n -lt 50 ]; do n=$((n + 1)); sleep 0.1; done
}
case $mode in
precheck)
    if nvl5; then
        echo "Detected NVL5+ system"
        grep -q '^ib_umad ' "$modules" || { echo "Kernel module \"ib_umad\" has not been loaded, fabric manager cannot start" >&2; exit 1; }
    else echo "Detected Pre-NVL5 system"; fi ;;
start)
    if nvl5; then
        [ -x "$nvlsm" ] || { echo "\"$nvlsm\" does not exist, install the nvlsm package" >&2; exit 1; }
        n=0
        while guid=$(/usr/lib/gpustate-lab/python -SB /usr/lib/gpustate-lab/nvlink.py) && [ -z "$guid" ]; do
            n=$((n + 1)); [ $n -lt 60 ] || { echo "no Infiniband device manages the switches" >&2; exit 1; }
            [ -d "$sys/class/infiniband" ] || echo "Polling for at least one Infiniband device before starting Fabric Manager..."
            sleep 1
        done
        "$nvlsm" -F /usr/share/nvidia/nvlsm/nvlsm.conf -B --pid_file "$run/nvlsm.pid" -g "$guid"
        exec /usr/bin/nv-fabricmanager -c "$config" -g "$guid"
    fi
    exec /usr/bin/nv-fabricmanager -c "$config" ;;
stop)
    end "$run/nv-fabricmanager.pid"
    end "$run/nvlsm.pid" ;;
*) echo "unknown mode '$mode'" >&2; exit 2 ;;
esac
