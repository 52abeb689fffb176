"""The sh fragment that looks for traces of known problems; it prints lines ``key=value`` and only reads.

Every program has two seconds, an exporter five, and ``walk`` puts a limit around the whole, so that a node on which something
hangs is explained anyway, with less.

Surprising: /proc/keys names enrolled Secure Boot keys without any tool; a make.log lies in a DKMS tree only
while its build has failed, for a good one is moved away.

Sources:
    systemctl(1), show; dkms(8); keyrings(7), proc_keys(5); mokutil(1); apt(8), history.log.
    UEFI specification: SecureBoot is one byte behind four bytes of attributes.
    kubernetes/kubernetes, pkg/kubelet/cm/devicemanager/checkpoint: RegisteredDevices.
    NVIDIA/gpu-operator#2781: SW_MNG in the VPD of the network function that manages NVLink 5 switches.
    proc_pid_stat(5): T is stopped by a signal, t by a debugger; NVIDIA/dcgm-exporter, README: flags and variables.
    systemd, org.freedesktop.systemd1: UnitsLoadTimestamp is the time of the last (re)load of units.
"""

from __future__ import annotations

from gpustate.formats import dkms, modprobe
from gpustate.formats.unit_log import SAYS, TELLING
from gpustate.ops.reloads import GPU_SCOPES
from gpustate.probes import cdi_driver_files, file_owners, listeners, shadowing_libraries
from gpustate.probes.kernels import NAMES, WHOLE

#: Services whose state tells something.
UNITS = (
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvlsm.service",
    "nvidia-persistenced.service",
    "containerd.service",
    "docker.service",
    "crio.service",
    "k3s.service",
    "k3s-agent.service",
    "rke2-server.service",
    "rke2-agent.service",
    "kubelet.service",
    "nvidia-dcgm.service",
    "dcgm-exporter.service",
    "nvidia-dcgm-exporter.service",
    "slurmd.service",
    "gpustate-mps.service",
    "gpustate-mig.service",
)

_MODPROBE = (
    "options[[:space:]]+nvidia|(blacklist|install|alias)[[:space:]]+(nvidia|nouveau|nova_core)"
)
#: Seconds after which an exporter that took a request and has not begun to answer counts as hanging.
SILENT_S = 5

_START = r"""
try() { timeout -k 1 ${limit:-2} "$@" </dev/null; }
have() { command -v "$1" >/dev/null; }
k=$(uname -r); m=$(try modinfo -F version nvidia)
"""

