# shellcheck shell=sh
# Defines coming: prints new or moved, name and version of each package that a transaction of PM
# brings.
coming() {
  case $PM in
    dnf)
      # A long name has a line of its own.
      awk '/^Installing.*:$/ { on = "new"; next }
        /^(Upgrad|Downgrad|Reinstall)ing.*:$/ { on = "moved"; next }
        /^[^ ]/ { on = "" } on == "" { next }
        /^ [^ ]/ { name = ""; if (NF > 2) print on, $1, $3; else name = $1; next }
        name != "" { print on, name, $2; name = "" }' "$R/fetch.log"
      ;;
    *)
      XML=-x rpm_go --dry-run 2>/dev/null | awk '/<to-install>/ { on = "new" }
        /<to-(up|down)grade|<to-reinstall/ { on = "moved" } /<\/to-/ { on = "" }
        on != "" && /<solvable / {
          name = $0; sub(/.* name="/, "", name); sub(/".*/, "", name)
          version = $0; sub(/.* edition="/, "", version); sub(/".*/, "", version)
          print on, name, version
        }'
      ;;
  esac
}
