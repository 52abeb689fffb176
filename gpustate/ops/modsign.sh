# shellcheck shell=sh
# Defines key_of CERTIFICATE, tool_for KERNEL and sign TOOL CERTIFICATE KEY MODULES... The names in @...@ are paths of
# keys: @CERTIFICATE@, @KEY@, @UBUNTU@, @UBUNTU_KEY@, @OTHERS@ and @OTHERS_KEY@, the same in every program.
unsign() { # module
  # A signature is behind it: itself, twelve bytes of which the last four are its length, a line.
  while tail -c 28 "$1" | grep -qax '~Module signature appended~'; do
    # shellcheck disable=SC2046 # split into words on purpose
    set -- "$1" $(tail -c 32 "$1" | head -c 4 | od -An -t u1)
    truncate -s "-$((($2 << 24) + ($3 << 16) + ($4 << 8) + $5 + 40))" "$1"
  done
}
said_of_dkms() { # setting: the last one counts
  v=; for f in /etc/dkms/framework.conf /etc/dkms/framework.conf.d/*.conf; do
    [ -r "$f" ] || continue; w=$(sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" "$f" | tail -n 1); v=${w:-$v}
  done; printf %s "$v"
}
key_of() { # certificate: its private key
  case $1 in @CERTIFICATE@) echo @KEY@; return;; esac
  p=$(said_of_dkms mok_signing_key); [ -z "$p" ] || { echo "$p"; return; }
  case $1 in @UBUNTU@) echo @UBUNTU_KEY@;; @OTHERS@) echo @OTHERS_KEY@;; esac
}
tool_for() { # kernel: what signs its modules
  for f in "/lib/modules/$1/build/scripts/sign-file" "/usr/src/linux-headers-$1/scripts/sign-file" "/usr/lib/linux-kbuild-${1%.*}/scripts/sign-file" /usr/lib/linux-kbuild-*/scripts/sign-file /usr/bin/kmodsign; do
    [ ! -x "$f" ] || { echo "$f"; return; }
  done
}
plain() { tr -d ':\n' | tr A-F a-f | sed 's/^0*//'; }
sign() ( # tool, certificate, key, modules: each that this certificate has not signed
  s=$1; c=$2; p=$3; shift 3
  n=$(openssl x509 -inform DER -in "$c" -noout -serial 2>/dev/null | cut -d = -f 2 | plain)
  for m do
    [ -z "$n" ] || [ "$(modinfo -F sig_key "$m" 2>/dev/null | plain)" != "$n" ] || continue
    t=${m%/*}/.gpustate-signing; rm -f "$t"; cp -a "$m" "$t"
    case $m in *.xz) xz -dc "$m" >"$t";; *.zst) zstd -dqc "$m" >"$t";; *.gz) gzip -dc "$m" >"$t";; esac
    unsign "$t"; "$s" sha256 "$p" "$c" "$t"
    case $m in *.xz) xz --check=crc32 -f "$t"; mv "$t.xz" "$t";; *.zst) zstd -qf --rm "$t" -o "$t.zst"; mv "$t.zst" "$t";;
      *.gz) gzip -f "$t"; mv "$t.gz" "$t";; esac
    sync "$t"; mv -f "$t" "$m"; echo "signed $m"
  done
)