_KERNEL = r"""
c=; read -r c <"$PROC/cmdline" && printf 'cmdline=%s\n' "$c"
v=; read -r v <"$PROC/version" && printf 'kernel_build=%s\n' "$v"
printf 'license=%s\n' "$(try modinfo -F license nvidia)"
sb=; for f in "$SYS"/firmware/efi/efivars/SecureBoot-*; do
  [ -r "$f" ] && case $(od -An -tu1 -j4 -N1 "$f") in *1) sb=1 ;; esac
done
if [ -n "$sb" ]; then
  echo secure_boot=1; printf 'signer=%s\n' "$(try modinfo -F signer nvidia)"
  while read -r _ _ _ _ _ _ _ t x; do [ "$t" = asymmetri ] && printf 'key=%s\n' "$x"; done <"$PROC/keys"
  have mokutil && try mokutil --list-new | sed -n 's/.*Subject:.*CN *= *\([^,/]*\).*/mok_new=\1/p'
fi
for d in /lib/modules/*; do
  [ -d "$d" ] || continue
  for f in "$d"/updates/dkms/nvidia*.ko* "$d"/extra/nvidia*.ko* "$d"/extra/*/nvidia.ko* "$d"/weak-updates/nvidia*.ko* \
    "$d"/kernel/nvidia-*/nvidia.ko* "$d"/kernel/drivers/video/nvidia.ko*; do
    [ -e "$f" ] && { printf 'module_for=%s\n' "${d##*/}"; break; }
  done
done
for f in /boot/vmlinuz-*; do
  d=${f##*/vmlinuz-}; [ -d "/lib/modules/$d" ] && [ "$d" != "$k" ] || continue
  grep -qsE '/nvidia(-(current|tesla|legacy)[^/:]*)?\.ko' "/lib/modules/$d/modules.dep" || printf 'bare_kernel=%s\n' "$d"
done
[ -d "/lib/modules/$k/build" ] && echo headers=1
for c in gcc cc gcc-9 gcc-10 gcc-11 gcc-12 gcc-13 gcc-14 gcc-15; do have $c && printf 'compiler=%s\n' $c; done
have dkms && try dkms status | head -n 60 | sed 's/^/dkms=/'
for f in /var/lib/dkms/nvidia*/*/build/make.log; do
  [ -f "$f" ] && grep -E '@LOG@' "$f" | head -n 40 | sed 's/^/log=/'
done
@MODPROBE@
for f in "$SYS"/bus/pci/drivers/nouveau/0*; do
  [ -e "$f" ] || continue
  i=/boot/initrd.img-$k; [ -e "$i" ] || i=/boot/initramfs-$k.img
  [ -e "$i" ] || break
  if have lsinitramfs; then try lsinitramfs "$i"; elif have lsinitrd; then try lsinitrd "$i"; fi |
    grep -q 'nouveau\.ko' && printf 'nouveau_initramfs=%s\n' "$i"
  break
done
have dmesg && try dmesg | grep -E 'NVRM|nvidia|peermem|nouveau|Lockdown' | tail -n 60 | sed 's/^/dmesg=/'
for f in /var/log/apt/history.log; do
  [ -r "$f" ] && awk 'BEGIN { RS = ""; FS = "\n" } /nvidia|libcuda/ { d = c = a = ""
    for (i = 1; i <= NF; i++) {
      if ($i ~ /^Start-Date: /) d = substr($i, 13)
      if ($i ~ /^Commandline: /) { c = substr($i, 14); gsub(/\|/, "/", c) }
      if ($i ~ /^(Upgrade|Install|Downgrade|Remove|Purge): .*(nvidia|libcuda)/) a = a substr($i, 1, 200) " "
    }
    if (a != "") last = d "|" c "|" a } END { if (last != "") print "history=" last }' "$f"
done
"""

#: While an operator's container has the modules, the node itself may have none.
_WHOLE = f"""
if [ -r "$PROC/driver/nvidia/version" ]; then (
{WHOLE}ko "$k" {NAMES} || ko "$k" nvidia-uvm nvidia-modeset || {{ echo no_module=1; exit 0; }}
whole "$k" "$p" || printf 'not_whole=%s\\n' "$wl"
) fi
"""

