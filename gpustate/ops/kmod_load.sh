# shellcheck shell=sh
# Loads the module @MODULE@, and rebuilds it where the kernel refuses it. @UNDER@ is its name with
# underscores, @SOURCE@ a pattern of what DKMS calls its source, @VERSION@ that of the source.
# Expects kmod_build.sh.
if module_loaded @UNDER@; then
  effect same
  exit 0
fi
# Its package may have had it built where DKMS does not sign.
sign_made "$(uname -r)" /nonexistent @MODULE@
said=$(modprobe @MODULE@ 2>&1) || {
  echo "$said; rebuilding it"
  rebuild_module '@SOURCE@' @VERSION@ "$(uname -r)" @MODULE@
  said=$(modprobe @MODULE@ 2>&1) || fail "$said (rebuilt for the driver that is loaded; see dmesg)"
}
effect loaded
