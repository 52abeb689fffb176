# shellcheck shell=sh
# Prints MicroK8s' template, what was rendered from it and what its containerd says, as rows. Reads CONTAINERD (the program),
# TEMPLATE, RENDERED, SOCKET and OWED (a note about it). It comes after unit_command and the functions blob, known, print_blobs, odd
# and cri_says.
[ ! -x "$CONTAINERD" ] || odd "$TEMPLATE" || exit 0
[ -f "$TEMPLATE" ] || exit 0
blob file "$TEMPLATE" "$TEMPLATE"
[ -f "$RENDERED" ] && blob file "$RENDERED" "$RENDERED"
known "$TEMPLATE"
print_blobs
[ -e "$OWED" ] && echo owed=1
v=$(timeout -k 2 20 "$CONTAINERD" --version); v=${v#* }; v=${v#* }; v=${v%% *}; echo "version=${v#v}"
[ "${ua-}" != active ] || [ -n "${hl-}" ] || cri_says "$SOCKET"
