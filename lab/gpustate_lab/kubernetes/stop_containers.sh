# shellcheck shell=sh
# Ends the containers of a node that goes down, while its runtime still runs. What ignores SIGTERM would hold up a reboot for
# a minute and a half: systemd stops the runtime, and leaves its containers to the end.
for signal in TERM KILL; do
    for monitor in $(pgrep -x conmon); do pkill "-$signal" -P "$monitor"; done
    for task in $(command -v ctr >/dev/null && ctr --namespace k8s.io tasks list --quiet); do
        ctr --namespace k8s.io tasks kill --all --signal "$signal" "$task"
    done
    sleep 1
done
