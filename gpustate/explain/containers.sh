# shellcheck shell=sh
# Prints handlers of container runtimes, CDI specifications, the toolkit's configuration and kept
# originals. Expects kernel.sh, cdi_specs.sh and owners.
grep -D skip -Hs -E '^[[:space:]]*imports[[:space:]]*=' /etc/containerd/config.toml |
  sed 's/^[^:]*:/imports=/'
grep -D skip -ls 'nvidia-container-runtime' /etc/containerd/config.toml \
  /etc/containerd/conf.d/*.toml /etc/crio/crio.conf.d/* /etc/docker/daemon.json |
  sed 's/^/handler_file=/'
for f in /etc/containerd/config.toml /etc/containerd/conf.d/*.toml; do
  [ ! -f "$f" ] || awk -v file="$f" '
    /^# BEGIN gpustate/ { begin = NR }
    /^# END gpustate/ { begin = 0 }
    END { if (begin) print "unclosed=" file ":" begin }' "$f"
done
[ -r "$G/docker.ours" ] && sed 's/^/docker_ours=/' "$G/docker.ours"
f=/etc/docker/daemon.json
# docker before 23 cannot be asked.
if [ -e "$f" ] && have dockerd && ! answer=$(try dockerd --validate --config-file "$f" 2>&1); then
  case $answer in
    *'unknown flag'* | '') ;;
    *) printf 'docker_refuses=%s\n' "$(printf '%s\n' "$answer" | tail -n 1)" ;;
  esac
fi
if have crio; then
  set --
  [ ! -e /etc/crio/crio.conf ] || set -- --config /etc/crio/crio.conf
  answer=$(try crio "$@" --config-dir /etc/crio/crio.conf.d config 2>&1) ||
    printf 'crio_refuses=%s\n' "$(printf '%s\n' "$answer" | tail -n 1)"
fi
for distribution in k3s rke2; do
  f=/var/lib/rancher/$distribution/agent/etc/containerd
  for template in "$f"/config.toml.tmpl "$f"/config-v3.toml.tmpl; do
    [ -e "$template" ] && printf 'template=%s\n' "$template"
  done
  [ -e "$f/config.toml" ] &&
    printf 'rancher=%s|%s\n' "$distribution" \
      "$(grep -D skip -c 'runtimes\.["'\'']*nvidia' "$f/config.toml")"
done
missing=$(cdi_specs | while read -r f; do cdi_lost "$f"; done | sort -u)
[ -z "$missing" ] || owners $missing | sed 's/^/owned=/'
f=/etc/nvidia-container-runtime/config.toml
if [ -f "$f" ]; then
  stat -L -c 'toolkit_mode=%n|%a' "$f"
  [ "$(wc -c <"$f")" -gt 65536 ] || {
    echo toolkit_config=
    sed 's/^/toolkit_config=/' "$f"
    echo
  }
elif [ -e "$f" ]; then
  printf 'no_file=%s|%s\n' "$f" "$(stat -c %F "$f")"
fi
number=0
for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -e "$f" ] || continue
  ours=
  case ${f##*/} in nvidia.yaml | nvidia.json) ours=1 ;; esac
  [ -f "$f" ] || {
    [ -z "$ours" ] || printf 'no_file=%s|%s\n' "$f" "$(stat -L -c %F "$f")"
    continue
  }
  [ -n "$ours" ] || grep -q 'nvidia\.com/gpu' "$f" || continue
  stat -L -c 'cdi_mode=%n|%a' "$f"
  number=$((number + 1))
  [ "$(wc -c <"$f")" -gt 400000 ] || {
    printf 'cdi_file=%s|%s\n' $number "$f"
    sed "s/^/cdi_text=$number|/" "$f"
    echo
  }
done
for f in /etc/cdi /var/run/cdi; do [ ! -d "$f" ] || stat -L -c 'cdi_mode=%n|%a' "$f"; done
for path_file in "$G"/originals/*.path; do
  [ -f "$path_file" ] || continue
  path=
  IFS= read -r path <"$path_file"
  case $path in
    */etc/containerd/* | */etc/nvidia-container-runtime/* | */etc/crio/* | */etc/docker/daemon.json)
      if [ -f "${path_file%.path}" ]; then
        printf 'kept=%s|%s\n' "$path" "${path_file%.path}"
      else
        printf 'kept=%s|\n' "$path"
      fi
      ;;
  esac
done
