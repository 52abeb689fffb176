# shellcheck shell=sh
# Rebuilds modules in DKMS's folder that DKMS has no record of. It does not install over them, and the package whose script builds
# them stays half-configured. With --force it would treat them as foreign and restore them whenever it removes its own. So they are
# deleted as soon as their replacements are built. Reads R; calls complain.
adopt() {
  ad_a=$(uname -m)
  dpkg-query -W -f '${db:Status-Status} ${Version}\n' '*nvidia*' 2>/dev/null | sed -n 's/^half-configured \([0-9]*:\)*//p' | sort -u | while read -r ad_v; do
    ad_v=${ad_v%-*}
    for ad_n in /usr/src/nvidia*-"$ad_v"/dkms.conf; do
      [ -r "$ad_n" ] || continue
      ad_n=${ad_n%/*}; ad_n=${ad_n##*/}; ad_n=${ad_n%-"$ad_v"}; ad_d=/var/lib/dkms/$ad_n
      for ad_k in /lib/modules/*/updates/dkms; do
        ad_o=$ad_k; ad_k=${ad_k%/updates/dkms}; ad_k=${ad_k##*/}
        set -- "$ad_o"/nvidia*.ko*; [ -e "$1" ] && [ -e "/lib/modules/$ad_k/build/Makefile" ] && [ ! -e "$ad_d/kernel-$ad_k-$ad_a" ] || continue
        echo "building the modules for $ad_k anew, of which DKMS has no record"
        dkms build "$ad_n/$ad_v" -k "$ad_k" </dev/null >"$R/dkms.log" 2>&1 || { complain "$ad_d/$ad_v/build/make.log"; tail -c 2000 "$R/dkms.log"; continue; }
        for ad_m in "$ad_d/$ad_v/$ad_k/$ad_a"/module/*.ko*; do ad_m=${ad_m##*/}; rm -f "$ad_o/${ad_m%%.ko*}".ko*; done
        dkms install "$ad_n/$ad_v" -k "$ad_k" </dev/null >"$R/dkms.log" 2>&1 || tail -c 2000 "$R/dkms.log"
      done
    done
  done
}
if command -v dkms >/dev/null; then ( adopt ); fi
