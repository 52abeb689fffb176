# shellcheck shell=sh
# Defines key_of CERTIFICATE, tool_for KERNEL and sign TOOL CERTIFICATE KEY MODULES... The names in
# @...@ are paths of keys: @CERTIFICATE@, @KEY@, @UBUNTU@, @UBUNTU_KEY@, @OTHERS@ and @OTHERS_KEY@,
# the same in every program.
unsign() { # module
  # A signature is behind it: itself, twelve bytes of which the last four are its length, a line.
  while tail -c 28 "$1" | grep -qax '~Module signature appended~'; do
    # shellcheck disable=SC2046 # split into words on purpose
    set -- "$1" $(tail -c 32 "$1" | head -c 4 | od -An -t u1)
    truncate -s "-$((($2 << 24) + ($3 << 16) + ($4 << 8) + $5 + 40))" "$1"
  done
}
said_of_dkms() { # setting: the last one counts
  setting=
  for f in /etc/dkms/framework.conf /etc/dkms/framework.conf.d/*.conf; do
    [ -r "$f" ] || continue
    setting_here=$(sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" "$f" | tail -n 1)
    setting=${setting_here:-$setting}
  done
  printf %s "$setting"
}
key_of() { # certificate: its private key
  case $1 in @CERTIFICATE@)
    echo @KEY@
    return
    ;;
  esac
  key_path=$(said_of_dkms mok_signing_key)
  [ -z "$key_path" ] || {
    echo "$key_path"
    return
  }
  case $1 in @UBUNTU@) echo @UBUNTU_KEY@ ;; @OTHERS@) echo @OTHERS_KEY@ ;; esac
}
tool_for() { # kernel: what signs its modules
  for f in "/lib/modules/$1/build/scripts/sign-file" "/usr/src/linux-headers-$1/scripts/sign-file" \
    "/usr/lib/linux-kbuild-${1%.*}/scripts/sign-file" /usr/lib/linux-kbuild-*/scripts/sign-file \
    /usr/bin/kmodsign; do
    [ ! -x "$f" ] || {
      echo "$f"
      return
    }
  done
}
plain() { tr -d ':\n' | tr A-F a-f | sed 's/^0*//'; }
sign() ( # tool, certificate, key, modules: each that this certificate has not signed
  tool=$1
  certificate=$2
  key=$3
  shift 3
  serial=$(openssl x509 -inform DER -in "$certificate" -noout -serial 2>/dev/null | cut -d = -f 2 |
    plain)
  for module; do
    [ -z "$serial" ] || [ "$(modinfo -F sig_key "$module" 2>/dev/null | plain)" != "$serial" ] ||
      continue
    signing=${module%/*}/.gpustate-signing
    rm -f "$signing"
    cp -a "$module" "$signing"
    case $module in
      *.xz) xz -dc "$module" >"$signing" ;;
      *.zst) zstd -dqc "$module" >"$signing" ;;
      *.gz) gzip -dc "$module" >"$signing" ;;
    esac
    unsign "$signing"
    "$tool" sha256 "$key" "$certificate" "$signing"
    case $module in
      *.xz)
        xz --check=crc32 -f "$signing"
        mv "$signing.xz" "$signing"
        ;;
      *.zst)
        zstd -qf --rm "$signing" -o "$signing.zst"
        mv "$signing.zst" "$signing"
        ;;
      *.gz)
        gzip -f "$signing"
        mv "$signing.gz" "$signing"
        ;;
    esac
    sync "$signing"
    mv -f "$signing" "$module"
    echo "signed $module"
  done
)
