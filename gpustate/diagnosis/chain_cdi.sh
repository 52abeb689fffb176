# shellcheck shell=sh
# Prints cdi_kept=1 where a service writes a specification at boot; cdi=FILE, its device= names,
# number= for each device node with its numbers in it, and missing= for each path in it that is not
# there, or is an empty file. Expects cdi_specs.sh.
for f in /etc/systemd/system/*.wants/nvidia-cdi-refresh.* \
  /etc/systemd/system/*.wants/gpustate-cdi-refresh.service; do
  [ ! -L "$f" ] || echo cdi_kept=1
done
cdi_specs | while read -r f; do
  printf 'cdi=%s\n' "$f"
  cdi_lines "$f" |
    sed -n 's/^[- ]*"\{0,1\}name"\{0,1\}: *"\{0,1\}\([^", ]*\)"\{0,1\},\{0,1\}$/device=\1/p'
  cdi_lines "$f" | tr -d '",' | awk '{ sub(/^[ \t-]*/, ""); sub(/: */, ": ") }
    /^path:/ { path = $2; major = "" } /^major:/ { major = $2 }
    /^minor:/ {
      if (major != "" && path ~ /\/dev\//) print "number=" path "|" major ":" $2
      major = ""
    }'
  cdi_lost "$f" | sed 's/^/missing=/'
done
