# shellcheck shell=sh
# Reads repositories that were added below T; all others are linked, and read only where a node has
# not read them. Signatures of dnf and zypper repositories are not checked, because no key may get
# into rpm's database. Only their versions are used. Reads T, pm, DNF, ZYPPER and ONLY_ADDED, with
# which the node's own sources are left alone; calls preview_failed.
unreadable() {
  preview_failed "the repository cannot be read: $(printf '%s\n' "$o" | grep -E "$1" |
    cut -c 1-400)"
}
# A fresh node has not read its own sources either, and an apply begins with that.
# shellcheck disable=SC2154 # set before, by the distribution
[ -n "${ONLY_ADDED-}" ] || case $pm in
  apt)
    for f in $(apt-get update -q --print-uris 2>/dev/null |
      sed -n "s/^'[^']*' \([^ ]*\).*/\1/p"); do
      [ ! -e "$T/lists/$f" ] && [ ! -e "$T/lists/${f%InRelease}Release" ] || continue
      o=$(timeout 100 apt-get update -q 2>&1) || unreadable '^(E|W): '
      break
    done
    ;;
  dnf)
    timeout -k 2 100 $DNF -y -q --setopt='*.metadata_expire=-1' --setopt='*.skip_if_unavailable=1' \
      --setopt=retries=1 --setopt=timeout=15 makecache >/dev/null 2>&1 || :
    ;;
  zypper) for i in $(sed -n 's/^\[\(.*\)\]$/\1/p' "$T"/repos/*.repo 2>/dev/null); do
    [ -e "$T/cache/raw/$i" ] ||
      timeout -k 2 60 $ZYPPER -n --no-gpg-checks refresh "$i" >/dev/null 2>&1 </dev/null || :
  done ;;
esac
for f in "$T"/new/*.sources; do
  [ -e "$f" ] || continue
  cp "$f" "$T/apt/sources.list.d/"
  o=$(timeout 60 apt-get update -q -o Dir::Etc::sourcelist="$f" -o Dir::Etc::sourceparts=- \
    -o APT::Get::List-Cleanup=0 -o APT::Update::Error-Mode=any 2>&1) ||
    unreadable '^(E|W): '
done
for f in "$T"/new/*.repo; do
  [ -e "$f" ] || continue
  sed 's/^repo_gpgcheck *=.*/repo_gpgcheck=0/' "$f" >"$T/repos/${f##*/}"
  i=$(sed -n 's/^\[\(.*\)\]$/\1/p' "$f")
  # shellcheck disable=SC2154 # set before, by the distribution
  case $pm in
    dnf)
      o=$(timeout -k 2 60 $DNF -y -q --repo="$i" --setopt=retries=1 --setopt=timeout=15 \
        makecache 2>&1) || unreadable '[Ee]rror'
      ;;
    *)
      o=$(timeout -k 2 60 $ZYPPER -n --no-gpg-checks refresh "$i" 2>&1 </dev/null) ||
        unreadable '[A-Za-z]'
      ;;
  esac
done
