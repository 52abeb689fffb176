# shellcheck shell=sh
# Prints cdi=FILE, its device= names, and missing= for each path in it that is not there.
for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
  [ -f "$f" ] && grep -Eq '"?kind"?: *"?nvidia\.com/gpu"?,?$' "$f" || continue
  printf 'cdi=%s\n' "$f"
  sed -n 's/^[- ]*"\{0,1\}name"\{0,1\}: *"\{0,1\}\([^", ]*\)"\{0,1\},\{0,1\}$/device=\1/p' "$f"
  sed -n 's/^[- ]*"\{0,1\}\(hostPath\|path\)"\{0,1\}: *"\{0,1\}\([^",]*\)"\{0,1\},\{0,1\}$/\2/p' "$f" | sort -u |
    while read -r p; do [ -e "$p" ] || printf 'missing=%s\n' "$p"; done
done
