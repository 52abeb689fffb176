# shellcheck shell=sh
# Defines apt_remnants: prints packages of which only configuration files are left, as lines of FORMAT that match MEMBERS, and which
# were removed since gpustate came to this node. Reads G.
apt_remnants() {
  ar_s=$(stat -c %W "$G" 2>/dev/null) && [ "$ar_s" -gt 0 ] 2>/dev/null || return 0
  dpkg-query -W -f "$FORMAT" | grep -E "$MEMBERS" | sed -nE 's/^([^|]*)\|([^|]*)\|.*\|.c.?$/\1 \2/p' | while read -r ar_p ar_a; do
    # dpkg rewrites the list when it removes the package.
    for ar_n in "$ar_p" "$ar_p:$ar_a"; do
      ar_t=$(stat -c %Y "/var/lib/dpkg/info/$ar_n.list" 2>/dev/null) || continue
      if [ "$ar_t" -ge "$ar_s" ]; then echo "$ar_n"; fi
    done
  done
}
