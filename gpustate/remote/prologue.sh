# shellcheck shell=sh
# Sets the environment of everything that runs on a node: @PROC@, @SYS@ and @FOLDER@ are the roots
# of proc and sys and the state folder, @FOLDERS@ that and each folder above it, @SHARED@ variables
# that only fragments set; @BACK@ is 1 where the node goes back to before a run. Refuses a state
# folder in which another user could put what runs here, itself or by a folder above it.
LC_ALL=C
export LC_ALL
unset CDPATH LANG LANGUAGE @SHARED@
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
PROC=@PROC@ SYS=@SYS@ G=@FOLDER@ KEPT_PACKAGES=@BACK@
SHIPPED=$G/lib
export PATH PROC SYS G SHIPPED KEPT_PACKAGES
umask 022
u=$(find @FOLDERS@ -maxdepth 0 \( ! -uid 0 ! -uid "$(id -u)" -o ! -type l -perm /022 \
  ! -perm -1000 \) 2>/dev/null)
[ -z "$u" ] || {
  # shellcheck disable=SC2086 # u: a line a folder
  echo "the state folder $G is not safe: other users may change" $u"; chown them" \
    "to root and chmod go-w them, or set gpustate_state_folder" >&2
  exit 1
}
exec 2>/dev/null
