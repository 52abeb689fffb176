# shellcheck shell=sh
# Sets the kernel RELEASE as GRUB's default, after checking that the menu has it. Reads DROP_IN, the
# file with the setting.
kernel=$RELEASE
setting=$DROP_IN
menu=/boot/grub/grub.cfg
menu_id_of() { grep -oE "gnulinux-$kernel-advanced-[^'\" ]+" $menu | head -n 1; }
menu_id=$(menu_id_of)
[ -n "$menu_id" ] || {
  update-grub
  menu_id=$(menu_id_of)
}
[ -n "$menu_id" ] || fail "GRUB has no entry for $kernel in $menu; the boot default stays as it is"
submenu=
grep -q '^submenu ' $menu && submenu=gnulinux-advanced-${menu_id#*-advanced-}
menuentry=$(grep -oE "^[[:space:]]+menuentry .*$menu_id" $menu | head -n 1)
[ -n "$menuentry" ] || submenu=
folder "${setting%/*}"
keep "$setting"
printf '# Written by gpustate; changes are overwritten.\nGRUB_DEFAULT="%s"\n' \
  "${submenu:+$submenu>}$menu_id" >"$setting.new"
sync "$setting.new"
mv -f "$setting.new" "$setting"
update-grub
effect pinned
