# shellcheck shell=sh
# Finishes an interrupted package installation. Packages of NVIDIA can fail here, and are left to
# their states. Reads TORN (packages to install again) and OTHERS (pattern of packages of other
# states).
apt_wait
{
  dpkg --configure -a --force-confdef --force-confold || echo 'left for apt'
  [ -z "$TORN" ] || apt --reinstall --no-remove install $TORN || echo 'left for the next step'
  apt --no-remove -f install || echo 'apt could not settle everything'
} 2>&1 | tee "$R/settled.log"
left=$(dpkg-query -W -f '${db:Status-Abbrev}|${Package}\n' | grep -vE '^.[nci] ' | cut -d '|' -f 2 |
  grep -vE "$OTHERS") || :
[ -z "$left" ] || {
  why=$(sed -n 's/^ \(\(installed\|new\|old\) .* script .*\)/\1/p' "$R/settled.log" | head -n 1)
  echo "error: installed half-way, and not to be finished without removing others:" $left \
    ${why:+"($why)"}
  exit 1
}
effect configured
