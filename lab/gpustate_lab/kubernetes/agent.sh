# shellcheck shell=sh
# Runs one of NVIDIA's agents: waits for the driver, starts it again when it ended and on SIGHUP, which has it read its
# configuration. The agents do that themselves only for a file that was there when they started.
# Reads PLUGIN_CONFIGURATION and TOOLKIT_CONFIGURATION (files).
child=
trap 'again=yes; kill "$child"' HUP
trap 'kill "$child"; exit 0' TERM
# How devices are passed. containerd 1.6 leaves out what a kubelet asks of CDI without a word: there it is
# what the container toolkit accepts, which is settled once containerd has the runtime.
strategy() {
    case "$1 $(containerd --version)" in
        *gpu-feature-discovery*) ;;
        *" 1.6."* | *" v1.6."*)
            until grep -rqs nvidia-container-runtime /etc/containerd; do sleep 2; done
            if grep -q '^accept-nvidia-visible-devices-as-volume-mounts *= *true' "$TOOLKIT_CONFIGURATION"
            then echo volume-mounts
            else echo envvar
            fi ;;
        *) echo cdi-cri ;;
    esac
}
wanted=${DEVICE_LIST_STRATEGY-}
while :; do
    until [ -e /dev/nvidiactl ] && ldconfig -p | grep -q libnvidia-ml.so.1; do
        sleep 2
    done
    strategy=${wanted:-$(strategy "$1")}
    unset CONFIG_FILE
    unset DEVICE_LIST_STRATEGY
    [ -z "$strategy" ] || export DEVICE_LIST_STRATEGY="$strategy"
    if [ -e "$PLUGIN_CONFIGURATION" ]; then
        export CONFIG_FILE="$PLUGIN_CONFIGURATION"
        # The environment would win over the file.
        if grep -q deviceListStrategy "$PLUGIN_CONFIGURATION"; then unset DEVICE_LIST_STRATEGY; fi
    fi
    again=
    "$@" &
    child=$!
    wait "$child"
    status=$?
    [ -n "$again" ] || exit "$status"
    wait "$child"
done
