# shellcheck shell=sh
# Defines foreign_pins NAME..., which prints FILE|NAME|VERSION|PRIORITY where a file of pins that is
# not gpustate's may forbid a version: apt itself judges each file, by its pins alone. And pins_of
# NAME..., which prints these behind =pins, and behind =policy what apt says of all versions, if
# there are such files.
foreign_pins() {
  for f in /etc/apt/preferences /etc/apt/preferences.d/*; do
    # apt reads no others.
    case ${f##*/} in gpustate-* | *[!A-Za-z0-9_.-]*) continue ;; *.pref) ;; *.*) continue ;; esac
    grep -qsiE '^Pin-Priority: *(-|7(0[1-9]|[1-9])|[89][0-9]{2}|[0-9]{4})' "$f" || continue
    apt-cache -o Dir::Etc::preferences="$f" -o Dir::Etc::preferencesparts=/dev/null \
      -o APT::Default-Release= policy "$@" | awk -v file="$f" '
      /^[^ ].*:$/ { name = substr($0, 1, length($0) - 1) }
      /^ (\*\*\*|   ) [^ ]/ {
        if ($1 == "***") $1 = ""
        $0 = $0
        if ($2 < 0 || $2 > 700) print file "|" name "|" $1 "|" $2
      }'
  done
}
pins_of() {
  [ $# = 0 ] || pin_rows=$(foreign_pins "$@")
  [ -z "${pin_rows-}" ] || {
    printf '=pins\n%s\n=policy\n' "$pin_rows"
    apt-cache policy "$@"
  }
}
