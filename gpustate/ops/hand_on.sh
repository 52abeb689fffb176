# shellcheck shell=sh
# Defines hand_on RECORD PACKAGE: the package is in the records of the others in @FOLDER@ from now
# on.
hand_on() { # own list, package
  for f in @FOLDER@/*; do
    case $f in "$1" | *.new) continue ;; esac
    [ ! -e "$f" ] || { {
      cat "$f"
      echo "$2"
    } | sort -u >"$f.new" && sync "$f.new" && mv -f "$f.new" "$f"; }
  done
}
