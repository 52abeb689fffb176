# shellcheck shell=sh
# Prints what there is of Secure Boot: rows key=value, certificates, and after =enrolled, =queued,
# =keyring and =prebuilt the lists of that name; next to nothing where it is off. Reads PROC, SYS;
# PASSWORD (file), FOLDER (of gpustate's own pair), PAIRS (certificates and keys of DKMS, in turns).
on=
for f in "$SYS"/firmware/efi/efivars/SecureBoot-*; do
  [ -e "$f" ] && [ "$(od -An -t u1 -j 4 -N 1 "$f" | tr -d ' ')" = 1 ] && on=1
done
[ -n "$on" ] && echo on=1
[ -e "$PASSWORD" ] && echo untold=1
[ -e /var/lib/gpustate/brought/secure-boot ] && echo brought=1
[ -n "$on" ] || [ -e "$FOLDER" ] || exit 0
for tool in openssl mokutil; do command -v $tool >/dev/null || echo "lacks=$tool"; done
[ -e "$FOLDER/MOK.priv" ] && [ -e "$FOLDER/MOK.der" ] && echo "own=$(stat -c %a "$FOLDER/MOK.priv")"
(
  . /etc/os-release
  echo "id=$ID"
) 2>/dev/null
certificate=
key=
for f in /etc/dkms/framework.conf /etc/dkms/framework.conf.d/*.conf; do
  [ -r "$f" ] || continue
  while IFS= read -r line; do
    case $line in
      mok_certificate=*) certificate=${line#*=} ;;
      mok_signing_key=*) key=${line#*=} ;;
    esac
  done <"$f"
done
certificate=${certificate%\"}
certificate=${certificate#\"}
key=${key%\"}
key=${key#\"}
echo "conf=$certificate"
pair() { # certificate key
  [ -e "$1" ] || return 0
  has_key=
  case $2 in pkcs11:*) has_key=1 ;; *) [ -e "$2" ] && has_key=1 ;; esac
  printf 'certificate=%s|%s\n' "$1" "$has_key"
  openssl x509 -inform DER -in "$1" -noout -fingerprint -sha1 -serial -ext \
    subjectKeyIdentifier 2>/dev/null
}
set -- "$FOLDER/MOK.der" "$FOLDER/MOK.priv" $PAIRS
while [ $# -gt 1 ]; do
  pair "$1" "$2"
  shift 2
done
[ -z "$certificate" ] || pair "$certificate" "$key"
listed() { grep -aE 'SHA1 Fingerprint|Serial Number|^ {12}[0-9a-f]{2}(:[0-9a-f]{2})*$'; }
echo '=enrolled'
mokutil --list-enrolled 2>/dev/null | listed
mokutil --db 2>/dev/null | listed
echo '=queued'
mokutil --list-new 2>/dev/null | listed
echo '=keyring'
grep -a ' asymmetri' "$PROC/keys" 2>/dev/null
echo '=prebuilt'
[ -n "$on" ] && grep -qx 'ID=ubuntu' /etc/os-release &&
  apt-cache pkgnames linux-modules-nvidia- 2>/dev/null | grep -- '-server'
:
