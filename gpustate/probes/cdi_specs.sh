# shellcheck shell=sh
# Defines cdi_specs, which prints the files with CDI specifications for nvidia.com/gpu, and
# cdi_lines FILE, which prints such a file with a key a line, be it YAML or JSON without line
# breaks.
cdi_lines() {
  case $(head -c 64 "$1" | tr -d '[:space:]') in
    '{'*)
      tr ',{}[]' '[\n*]' <"$1"
      echo
      ;;
    *) cat "$1" ;;
  esac
}
cdi_specs() {
  for f in /etc/cdi/*.yaml /etc/cdi/*.json /var/run/cdi/*.yaml /var/run/cdi/*.json; do
    [ -f "$f" ] && cdi_lines "$f" | grep -Eq '"?kind"?: *"?nvidia\.com/gpu"?,?$' &&
      printf '%s\n' "$f"
  done
}
cdi_paths() { # file: the paths of this node that it names
  cdi_lines "$1" |
    sed -n 's/^[- ]*"\{0,1\}\(hostPath\|path\)"\{0,1\}: *"\{0,1\}\([^",]*\)"\{0,1\},\{0,1\}$/\2/p' |
    sort -u
}
cdi_lost() { # file: those of them that are not there, or are empty files
  cdi_paths "$1" | while read -r path; do
    [ -s "$path" ] || { [ -e "$path" ] && [ ! -f "$path" ]; } || echo "$path"
  done
}
