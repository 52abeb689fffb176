# shellcheck shell=sh
# Prints handlers of container runtimes, CDI specifications, the toolkit's configuration and kept originals. Expects
# kernel.sh, cdi_specs.sh and owners.
grep -D skip -Hs -E '^[[:space:]]*imports[[:space:]]*=' /etc/containerd/config.toml | sed 's/^[^:]*:/imports=/'
grep -D skip -ls 'nvidia-container-runtime' /etc/containerd/config.toml /etc/containerd/conf.d/*.toml /etc/crio/crio.conf.d/* /etc/docker/daemon.json |
  sed 's/^/handler_file=/'
[ -r "$G/docker.ours" ] && sed 's/^/docker_ours=/' "$G/docker.ours"
f=/etc/docker/daemon.json
# docker before 23 cannot be asked.
if [ -e "$f" ] && have dockerd && ! o=$(try dockerd --validate --config-file "$f" 2>&1); then
  case $o in *'unknown flag'*|'') ;; *) printf 'docker_refuses=%s\n' "$(printf '%s\n' "$o" | tail -n 1)" ;; esac
fi
if have crio; then
  set --; [ ! -e /etc/crio/crio.conf ] || set -- --config /etc/crio/crio.conf
  o=$(try crio "$@" --config-dir /etc/crio/crio.conf.d config 2>&1) || printf 'crio_refuses=%s\n' "$(printf '%s\n' "$o" | tail -n 1)"
fi
for d in k3s rke2; do
  f=/var/lib/rancher/$d/agent/etc/containerd
  for t in "$f"/config.toml.tmpl "$f"/config-v3.toml.tmpl; do [ -e "$t" ] && printf 'template=%s\n' "$t"; done
  [ -e "$f/config.toml" ] && printf 'rancher=%s|%s\n' "$d" "$(grep -D skip -c 'runtimes\.["'\'']*nvidia' "$f/config.toml")"
done
m=$(cdi_specs | while read -r f; do cdi_lost "$f"; done | sort -u)
[ -z "$m" ] || owners $m | sed 's/^/owned=/'
f=/etc/nvidia-container-runtime/config.toml
if [ -f "$f" ]; then
  stat -L -c 'toolkit_mode=%n|%a' "$f"
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
