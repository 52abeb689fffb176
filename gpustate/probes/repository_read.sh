# shellcheck shell=sh
# Reads repositories that were added below T; all others are linked, and read only where a node has
# not read them. Signatures of dnf and zypper repositories are not checked, because no key may get
# into rpm's database. Only their versions are used. Reads T, pm, DNF, ZYPPER and ONLY_ADDED, with
# which the node's own sources are left alone, and UNREAD, addresses of those that are left out;
# calls preview_failed.
unreadable() {
  preview_failed "${2:-the repository} cannot be read: $(printf '%s\n' "$output" | grep -E "$1" |
    cut -c 1-400)"
}
# Prints =source ADDRESS|PLACES|REASON for each of the node's own sources in lines of the output
# that begin with $1.
name_sources() {
  printf '%s\n' "$output" | grep -E "^($1)" |
    sed -nE "s#.*\b([a-z+]+://[^' ]+) *([^ ]* *(In)?Release['.:]* )?(.*)#\1 \4#p" |
    while read -r address reason; do
      while ! places=$(cd "$T/apt" &&
        grep -rHnF --include='*.list' --include='*.sources' "$address" sources.list*); do
        address=${address%/*}
        case $address in *://*) ;; *) break ;; esac
      done
      places=$(printf '%s\n' "$places" | cut -d : -f 1,2 | sed 's#^.#/etc/apt/&#' | paste -sd ' ')
      [ -z "$places" ] || echo "=source $address|$places|$reason"
    done | sort -u -t '|' -k 1,1
}
# The same for dnf's output; ADDRESS is the repository's name.
name_repositories() {
  printf '%s\n' "$output" | sed -nE "/(Curl error|Status code).* for /{
      s/ for [a-z]+:.*//;s/.*- //;h}
    s/^Error: Failed to download metadata for repo '([^']+)'.*/\1/;T;G;s/\n/ /p" |
    while read -r repository reason; do
      places=$(cd "$T/repos" && grep -HnxF "[$repository]" -- *.repo | cut -d : -f 1,2 |
        sed 's#^#/etc/yum.repos.d/#' | paste -sd ' ')
      [ -z "$places" ] || echo "=source $repository|$places|$reason"
    done
}
leave_out() {
  for address; do
    for f in "$T"/apt/sources.list "$T"/apt/sources.list.d/* "$T"/repos/*.repo; do
      case $f in
        *.sources) awk -v RS= -v ORS='\n\n' -v s="$address" '!index($0, s)' "$f" >"$T/left" ;;
        *.repo)
          awk -v s="[$address]" '/^\[/ { out = $0 == s } !out' "$f" >"$T/left" 2>/dev/null
          ;;
        *) grep -vF "$address" "$f" >"$T/left" 2>/dev/null ;;
      esac
      [ ! -f "$f" ] || cat "$T/left" >"$f"
    done
  done
}
# A fresh node has not read its own sources either, and an apply begins with that.
# shellcheck disable=SC2086 # addresses
[ -n "${ONLY_ADDED-}" ] || leave_out ${UNREAD-}
# shellcheck disable=SC2154 # set before, by the distribution
[ -n "${ONLY_ADDED-}" ] || case $pm in
  apt)
    for source in $(apt-get update -q --print-uris 2>/dev/null |
      sed -n "s/^'[^']*' \([^ ]*\).*/\1/p"); do
      [ ! -e "$T/lists/$source" ] && [ ! -e "$T/lists/${source%InRelease}Release" ] || continue
      # apt has read the others nevertheless. Other warnings are no failure.
      if output=$(timeout 100 apt-get update -q 2>&1); then
        name_sources 'W: Failed to fetch '
      else
        unread=$(name_sources 'E: |W: (Failed to fetch|GPG error|OpenPGP signature) ')
        [ -n "$unread" ] || unreadable '^(E|W): ' 'a source of the node'
        echo "$unread"
      fi
      break
    done
    ;;
  dnf)
    output=$(timeout -k 2 100 $DNF -y --setopt='*.metadata_expire=-1' \
      --setopt='*.skip_if_unavailable=1' --setopt=retries=1 --setopt=timeout=15 makecache 2>&1)
    unread=$(name_repositories)
    [ -z "$unread" ] || echo "$unread"
    # shellcheck disable=SC2046 # names
    leave_out $(printf '%s\n' "$unread" | sed -n 's/^=source \([^|]*\).*/\1/p')
    ;;
  zypper)
    for repository in $(sed -n 's/^\[\(.*\)\]$/\1/p' "$T"/repos/*.repo 2>/dev/null); do
      [ -e "$T/cache/raw/$repository" ] ||
        timeout -k 2 60 $ZYPPER -n --no-gpg-checks refresh \
          "$repository" >/dev/null 2>&1 </dev/null ||
        :
    done
    ;;
esac
for source in "$T"/new/*.sources; do
  [ -e "$source" ] || continue
  cp "$source" "$T/apt/sources.list.d/"
  output=$(timeout 60 apt-get update -q -o Dir::Etc::sourcelist="$source" \
    -o Dir::Etc::sourceparts=- \
    -o APT::Get::List-Cleanup=0 -o APT::Update::Error-Mode=any 2>&1) ||
    unreadable '^(E|W): '
done
for source in "$T"/new/*.repo; do
  [ -e "$source" ] || continue
  sed 's/^repo_gpgcheck *=.*/repo_gpgcheck=0/' "$source" >"$T/repos/${source##*/}"
  repository=$(sed -n 's/^\[\(.*\)\]$/\1/p' "$source")
  # shellcheck disable=SC2154 # set before, by the distribution
  case $pm in
    dnf)
      output=$(timeout -k 2 60 $DNF -y -q --repo="$repository" --setopt=retries=1 \
        --setopt=timeout=15 \
        makecache 2>&1) || unreadable '[Ee]rror'
      ;;
    *)
      output=$(timeout -k 2 60 $ZYPPER -n --no-gpg-checks refresh "$repository" 2>&1 </dev/null) ||
        unreadable '[A-Za-z]'
      ;;
  esac
done
