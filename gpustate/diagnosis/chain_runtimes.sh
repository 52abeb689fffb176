# shellcheck shell=sh
# Prints the toolkit, container runtimes and their handlers. Expects chain_driver.sh and cri_says.
unusable() { # program
  printf '%s\n' "$PATH" | tr : '\n' | while read -r folder; do
    if [ -e "$folder/$1" ]; then
      stat -L -c "odd=$1|$folder/$1 is a %F of mode %a, which nobody can run" "$folder/$1"
      break
    elif [ -L "$folder/$1" ]; then
      dangling "$1" "$folder/$1"
      break
    fi
  done
}
version() { # key program
  program_path=$(command -v "$2") || {
    unusable "$2"
    return 0
  }
  # Where Kubernetes brings a runc of its own, its containerd finds it, and so has this one to.
  output=$(
    PATH=$PATH:/var/lib/rancher/k3s/data/current/bin:/var/lib/rancher/rke2/bin:/var/lib/k0s/bin
    PATH=$PATH:/snap/microk8s/current/bin
    timeout -k 2 ${limit:-15} "$2" --version 2>&1
  )
  status=$?
  # One that says its version first and then fails says why at the end.
  case $status:${output%%"$nl"*} in 0:*) ;; *" version "*) output=${output##*"$nl"} ;; esac
  # NVIDIA's runtime asks runc.
  [ $status = 0 ] || [ $1 != runtime_binary ] || ! command -v runc >/dev/null ||
    timeout -k 2 ${limit:-15} runc --version >/dev/null 2>&1 ||
    output="$(command -v runc) fails: $output"
  printf '%s=%s|%s|%s\n' "$1" "$program_path" $status "${output%%"$nl"*}"
}
version ctk nvidia-ctk
version runtime_binary nvidia-container-runtime
sed -n 's/^ *mode *= *"\(.*\)".*/runtime_mode=\1/p' /etc/nvidia-container-runtime/config.toml
for f in "$G"/*.served "$G"/docker.ours; do
  [ ! -f "$f" ] || {
    handler=
    case $f in *.served) read -r handler <"$f" ;; esac
    f=${f##*/}
    printf 'served=%s|%s\n' "${f%.*}" "$handler"
  }
done
used() { # program unit...: one runs or starts at boot, or gpustate has configured the first
  command -v "$1" >/dev/null || return 1
  [ -d /run/systemd/system ] && [ ! -f "$G/$2.served" ] && [ ! -f "$G/$2.ours" ] || return 0
  shift
  for unit; do systemctl is-active -q "$unit" || systemctl is-enabled -q "$unit" && return 0; done
  return 1
}
# down unit...: the first does not run, and it has failed or none of the others starts it when it is
# needed
down() {
  unit=$1
  [ -d /run/systemd/system ] || return 0
  case $(systemctl show -p SubState --value "$unit") in
    failed | auto-restart) ;;
    *) for other; do ! systemctl is-active -q "$other" || return 0; done ;;
  esac
  echo "down=$unit"
}
! used crio crio || {
  echo other=crio
  down crio
}
! used dockerd docker docker.socket || {
  echo other=dockerd
  down docker docker.socket
}
for unit in k3s k3s-agent rke2-server rke2-agent; do
  for f in /etc/systemd/system/*.wants/$unit.service; do [ ! -L "$f" ] || down $unit; done
done
# systemd leaves out one of the units of an ordering cycle; which one differs from boot to boot.
[ ! -d /run/systemd/system ] ||
  timeout -k 2 ${limit:-15} systemd-analyze verify --man=no default.target 2>&1 | awk '
  / Found ordering cycle on / { units = "" }
  / Found (ordering cycle|dependency) on / {
    sub(/\/[a-z-]*$/, "")
    units = units (units == "" ? "" : " ") $NF
  }
  / deleted to break ordering cycle / { print "cycle=" units }'
for name in k3s podman; do command -v $name >/dev/null && printf 'other=%s\n' $name; done
if program_path=$(command -v containerd); then
  active=0
  command_line=
  f=
  for f in /etc/systemd/system/*.wants/containerd.service; do
    [ ! -L "$f" ] || echo containerd_enabled=1
  done
  f=
  if [ -d /run/systemd/system ]; then
    while IFS= read -r line; do
      case $line in
        ActiveState=active | ActiveState=reloading) active=1 ;;
        ExecStart=*)
          command_line=${line#*argv\[\]=}
          command_line=${command_line%% ; *}
          ;;
      esac
    done <<END
$(systemctl show -p ActiveState,ExecStart containerd)
END
    set -f
    set -- $command_line
    set +f
    while [ $# -gt 1 ]; do
      shift
      case $1 in -c | --config) f=${2-} ;; -c=* | --config=*) f=${1#*=} ;; esac
    done
    # Of another program -c may mean anything.
    case $f in
      /etc/containerd/config.toml) f= ;;
      /*) printf 'containerd_config=%s\n' "$f" ;;
      *) f= ;;
    esac
  elif [ -S /run/containerd/containerd.sock ]; then
    active=1
  fi
  output=$(timeout -k 2 ${limit:-15} containerd ${f:+--config "$f"} config dump 2>&1)
  status=$?
  error=
  [ $status = 0 ] || error=$(printf '%s' "$output" | tail -n 1)
  printf 'containerd=%s|%s|%s|%s\n' "$program_path" $active $status "$error"
  [ $status != 0 ] || printf '%s\n' "$output" | awk '
    /^[ \t]*\[/ { handler = $0; gsub(/[\047" \t]/, "", handler) }
    /^[ \t]*[Bb]inaryName[ \t]*=/ && handler ~ /\.runtimes\.[^.]+\.options\]$/ {
      sub(/^[^=]*=[ \t]*/, ""); gsub(/["\047]/, "")
      sub(/^.*\.runtimes\./, "", handler); sub(/\.options\]$/, "", handler)
      if ($0 != "") print handler, $0
    }' | while read -r handler binary; do
    present=0
    command -v "$binary" >/dev/null && present=1
    printf 'handler=%s|%s|%s\n' "$handler" "$binary" $present
  done
  [ $status != 0 ] ||
    printf '%s\n' "$output" |
    sed -n 's/^disabled_plugins *= */containerd_disabled=/p
      s/^ *default_runtime_name *= *["\x27]\(.*\)["\x27]$/containerd_default=\1/p'
  socket=$(printf '%s\n' "$output" |
    sed -n "/^ *\[grpc\]/,/^ *\[[^g]/s/^ *address *= *[\"']\([^\"']*\).*/\1/p" | head -n 1)
  [ -n "$socket" ] || socket=/run/containerd/containerd.sock
  [ $active = 0 ] || cri_says "$socket"
fi
[ ! -S /var/run/crio/crio.sock ] || ! command -v crio >/dev/null ||
  cri_says /var/run/crio/crio.sock | sed 's/^/crio_/'
