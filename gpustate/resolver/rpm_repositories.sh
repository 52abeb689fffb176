# shellcheck shell=sh
# Prints the machine, dnf's settings, repositories, enabled streams and every cached repomd.xml. @KEEP@ is an awk program
# that leaves some settings.
command -v rpm >/dev/null && [ -d /etc/yum.repos.d ] || exit 69
printf "%s\n" "$(uname -m)"; echo "=main"
cat /etc/dnf/dnf.conf 2>/dev/null | awk '@KEEP@'; echo '=repos'
cat /etc/yum.repos.d/*.repo 2>/dev/null | awk '@KEEP@'; echo '=streams'
cat /etc/dnf/modules.d/*.module 2>/dev/null; echo
for f in /var/cache/dnf/*/repodata/repomd.xml /var/cache/libdnf5/*/repodata/repomd.xml; do
  [ -f "$f" ] && { printf "=repomd|%s|%s\n" "$(stat -c %Y "$f")" "$f"; cat "$f"; echo; }
done; true
