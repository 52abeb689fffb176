# shellcheck shell=sh
# Prints MicroK8s' template, what was rendered from it and what its containerd says, as rows. Reads
# CONTAINERD (the program), TEMPLATE, RENDERED, SOCKET and OWED (a note about it). It comes after
# unit_command and the functions blob, known, print_blobs, odd and cri_says.
[ ! -x "$CONTAINERD" ] || odd "$TEMPLATE" || exit 0
[ -f "$TEMPLATE" ] || exit 0
blob file "$TEMPLATE" "$TEMPLATE"
[ -f "$RENDERED" ] && blob file "$RENDERED" "$RENDERED"
known "$TEMPLATE"
print_blobs
[ -e "$OWED" ] && echo owed=1
version=$(timeout -k 2 20 "$CONTAINERD" --version)
version=${version#* }
version=${version#* }
version=${version%% *}
echo "version=${version#v}"
[ "${active_state-}" != active ] || [ -n "${hangs-}" ] || cri_says "$SOCKET"
