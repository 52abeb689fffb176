# shellcheck shell=sh
# Defines apt_remnants: prints packages of which only configuration files are left, as lines of
# FORMAT that match MEMBERS, and which were removed since gpustate came to this node. Reads G.
apt_remnants() {
  remnant_since=$(stat -c %W "$G" 2>/dev/null) && [ "$remnant_since" -gt 0 ] 2>/dev/null || return 0
  dpkg-query -W -f "$FORMAT" | grep -E "$MEMBERS" |
    sed -nE 's/^([^|]*)\|([^|]*)\|.*\|.c.?$/\1 \2/p' |
    while read -r remnant_package remnant_arch; do
      # dpkg rewrites the list when it removes the package.
      for remnant_name in "$remnant_package" "$remnant_package:$remnant_arch"; do
        remnant_time=$(stat -c %Y "/var/lib/dpkg/info/$remnant_name.list" 2>/dev/null) || continue
        if [ "$remnant_time" -ge "$remnant_since" ]; then echo "$remnant_name"; fi
      done
    done
}
