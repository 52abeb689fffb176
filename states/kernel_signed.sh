# shellcheck shell=sh
# Sets m to the version of MODULES, a package of Ubuntu's signed modules, that is built for the driver VERSION. Reads STAYS.
m=$(apt-cache show "$MODULES" 2>/dev/null | awk -v d="(>= $VERSION)" '/^Version: /{v=$2} /^Depends: / && index($0, d) {print v; exit}')
[ -n "$m" ] || fail "no repository offers $MODULES for driver $VERSION; upgrade the driver first, or set precompiled: false; the node keeps booting $STAYS"