_HARDWARE = r"""
for d in "$SYS"/bus/pci/devices/*; do
  v=; read -r v <"$d/vendor" || continue
  [ "$v" = 0x10de ] && [ -r "$d/config" ] || continue
  case $(od -An -tx4 -N4 "$d/config") in *ffffffff) printf 'gone=%s\n' "${d##*/}" ;; esac
done
for f in "$SYS"/class/infiniband/*/device/vpd; do
  [ -r "$f" ] && grep -qa SW_MNG "$f" && { f=${f%/device/vpd}; printf 'sw_mng=%s\n' "${f##*/}"; }
done
for d in "$SYS"/class/infiniband/*; do [ -e "$d" ] && printf 'rdma=%s\n' "${d##*/}"; done
set --; for f in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm; do [ -d "$f" ] || [ ! -e "$f" ] || set -- "$@" "$f"; done
[ $# = 0 ] || stat -L -c 'device_mode=%n|%a' "$@"
grep -sE '^(DeviceFileMode|ModifyDeviceFiles|NvLinkDisable): ' "$PROC/driver/nvidia/params" | sed 's/^\([A-Za-z]*\): */params=\1|/'
for n in ib_umad mlx5_ib ib_core nvidia_peermem nvidia_uvm; do
  [ -d "$SYS/module/$n" ] || grep -qs "^$n " "$PROC/modules" || continue
  printf 'module=%s\n' $n
done
grep -D skip -Hs -E '^[[:space:]]*nvidia' /etc/modules /etc/modules-load.d/*.conf | sed 's/^\([^:]*\):[[:space:]]*/autoload=\1|/'
[ -e /etc/nvidia-imex/nodes_config.cfg ] &&
  printf 'imex_nodes=%s\n' "$(grep -D skip -c '^[[:space:]]*[0-9a-fA-F]' /etc/nvidia-imex/nodes_config.cfg)"
l=; [ -r "$PROC/driver/nvidia/version" ] && read -r l <"$PROC/driver/nvidia/version"
if [ -n "$l" ]; then case "$l " in *" $m "*) ;; *)
  try find /proc/[0-9]*/fd -lname '/dev/nvidia*' -printf '%h\n' | sort -u | head -n 20 | while read -r p; do
    p=${p%/fd}; c=; read -r c <"$p/comm"; printf 'holder=%s|%s\n' "${p##*/}" "$c"
  done ;;
esac; fi
[ ! -f "$G/mig/layout" ] || sed 's/^/mig_layout=/' "$G/mig/layout"
if have dpkg-query; then
  try dpkg-query -W -f 'installed=${Package}|${Version}|${db:Status-Abbrev}\n' 'nvidia-fabricmanager*' nvlsm 'nvidia-imex*' \
    'linux-modules-nvidia-*' 'nvidia-driver*' 'nvidia-kernel-*' 'nvidia-open*' 'cuda-drivers*' 'libcuda1'
elif have rpm; then
  try rpm -qa --qf 'installed=%{NAME}|%{VERSION}|ii \n' 'nvidia-fabric*' nvlsm 'nvidia-imex*' 'kmod-nvidia*' 'nvidia-driver*' 'nvidia-open*' 'cuda-drivers*'
fi
if [ -z "$l$m" ]; then
  have apt-cache && echo searched=1 && try apt-cache search --names-only '^(nvidia-open|nvidia-driver|nvidia-kernel-open-dkms)' |
    head -n 3 | while read -r n _; do printf 'offered=%s\n' "$n"; done
  for u in $(grep -D skip -hosE 'https?://[^] "]+' /etc/apt/sources.list.d/*nvidia* /etc/apt/sources.list.d/*cuda* | sort -u | head -n 2); do
    if have curl; then try curl -sI -o /dev/null "$u"; elif have wget; then try wget -q --spider -t 1 "$u"; fi
    case $? in 4|6|7|28|124) printf 'unreachable=%s\n' "$u" ;; esac
  done
fi
"""

