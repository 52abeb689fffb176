# shellcheck shell=sh
# Defines coming: prints new or moved, name, version and dnf's repository of each package that a
# transaction of PM brings. Reads dnf's output in R/fetch.log, leaves zypper's in R/coming.xml.
coming() {
  case $PM in
    dnf)
      # A long name has a line of its own.
      awk '/^Installing.*:$/ { on = "new"; next }
        /^(Upgrad|Downgrad|Reinstall)ing.*:$/ { on = "moved"; next }
        /^[^ ]/ { on = "" } on == "" || NF == 0 { next }
        NF == 1 { name = $1; next }
        name != "" { $0 = name " " $0; name = "" }
        { print on, $1 ($2 ~ /^i[356]86$/ ? "." $2 : ""), $3, $4 }' "$R/fetch.log"
      ;;
    *)
      XML=-x rpm_go --dry-run >"$R/coming.xml" 2>/dev/null </dev/null || :
      awk '/<to-install>/ { on = "new" }
        /<to-(up|down)grade|<to-reinstall/ { on = "moved" } /<\/to-/ { on = "" }
        on != "" && /<solvable / {
          name = $0; sub(/.* name="/, "", name); sub(/".*/, "", name)
          version = $0; sub(/.* edition="/, "", version); sub(/".*/, "", version)
          print on, name, version
        }' "$R/coming.xml"
      ;;
  esac
}
