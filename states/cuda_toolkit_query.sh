# shellcheck shell=sh
# Defines cuda_query, which prints the output of update-alternatives --query. RHEL has no such
# option and keeps the same in a file. Reads GROUP and LINK.
cuda_query() {
  { [ -e "/var/lib/dpkg/alternatives/$GROUP" ] || [ ! -d /var/lib/dpkg/alternatives ]; } &&
    update-alternatives --query "$GROUP" 2>/dev/null && return 0
  alternatives_file=/var/lib/alternatives/$GROUP
  mode=
  { read -r mode <"$alternatives_file"; } 2>/dev/null || return 1
  printf 'Name: %s\nLink: %s\nStatus: %s\nValue: %s\n' "$GROUP" "$LINK" "$mode" \
    "$(readlink "/etc/alternatives/$GROUP")"
  sed -n "3,\$s|^$LINK-[0-9].*|Alternative: &|p" "$alternatives_file"
}