_UNITS = (
    SAYS
    + r"""
exporter() { # unit pid age
  a=:9400; f=/etc/dcgm-exporter/default-counters.csv; w=; n=env; r=
  while IFS= read -r x; do
    case $n in
      env) case $x in LISTEN=*) a=${x#*=} ;; COLLECTORS=*) f=${x#*=} ;; WEB_CONFIG_FILE=*) w=1 ;; ENGINE=*) r=${x#*=} ;; */dcgm-exporter) n= ;; esac; continue ;;
      a) a=$x; n=; continue ;; f) f=$x; n=; continue ;; r) r=$x; n=; continue ;;
    esac
    case $x in
      -a|--address) n=a ;; -a=*|--address=*) a=${x#*=} ;; -f|--collectors) n=f ;; -f=*|--collectors=*) f=${x#*=} ;; --web-config-file*) w=1 ;;
      -r|--remote-hostengine-info) n=r ;; -r=*|--remote-hostengine-info=*) r=${x#*=} ;;
    esac
  done <<END
$(tr '\0' '\n' <"/proc/$2/environ" | sed -n 's/^DCGM_EXPORTER_//p; s/^DCGM_REMOTE_HOSTENGINE_INFO=/ENGINE=/p'; tr '\0' '\n' <"/proc/$2/cmdline")
END
  [ "$n" != env ] || return 0
  case $f in /*) [ ! -f "$f" ] || grep -qE '^[[:space:]]*[^#[:space:]]' "$f" || printf 'no_counters=%s|%s\n' "$1" "$f" ;; esac
  case $r in localhost:[0-9]*|127.*:[0-9]*)
    grep -qs "^ *[0-9]*: [0-9A-F]*:$(printf %04X "${r##*:}") [0-9A-F]*:0000 0A " /proc/net/tcp /proc/net/tcp6 || printf 'no_engine=%s|%s\n' "$1" "$r" ;; esac
  h=${a%:*}; case $h in ''|0.0.0.0|'[::]') h=127.0.0.1 ;; esac
  [ -z "$w" ] || return 0
  timeout -k 1 @SILENT@ bash -c 'exec 3<>"/dev/tcp/$1/$2" || exit 1; printf "GET /metrics HTTP/1.0\r\n\r\n" >&3; IFS= read -r l <&3
    case $l in *" 200"*) ;; *) exit 0 ;; esac; while IFS= read -r l <&3; do case $l in DCGM_*) exit 0 ;; esac; done; exit 3' \
    bash "$h" "${a##*:}" </dev/null >/dev/null
  # One that has just been started has nothing to tell yet.
  case $? in 124) printf 'silent=%s|%s:%s\n' "$1" "$h" "${a##*:}" ;; 3) [ "$3" -lt 60 ] || printf 'empty=%s|%s:%s\n' "$1" "$h" "${a##*:}" ;; esac
}
pipes() { # file: the folders that it names for MPS's pipes
  sed -n "s/^[[:space:]]*Environment[[:space:]]*=.*CUDA_MPS_PIPE_DIRECTORY=\([^ \"']*\).*/\1/p" "$1" | while read -r d; do printf 'mps_pipes=%s|%s\n' "$1" "$d"; done
}
if [ -d /run/systemd/system ]; then
  s=$(try systemctl show -p Id,LoadState,ActiveState,SubState,Result,UnitFileState,ActiveEnterTimestampMonotonic,ConditionResult,ConditionTimestampMonotonic,MainPID,NRestarts,InactiveExitTimestampMonotonic,DropInPaths -- @UNITS@)
  # What systemd remembers of a unit that was enabled without a reload is what it was before.
  for f in /etc/systemd/system/*.wants/*.service /etc/systemd/system/*.requires/*.service; do
    [ ! -L "$f" ] || printf 'linked=%s\n' "${f##*/}"
  done
  read -r t _ </proc/uptime; printf 'uptime=%s\n' "${t%.*}"
  printf '%s\n\n' "$s" | sed 's/^$/end=/; s/^/unit./'
  printf '%s\n' "$s" | awk 'BEGIN { RS = ""; FS = "\n" } /ActiveState=failed/ || /ActiveState=activating/ && (/SubState=auto-restart/ || /NRestarts=[1-9]/) {
    for (i = 1; i <= NF; i++) if ($i ~ /^Id=/) print substr($i, 4) }' | while read -r u; do
    printf 'why=%s|%s\n' "$u" "$(patience=2; unit_says "$u" | @TELLING@)"
    case $u in *dcgm-exporter.service)
      a=$(try systemctl show -p ExecStart --value "$u" | sed -nE 's/.* (-a|--address)[ =]([^ ]*:)?([0-9]+) .*/\3/p'); a=${a:-9400}
      hp=$(printf %04X "$a"); m=; { @LISTENER@
      } | sed "s/^listener=[^|]*|*/taken=${u%.service}|$a|/" ;;
    esac
  done
  printf '%s\n' "$s" | awk 'BEGIN { RS = ""; FS = "\n" } /ActiveState=active/ { u = p = ""
    for (i = 1; i <= NF; i++) { if ($i ~ /^Id=/) u = substr($i, 4); if ($i ~ /^MainPID=/) p = substr($i, 9) }
    if (p > 0) print u, p }' | while read -r u p; do
    l=; { read -r l <"/proc/$p/stat"; } 2>/dev/null
    case ${l##*) } in T*) printf 'halted=%s|%s\n' "${u%.service}" "$p"; continue ;; esac
    read -r t _ </proc/uptime; set -- ${l##*) }
    case $u in *dcgm-exporter.service) exporter "${u%.service}" "$p" $((${t%.*} - ${20:-0} / 100)) ;; esac
  done
  # Of a docker that does not run nothing is asked: its socket would start it.
  have docker && try systemctl is-active --quiet docker && (unset DOCKER_HOST DOCKER_CONTEXT
    try docker info --format '{{range $k, $v := .Runtimes}}docker_runtime={{$k}}{{"\n"}}{{end}}')
  printf '%s\n' "$s" | awk 'BEGIN { RS = ""; FS = "\n" } (!/ActiveState=active/ || /Id=(nvidia-dcgm|gpustate-mps).service/) && /Id=(nvidia-|dcgm-|nvlsm|gpustate-|docker|crio|containerd)/ { u = d = ""
    for (i = 1; i <= NF; i++) { if ($i ~ /^Id=/) u = substr($i, 4); if ($i ~ /^DropInPaths=/) d = substr($i, 13) }
    n = split(d, f, " "); for (i = 1; i <= n; i++) print u, f[i] }' | while read -r u f; do
    case $u in gpustate-mps.service) pipes "$f"; pipes /etc/systemd/system/gpustate-mps.service ;; esac
    case ${f##*/} in gpustate*.conf) ;; *) l=$(grep -m 1 -E '^Exec[A-Za-z]*=.' "$f") && printf 'drop_in=%s|%s|%s\n' "${u%.service}" "$f" "$l" ;; esac
  done
  t=$(try systemctl show -p UnitsLoadTimestampMonotonic --value); printf 'units_loaded_us=%s\n' "$t"
  gpu_scopes | while read -r s; do
    printf 'exposed=%s|%s\n' "$s" "$(try systemctl show -p ActiveEnterTimestampMonotonic --value "$s")"
  done
fi
have ps && try ps -eo pid=,args= | grep -E '(nvidia-cuda-mps-control|nv-hostengine|dcgm-exporter|nv-fabricmanager)( |$)' | grep -v grep | sed 's/^ */process=/'
"""
)

