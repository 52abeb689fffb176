# shellcheck shell=sh
# Prints what systemd has of @UNITS@, which are words, and how exporters answer within @SILENT@ seconds. @TELLING@ is
# an awk command, @LISTENER@ sh that prints who listens on port hp. Expects kernel.sh, unit_says and gpu_scopes.
# shellcheck disable=SC2034 # hp and m: read by @LISTENER@; patience: by unit_says
exporter() { # unit pid age
  a=:9400; f=/etc/dcgm-exporter/default-counters.csv; w=; n='env'; r=
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
  s=$(try systemctl show -p Id,LoadState,ActiveState,SubState,Result,UnitFileState,ActiveEnterTimestampMonotonic,ConditionResult,ConditionTimestampMonotonic,MainPID,NRestarts,InactiveExitTimestampMonotonic,FragmentPath,DropInPaths -- @UNITS@)
  # systemd remembers a unit whose file was removed until its next reload.
  printf '%s\n' "$s" | sed -n 's/^FragmentPath=//p' | while read -r f; do [ -z "$f" ] || [ -e "$f" ] || printf 'removed=%s\n' "${f##*/}"; done
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
      hp=$(printf %04X "$a"); m=; {
      @LISTENER@
      } | sed "s/^listener=[^|]*|*/taken=${u%.service}|$a|/" ;;
    esac
  done
  printf '%s\n' "$s" | awk 'BEGIN { RS = ""; FS = "\n" } /ActiveState=active/ { u = p = ""
    for (i = 1; i <= NF; i++) { if ($i ~ /^Id=/) u = substr($i, 4); if ($i ~ /^MainPID=/) p = substr($i, 9) }
    if (p > 0) print u, p }' | while read -r u p; do
    case $u in *dcgm-exporter.service) ;; *) continue ;; esac
    l=; { read -r l <"/proc/$p/stat"; } 2>/dev/null
    read -r t _ </proc/uptime; set -- ${l##*) }
    exporter "${u%.service}" "$p" $((${t%.*} - ${20:-0} / 100))
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
have ps && try ps -eo pid=,args= | grep -E '(nvidia-cuda-mps-control|nv-hostengine|dcgm-exporter)( |$)' | grep -v grep | sed 's/^ */process=/'
