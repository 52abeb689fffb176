# shellcheck shell=sh
# Prints node= for each device node, link= for each link below /dev/char, exposed= for each
# container that would lose its GPUs, program= for each low-level runtime and systemd, with its
# version. Calls nodes and gpu_scopes.
# shellcheck disable=SC2046 # paths of device nodes have no spaces
set -- $(nodes)
[ $# = 0 ] || stat -c 'node=%n %t %T' "$@"
find /dev/char -maxdepth 1 -type l -lname '*nvidia*' -printf 'link=%f %l\n' 2>/dev/null
for program in runc crun /usr/libexec/crio/runc /usr/libexec/crio/crun \
  /var/lib/rancher/*/data/current/bin/runc \
  /var/lib/k0s/bin/runc /snap/microk8s/current/bin/runc systemctl; do
  command -v "$program" >/dev/null || continue
  timeout -k 5 10 "$program" --version 2>/dev/null </dev/null | sed -n '1s/^/program=/p'
done
gpu_scopes | while IFS= read -r scope; do echo "exposed=$scope"; done
:
