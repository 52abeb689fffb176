# shellcheck shell=sh
# Prints rows key=value of the kernel's modules, clock, and room on disk, and sets inodes: those of
# package locks. Reads KERNEL_RELEASE, MARKERS: paths that tell images of clouds and vendors, and
# ROOM: folders that need room.
[ -z "${GPUSTATE_IMAGE-}" ] && [ -d "/lib/modules/${KERNEL_RELEASE-$(uname -r)}" ] && echo modules=1
inodes=
while read -r f written inode; do
  case $f in *lock*) inodes="$inodes $inode" ;; ?*) echo "written=$written" ;; esac
done <<END
$(stat -c '%n %Y %i' /var/lib/dpkg/status /etc/os-release /var/lib/dpkg/lock-frontend \
  /var/lib/dpkg/lock /var/lib/apt/lists/lock 2>/dev/null)
END
for f in /run/systemd/timesync/synchronized /run/chrony/chronyd.pid /run/chronyd.pid /run/ntpd.pid \
  /run/openntpd.pid; do
  [ -e "$f" ] && {
    echo ntp=1
    break
  }
done
python=$(readlink -f "$(command -v python3)")
echo "python=${python##*python}"
for minor in 3.14 3.13 3.12 3.11 3.10 3.9; do
  ! command -v python$minor >/dev/null || {
    echo "python=$minor"
    break
  }
done
for f in $MARKERS; do [ ! -e "$f" ] || echo "marker=$f"; done
for d in /etc /usr /var /boot; do [ ! -d $d ] || [ -w $d ] || echo "readonly=$d"; done
set --
for d in $ROOM; do [ -d "$d" ] && set -- "$@" "$d"; done
df -k --output=avail,itotal,iavail,target "$@" 2>/dev/null | {
  read -r _
  while read -r available inodes_total inodes_free mount; do
    echo "room=$1 $((available / 1024)) $mount"
    case $1:$inodes_total$inodes_free in
      /tmp* | /var/* | *:0* | *:*[!0-9]* | *:) ;;
      *) [ "$inodes_free" -ge 20000 ] || echo "inodes=$mount" ;;
    esac
    shift
  done
}