_CONTAINERS = r"""
grep -D skip -Hs -E '^[[:space:]]*imports[[:space:]]*=' /etc/containerd/config.toml | sed 's/^[^:]*:/imports=/'
grep -D skip -ls 'nvidia-container-runtime' /etc/containerd/config.toml /etc/containerd/conf.d/*.toml /etc/crio/crio.conf.d/* /etc/docker/daemon.json |
  sed 's/^/handler_file=/'
for f in "$G"/*.served; do [ ! -f "$f" ] || { f=${f##*/}; printf 'served=%s\n' "${f%.served}"; }; done
[ -r "$G/docker.ours" ] && sed 's/^/docker_ours=/' "$G/docker.ours"
f=/etc/docker/daemon.json
[ ! -e "$f" ] || [ -f "$f" ] || stat -L -c "docker_odd=%F" "$f"
[ -e "$f" ] || [ ! -L "$f" ] || echo 'docker_odd=link that leads nowhere'
[ ! -s "$f" ] || [ ! -f "$f" ] || [ "$(wc -c <"$f")" -gt 65536 ] || { sed 's/^/docker_config=/' "$f"; echo; }
# docker before 23 cannot be asked.
if [ -e "$f" ] && have dockerd && ! o=$(try dockerd --validate --config-file "$f" 2>&1); then
  case $o in *'unknown flag'*|'') ;; *) printf 'docker_refuses=%s\n' "$(printf '%s\n' "$o" | tail -n 1)" ;; esac
fi
if have crio; then
  set --; [ ! -e /etc/crio/crio.conf ] || set -- --config /etc/crio/crio.conf
  if o=$(try crio "$@" --config-dir /etc/crio/crio.conf.d config 2>&1); then
    printf 'crio_handlers=%s\n' "$(printf '%s\n' "$o" | grep -cE '^[[:space:]]*runtime_path = ".*/nvidia-container-runtime')"
  else printf 'crio_refuses=%s\n' "$(printf '%s\n' "$o" | tail -n 1)"; fi
fi
for d in k3s rke2; do
  f=/var/lib/rancher/$d/agent/etc/containerd
  for t in "$f"/config.toml.tmpl "$f"/config-v3.toml.tmpl; do [ -e "$t" ] && printf 'template=%s\n' "$t"; done
  [ -e "$f/config.toml" ] && printf 'rancher=%s|%s\n' "$d" "$(grep -D skip -c 'runtimes\.["'\'']*nvidia' "$f/config.toml")"
done
for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -f "$f" ] && grep -Eq '"?kind"?: *"?nvidia\.com/gpu"?,?$' "$f" || continue
  tr -d '",' <"$f" | awk -v f="$f" '{ sub(/^[ \t-]*/, "") }
    /^path:/ { p = $2; a = "" } /^major:/ { a = $2 } /^minor:/ { if (a != "" && p ~ /\/dev\//) print "cdi_number=" f "|" p "|" a "|" $2; a = "" }'
done
m=$(for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -f "$f" ] && grep -q 'nvidia\.com/gpu' "$f" || continue
  sed -n 's/^[- ]*"\{0,1\}\(hostPath\|path\)"\{0,1\}: *"\{0,1\}\([^",]*\)"\{0,1\},\{0,1\}$/\2/p' "$f"
done | sort -u | while read -r p; do [ -e "$p" ] || echo "$p"; done)
[ -z "$m" ] || owners $m | sed 's/^/owned=/'
f=/etc/nvidia-container-runtime/config.toml
if [ -f "$f" ]; then
  [ "$(wc -c <"$f")" -gt 65536 ] || { echo toolkit_config=; sed 's/^/toolkit_config=/' "$f"; echo; }
elif [ -e "$f" ]; then printf 'no_file=%s|%s\n' "$f" "$(stat -c %F "$f")"; fi
n=0
for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -e "$f" ] || continue
  ours=; case ${f##*/} in nvidia.yaml|nvidia.json) ours=1 ;; esac
  [ -f "$f" ] || { [ -z "$ours" ] || printf 'no_file=%s|%s\n' "$f" "$(stat -L -c %F "$f")"; continue; }
  [ -n "$ours" ] || grep -q 'nvidia\.com/gpu' "$f" || continue
  stat -L -c 'cdi_mode=%n|%a' "$f"
  n=$((n + 1)); [ "$(wc -c <"$f")" -gt 400000 ] || { printf 'cdi_file=%s|%s\n' $n "$f"; sed "s/^/cdi_text=$n|/" "$f"; echo; }
done
for f in /etc/cdi /var/run/cdi; do [ ! -d "$f" ] || stat -L -c 'cdi_mode=%n|%a' "$f"; done
for k in "$G"/originals/*.path; do
  [ -f "$k" ] || continue
  p=; IFS= read -r p <"$k"
  case $p in
    */etc/containerd/*|*/etc/nvidia-container-runtime/*|*/etc/crio/*|*/etc/docker/daemon.json)
      if [ -f "${k%.path}" ]; then printf 'kept=%s|%s\n' "$p" "${k%.path}"; else printf 'kept=%s|\n' "$p"; fi ;;
  esac
done
"""

