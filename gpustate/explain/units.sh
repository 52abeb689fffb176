# shellcheck shell=sh
# Prints what systemd has of @UNITS@, which are words, and how exporters answer within @SILENT@
# seconds. @TELLING@ is an awk command, @LISTENER@ sh that prints who listens on port hp. Expects
# kernel.sh, unit_says and gpu_scopes.
# shellcheck disable=SC2034 # hp and m: read by @LISTENER@; patience: by unit_says
exporter() { # unit pid age
  address=:9400
  counters=/etc/dcgm-exporter/default-counters.csv
  web_config=
  next='env'
  engine=
  while IFS= read -r word; do
    case $next in
      env)
        case $word in
          LISTEN=*) address=${word#*=} ;;
          COLLECTORS=*) counters=${word#*=} ;;
          WEB_CONFIG_FILE=*) web_config=1 ;;
          ENGINE=*) engine=${word#*=} ;;
          */dcgm-exporter) next= ;;
        esac
        continue
        ;;
      address)
        address=$word
        next=
        continue
        ;;
      counters)
        counters=$word
        next=
        continue
        ;;
      engine)
        engine=$word
        next=
        continue
        ;;
    esac
    case $word in
      -a | --address) next=address ;;
      -a=* | --address=*) address=${word#*=} ;;
      -f | --collectors) next=counters ;;
      -f=* | --collectors=*) counters=${word#*=} ;;
      --web-config-file*) web_config=1 ;;
      -r | --remote-hostengine-info) next=engine ;;
      -r=* | --remote-hostengine-info=*) engine=${word#*=} ;;
    esac
  done <<END
$(
    tr '\0' '\n' <"/proc/$2/environ" |
      sed -n 's/^DCGM_EXPORTER_//p; s/^DCGM_REMOTE_HOSTENGINE_INFO=/ENGINE=/p'
    tr '\0' '\n' <"/proc/$2/cmdline"
  )
END
  [ "$next" != env ] || return 0
  case $counters in
    /*)
      [ ! -f "$counters" ] || grep -qE '^[[:space:]]*[^#[:space:]]' "$counters" ||
        printf 'no_counters=%s|%s\n' "$1" "$counters"
      ;;
  esac
  case $engine in localhost:[0-9]* | 127.*:[0-9]*)
    grep -qs "^ *[0-9]*: [0-9A-F]*:$(printf %04X "${engine##*:}") [0-9A-F]*:0000 0A " \
      /proc/net/tcp \
      /proc/net/tcp6 || printf 'no_engine=%s|%s\n' "$1" "$engine"
    ;;
  esac
  host=${address%:*}
  case $host in '' | 0.0.0.0 | '[::]') host=127.0.0.1 ;; esac
  [ -z "$web_config" ] || return 0
  timeout -k 1 @SILENT@ bash -c '
    exec 3<>"/dev/tcp/$1/$2" || exit 1
    printf "GET /metrics HTTP/1.0\r\n\r\n" >&3
    IFS= read -r line <&3
    case $line in *" 200"*) ;; *) exit 0 ;; esac
    while IFS= read -r line <&3; do case $line in DCGM_*) exit 0 ;; esac; done
    exit 3' bash "$host" "${address##*:}" </dev/null >/dev/null
  # One that has just been started has nothing to tell yet.
  case $? in
    124) printf 'silent=%s|%s:%s\n' "$1" "$host" "${address##*:}" ;;
    3) [ "$3" -lt 60 ] || printf 'empty=%s|%s:%s\n' "$1" "$host" "${address##*:}" ;;
  esac
}
pipes() { # file: the folders that it names for MPS's pipes
  sed -n "s/^[[:space:]]*Environment[[:space:]]*=.*CUDA_MPS_PIPE_DIRECTORY=\([^ \"']*\).*/\1/p" \
    "$1" | while read -r pipe_folder; do
    printf 'mps_pipes=%s|%s\n' "$1" "$pipe_folder"
  done
}
if [ -d /run/systemd/system ]; then
  shown=$(try systemctl show -p Id,LoadState,ActiveState,SubState,Result,UnitFileState \
    -p ActiveEnterTimestampMonotonic,ConditionResult,ConditionTimestampMonotonic,MainPID,NRestarts \
    -p InactiveExitTimestampMonotonic,FragmentPath,DropInPaths -- @UNITS@)
  # systemd remembers a unit whose file was removed until its next reload.
  printf '%s\n' "$shown" | sed -n 's/^FragmentPath=//p' | while read -r f; do
    [ -z "$f" ] || [ -e "$f" ] || printf 'removed=%s\n' "${f##*/}"
  done
  # What systemd remembers of a unit that was enabled without a reload is what it was before.
  for f in /etc/systemd/system/*.wants/*.service /etc/systemd/system/*.requires/*.service; do
    [ ! -L "$f" ] || printf 'linked=%s\n' "${f##*/}"
  done
  read -r uptime _ </proc/uptime
  printf 'uptime=%s\n' "${uptime%.*}"
  printf '%s\n\n' "$shown" | sed 's/^$/end=/; s/^/unit./'
  printf '%s\n' "$shown" | awk 'BEGIN { RS = ""; FS = "\n" } /ActiveState=failed/ ||
    /ActiveState=activating/ && (/SubState=auto-restart/ || /NRestarts=[1-9]/) {
    for (i = 1; i <= NF; i++) if ($i ~ /^Id=/) print substr($i, 4) }' | while read -r unit; do
    printf 'why=%s|%s\n' "$unit" "$(
      patience=2
      unit_says "$unit" | @TELLING@
    )"
    case $unit in *dcgm-exporter.service)
      port=$(try systemctl show -p ExecStart --value "$unit" |
        sed -nE 's/.* (-a|--address)[ =]([^ ]*:)?([0-9]+) .*/\3/p')
      port=${port:-9400}
      hp=$(printf %04X "$port")
      m=
      {
        @LISTENER@
      } | sed "s/^listener=[^|]*|*/taken=${unit%.service}|$port|/"
      ;;
    esac
  done
  printf '%s\n' "$shown" | awk 'BEGIN { RS = ""; FS = "\n" } /ActiveState=active/ { unit = pid = ""
    for (i = 1; i <= NF; i++) {
      if ($i ~ /^Id=/) unit = substr($i, 4)
      if ($i ~ /^MainPID=/) pid = substr($i, 9)
    }
    if (pid > 0) print unit, pid }' | while read -r unit pid; do
    case $unit in *dcgm-exporter.service) ;; *) continue ;; esac
    line=
    { read -r line <"/proc/$pid/stat"; } 2>/dev/null
    read -r uptime _ </proc/uptime
    set -- ${line##*) }
    exporter "${unit%.service}" "$pid" $((${uptime%.*} - ${20:-0} / 100))
  done
  # Of a docker that does not run nothing is asked: its socket would start it.
  have docker && try systemctl is-active --quiet docker && (
    unset DOCKER_HOST DOCKER_CONTEXT
    try docker info --format '{{range $k, $v := .Runtimes}}docker_runtime={{$k}}{{"\n"}}{{end}}'
  )
  printf '%s\n' "$shown" | awk 'BEGIN { RS = ""; FS = "\n" }
    (!/ActiveState=active/ || /Id=(nvidia-dcgm|gpustate-mps).service/) &&
    /Id=(nvidia-|dcgm-|nvlsm|gpustate-|docker|crio|containerd)/ { unit = paths = ""
    for (i = 1; i <= NF; i++) {
      if ($i ~ /^Id=/) unit = substr($i, 4)
      if ($i ~ /^DropInPaths=/) paths = substr($i, 13)
    }
    n = split(paths, path, " "); for (i = 1; i <= n; i++) print unit, path[i] }' |
    while read -r unit f; do
      case $unit in gpustate-mps.service)
        pipes "$f"
        pipes /etc/systemd/system/gpustate-mps.service
        ;;
      esac
      case ${f##*/} in
        gpustate*.conf) ;;
        *)
          line=$(grep -m 1 -E '^Exec[A-Za-z]*=.' "$f") &&
            printf 'drop_in=%s|%s|%s\n' "${unit%.service}" "$f" "$line"
          ;;
      esac
    done
  uptime=$(try systemctl show -p UnitsLoadTimestampMonotonic --value)
  printf 'units_loaded_us=%s\n' "$uptime"
  gpu_scopes | while read -r shown; do
    printf 'exposed=%s|%s\n' "$shown" \
      "$(try systemctl show -p ActiveEnterTimestampMonotonic --value "$shown")"
  done
fi
have ps &&
  try ps -eo pid=,args= | grep -E '(nvidia-cuda-mps-control|nv-hostengine|dcgm-exporter)( |$)' |
  grep -v grep | sed 's/^ */process=/'
