# shellcheck shell=sh
# Defines torn, which prints package lists that apt rejects, and unmet dependencies; calls checked.
# apt reports an invalid list once, and then goes on as if the repository were empty.
torn() {
  checked | sed -nE 's/^E: //p; s/^ ([^ ]+ : .*)/unmet \1/p; s/^ +((Pre)?Depends: .*)/unmet \1/p'
  for f in $(grep -aLE '^(Package|SHA256|SHA512|SHA1|MD5Sum):' /var/lib/apt/lists/*_Packages \
    /var/lib/apt/lists/*Release 2>/dev/null); do
    [ ! -s "$f" ] || echo "$f is not a package list"
  done
}
