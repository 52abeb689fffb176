# shellcheck shell=sh
# Ends the containers of a node that goes down, while containerd still runs. What ignores SIGTERM would hold up a reboot for
# a minute and a half: systemd stops containerd, and leaves its containers to the end.
for signal in TERM KILL; do
    for task in $(ctr --namespace k8s.io tasks list --quiet); do
        ctr --namespace k8s.io tasks kill --all --signal "$signal" "$task"
    done
    sleep 1
done
