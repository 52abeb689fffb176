"""A stand-in for mokutil and for MOK manager at a console, for nodes without firmware.

The words and the lists are those of mokutil 0.6 (lcp/mokutil: src/mokutil.c ``list_keys``, ``test_key``,
``issue_mok_request``; src/efi_x509.c ``print_x509``); certificates are listed by the real openssl. What the
firmware keeps is in a folder here. Its hashes of passwords are read as by src/password-crypt.c.
"""

from __future__ import annotations

from gpustate_lab.node import Node

FOLDER = "/var/lib/standin-mok"
EFIVAR = (
    "/run/gpustate-lab/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
)

MOKUTIL = r"""#!/bin/sh
# Stand-in of gpustate's tests.
S=@FOLDER@; mkdir -p $S/MokListRT $S/MokNew
has() { for f in "$S/$1"/*.der; do [ -e "$f" ] && cmp -s "$f" "$2" && return 0; done; return 1; }
list() {
  n=0
  for f in "$S/$1"/*.der; do
    [ -e "$f" ] || continue
    n=$((n + 1)); [ $n = 1 ] || echo
    echo "[key $n]"
    printf 'SHA1 Fingerprint: %s\n' "$(openssl x509 -inform DER -in "$f" -noout -fingerprint -sha1 | cut -d = -f 2 | tr A-F a-f)"
    openssl x509 -inform DER -in "$f" -noout -text
  done
  [ $n != 0 ] || echo "$1 is empty"
}
case $1 in
  --sb-state) echo 'SecureBoot enabled';;
  --list-enrolled) list MokListRT;;
  --list-new) list MokNew;;
  --db) echo 'db is empty';;
  --test-key)
    if has MokListRT "$2"; then echo "$2 is already enrolled"; exit 1
    elif has MokNew "$2"; then echo "$2 is already in the enrollment request"; exit 1
    else echo "$2 is not enrolled"; fi;;
  --import)
    [ "$3" = --hash-file ] || { echo 'Abort' >&2; exit 255; }
    openssl x509 -inform DER -in "$2" -noout || { echo "Abort!!! $2 is not a valid x509 certificate in DER format" >&2; exit 255; }
    if has MokListRT "$2"; then echo "SKIP: $2 is already enrolled"; exit 0; fi
    if has MokNew "$2"; then echo "SKIP: $2 is already in the enrollment request"; exit 0; fi
    grep -qE '^\$6\$[./0-9A-Za-z]{1,16}\$[./0-9A-Za-z]{86}$' "$4" || { echo 'Failed to parse the string' >&2; exit 255; }
    cp "$4" $S/MokAuth; cp "$2" "$S/MokNew/$(sha1sum <"$2" | cut -c 1-8).der"; echo "$*" >>$S/imports;;
  --revoke-import) rm -f $S/MokNew/* $S/MokAuth;;
  *) echo "unknown option $1" >&2; exit 255;;
esac
""".replace("@FOLDER@", FOLDER)


def install(node: Node) -> None:
    """Secure Boot is on, and nothing is enrolled."""
    node.run(f"cat >/usr/bin/mokutil <<'END'\n{MOKUTIL}END\nchmod 0755 /usr/bin/mokutil")
    folder = EFIVAR.rpartition("/")[0]
    top = folder.rpartition("/efi/")[0]
    node.run(
        f"mount -t tmpfs standin {top}; mkdir -p {folder}; printf '\\006\\000\\000\\000\\001' >{EFIVAR}"
    )


def console(node: Node, password: str) -> bool:
    """Somebody at the console types a password into MOK manager; whether it took it."""
    said = node.run(
        f"cd {FOLDER}; h=$(cat MokAuth); s=${{h#*'$6$'}}; s=${{s%%'$'*}}\n"
        f'if [ "$(openssl passwd -6 -salt "$s" \'{password}\')" = "$h" ]; then mv MokNew/*.der MokListRT/ && echo taken; fi\n'
        "rm -f MokNew/* MokAuth"
    )
    return said.stdout.strip() == "taken"
