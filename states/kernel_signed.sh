# shellcheck shell=sh
# Sets signed_version to the version of MODULES, a package of Ubuntu's signed modules, that is built
# for the driver VERSION. Reads STAYS.
signed_version=$(apt-cache show "$MODULES" 2>/dev/null |
  awk -v d="(>= $VERSION)" '/^Version: /{v=$2} /^Depends: / && index($0, d) {print v; exit}')
[ -n "$signed_version" ] ||
  fail "no repository offers $MODULES for driver $VERSION; upgrade the driver first," \
    "or set precompiled: false; the node keeps booting $STAYS"
