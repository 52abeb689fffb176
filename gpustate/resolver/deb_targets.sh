# shellcheck shell=sh
# Defines targets and content FILE: prints file, origin, suite, component and address of each index of apt. @FORMAT@ are
# words of apt-get indextargets, which code that reads them has too.
targets() {
  command -v apt-get >/dev/null || exit 69
  a=$(dpkg --print-architecture)
  apt-get indextargets --format '@FORMAT@' 'Created-By: Packages' | while IFS='|' read -r f o s c u m; do
    # For a flat repository missing fields stay as placeholders.
    case $c in *COMPONENT*) c=;; esac; case $m in "$a"|*ARCHITECTURE*) ;; *) continue;; esac
    [ ! -e "$f" ] || printf '%s|%s|%s|%s|%s\n' "$f" "$o" "$s" "$c" "$u"
  done
}
content() { case $1 in *.lz4|*.xz|*.gz|*.bz2|*.zst) /usr/lib/apt/apt-helper cat-file "$1";; *) cat "$1";; esac; }