_CLUSTER = r"""
d=/var/lib/kubelet/device-plugins
[ -d "$d" ] && echo kubelet_folder=1
set --; for f in "$d"/*.sock; do [ -e "$f" ] && set -- "$@" "$f"; done
[ $# = 0 ] || stat -c 'socket=%n|%Y' "$@"
[ -r "$d/kubelet_internal_checkpoint" ] &&
  { tr -d '\n' <"$d/kubelet_internal_checkpoint"; echo; } | sed -n 's/.*"RegisteredDevices": *\({[^}]*}\).*/registered=\1/p'
for f in /var/log/pods/*nvidia-device-plugin*; do
  [ -d "$f" ] || continue
  printf 'plugin_pod=%s\n' "${f##*/}"
  for g in "$f"/*/*.log; do [ -f "$g" ] && printf 'plugin_log=%s\n' "$(tail -n 1 "$g" | cut -c 1-300)"; done
done
n=; read -r n </proc/sys/kernel/hostname
for f in /etc/kubernetes/kubelet.conf /var/lib/rancher/k3s/agent/kubelet.kubeconfig /var/lib/rancher/rke2/agent/kubelet.kubeconfig; do
  [ -r "$f" ] || continue
  set -- kubectl; have k3s && set -- k3s kubectl; [ -x /var/lib/rancher/rke2/bin/kubectl ] && set -- /var/lib/rancher/rke2/bin/kubectl
  o=$(try "$@" --kubeconfig="$f" --request-timeout=2s get node "$n" -o json) && printf 'kube_node=%s\n' "$(printf '%s' "$o" | tr '\n' ' ')"
  break
done
have scontrol && try scontrol show node "${n%%.*}" -o | sed 's/^/slurm=/'
[ -f /etc/slurm/gres.conf ] && grep -Eq '^[^#]*Name=gpu' /etc/slurm/gres.conf && echo slurm_gres=1
for f in /run/nvidia /run/nvidia/validations; do
  if [ -e "$f" ]; then [ -d "$f" ] || printf 'no_folder=%s|a %s\n' "$f" "$(stat -c %F "$f")"
  elif [ -L "$f" ]; then printf 'no_folder=%s|a link to %s, which does not exist\n' "$f" "$(readlink "$f")"; fi
done
grep -qs '"status_files": true' "$G/validator/config.json" && echo results_wanted=1
for f in /run/nvidia/validations/*-ready; do [ -e "$f" ] && printf 'status_file=%s\n' "${f##*/}"; done
[ -e /run/nvidia/validations/.driver-ctr-ready ] && echo operator_driver=1
for f in /etc/kubernetes/node-feature-discovery/features.d/*; do
  [ -f "$f" ] && sed -n 's/^nvidia\.com\/\(gpu\.count\|gpu\.product\)=/label=\1|/p' "$f"
done
f=/etc/nvidia-device-plugin/config.yaml
[ -f "$f" ] && { echo plugin_config=; head -c 65536 "$f" | sed 's/^/plugin_config=/'; echo; }
grep -hs -E 'systemctl.*(stop|restart).*kubelet|kubelet' /etc/nvidia-mig-manager/hooks.yaml | head -n 2 | sed 's/^ */mig_hook=/'
for d in "$G"/runs/*; do [ -e "$d/journal" ] && ! grep -qs '"e": *"end"' "$d/journal" && printf 'open_run=%s\n' "${d##*/}"; done
echo complete=1
"""

SCRIPT = (
    GPU_SCOPES
    + file_owners.SCRIPT
    + _START
    + _KERNEL.replace("@LOG@", dkms.INTERESTING_ERE).replace(
        "@MODPROBE@", modprobe.lines(_MODPROBE)
    )
    + _WHOLE
    + shadowing_libraries.SCRIPT
    + _HARDWARE
    + _UNITS.replace("@UNITS@", " ".join(UNITS))
    .replace("@TELLING@", TELLING)
    .replace("@LISTENER@", listeners.script())
    .replace("@SILENT@", str(SILENT_S))
    + _CONTAINERS
    + cdi_driver_files.SCRIPT
    + _CLUSTER
)
