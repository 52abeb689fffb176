# shellcheck shell=sh
# Defines coming: prints new or moved, name and version of each package that a transaction of PM brings.
coming() {
  case $PM in
    dnf) awk '/^[A-Z].*:$/ { on = /^Installing/ ? "new" : /^(Upgrad|Downgrad|Reinstall)ing/ ? "moved" : ""; next }
        /^[^ ]/ { on = "" } on == "" { next }
        /^ [^ ]/ { name = ""; if (NF > 2) print on, $1, $3; else name = $1; next } # a long name has a line of its own
        name != "" { print on, name, $2; name = "" }' "$R/fetch.log" ;;
    *) XML=-x rpm_go --dry-run 2>/dev/null | awk '/<to-install>/ { on = "new" } /<to-(up|down)grade|<to-reinstall/ { on = "moved" } /<\/to-/ { on = "" }
        on != "" && /<solvable / { n = $0; sub(/.* name="/, "", n); sub(/".*/, "", n); v = $0; sub(/.* edition="/, "", v); sub(/".*/, "", v); print on, n, v }' ;;
  esac
}
