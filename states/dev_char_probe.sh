# shellcheck shell=sh
# Prints node= for each device node, link= for each link below /dev/char, exposed= for each container that would lose its GPUs.
# Calls nodes and gpu_scopes.
# shellcheck disable=SC2046 # paths of device nodes have no spaces
set -- $(nodes)
[ $# = 0 ] || stat -c 'node=%n %t %T' "$@"
find /dev/char -maxdepth 1 -type l -lname '*nvidia*' -printf 'link=%f %l\n' 2>/dev/null
gpu_scopes | while IFS= read -r s; do echo "exposed=$s"; done
:
