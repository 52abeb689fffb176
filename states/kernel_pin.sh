# shellcheck shell=sh
# Sets the kernel RELEASE as GRUB's default, after checking that the menu has it. Reads DROP_IN, the file with the setting.
k=$RELEASE; f=$DROP_IN; m=/boot/grub/grub.cfg
entry() { grep -oE "gnulinux-$k-advanced-[^'\" ]+" $m | head -n 1; }
e=$(entry); [ -n "$e" ] || { update-grub; e=$(entry); }
[ -n "$e" ] || fail "GRUB has no entry for $k in $m; the boot default stays as it is"
s=; grep -q '^submenu ' $m && s=gnulinux-advanced-${e#*-advanced-}
p=$(grep -oE "^[[:space:]]+menuentry .*$e" $m | head -n 1); [ -n "$p" ] || s=
folder "${f%/*}"; keep "$f"
printf '# Written by gpustate; changes are overwritten.\nGRUB_DEFAULT="%s"\n' "${s:+$s>}$e" >"$f.new"; sync "$f.new"; mv -f "$f.new" "$f"
update-grub; effect pinned
